"""What a selector asks of whoever knows the model and the machines."""

from typing import Protocol

from earl.parallel.choice import Choice
from earl.parallel.load import Load


class Costs(Protocol):
    """What choices take, as predicted. Both depend on nothing but their arguments."""

    def seconds(self, choice: Choice, tokens: float, sequences: int) -> float:
        """Of a step's stage with contexts of so many tokens on average; it changes smoothly with them.

        Only ratios between choices need be right: measurements move the rest.
        """

    def obstacle(self, choice: Choice, load: Load) -> str:
        """What stands against it, with its numbers; empty when it fits. What fits also fits with shorter contexts.

        Example:
            "30.2 GiB of 24.0 GiB"
        """
