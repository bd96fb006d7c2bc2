"""Parameters of a model by what happens to them in a step: read once a batch, multiplied once a token, or looked up."""

from dataclasses import dataclass
from functools import cache

from earl.parallel.memory import ModelShape
from earl.parallel.throughput.precision import Precision


@dataclass(frozen=True, slots=True)
class Parts:
    """Counts of parameters.

    Example:
        Llama-3.1-8B: words 0.5 billion, head 0.5 billion, dense 7.0 billion, experts 0
    """

    words: int
    """Embeddings: a token looks up one row."""
    head: int
    """The output layer: multiplied for tokens that are sampled."""
    dense: int
    """Multiplied for every token."""
    experts: int
    """Feed-forward networks of a mixture, all of them; a token is multiplied with its share."""
    share: float
    """Of the experts that one token passes."""

    @property
    def per_token(self) -> float:
        """Multiplied for every token, without the output layer."""
        return self.dense + self.experts * self.share

    def read(self, tokens: float) -> float:
        """Parameters of linear layers that a batch of so many tokens reads: experts that nobody hits are not.

        Each token hits its share of the experts at random, so that one is missed by all with (1 − share)^tokens.
        """
        hit = 1.0 if self.share == 1.0 else 1.0 - (1.0 - self.share) ** tokens
        return self.dense + self.experts * hit


@cache
def parts(shape: ModelShape) -> Parts:
    """The parts of a model."""
    words = shape.vocab * shape.hidden
    width = shape.intermediate // shape.experts_per_token
    experts = 3 * shape.layers * shape.hidden * width * shape.experts if shape.experts > 1 else 0
    dense = shape.parameters - words * (1 if shape.tied else 2) - experts
    return Parts(0 if shape.tied else words, words, dense, experts, shape.experts_per_token / shape.experts)


def weight_bytes(shape: ModelShape, precision: Precision) -> float:
    """Of a whole copy in memory."""
    part = parts(shape)
    return (part.words + part.head) * precision.word_bytes + (part.dense + part.experts) * precision.weight_bytes
