"""A question over several facts, each of which a search has to find."""

import re
from random import Random

from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import Passages
from earl.errors import EarlError

NAMES = ("Ada", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou", "Max", "Ned", "Ola", "Pia")
TOWNS = ("Bonn", "Cork", "Gent", "Kiel", "Lyon", "Metz", "Oslo", "Riga", "Turin", "Vigo", "Wien", "York")


class LookupEnv(ToolEnv):
    """Who is whose boss, up to a person whose town is asked for: `hops` facts, among those of everybody else."""

    instructions = (
        "Find the answer by searching for one fact after another. The search takes words, such as a name. Answer "
        "with one word and nothing else."
    )
    answer_form = "([A-Z][a-z]+)"
    hint = 'illegal: write search("Ada") with your words, or the answer in one word'

    def __init__(self, hops: int = 2) -> None:
        if not 1 <= hops <= len(NAMES):
            raise EarlError(f"hops {hops!r} is not within 1 … {len(NAMES)}")
        self.hops, self.max_turns = hops, hops + 3
        self._passages, self.answer, self.chain, self.said = Passages(()), "", [""], ""

    def search(self, query: str) -> str:
        """Find facts that hold a word."""
        found = "\n".join(self._passages.search(query, 2)) or "nothing found"
        self.said += f"\n{found}"
        return found

    tools = (search,)

    def task(self, rng: Random) -> str:
        people = rng.sample(NAMES, len(NAMES))
        homes = {person: rng.choice(TOWNS) for person in people}
        self.chain, others = people[: self.hops], people[self.hops :]
        facts = [f"{person} works for {boss}." for person, boss in zip(self.chain, self.chain[1:], strict=False)]
        facts += [f"{person} lives in {homes[person]}." for person in (self.chain[-1], *others)]
        self._passages, self.answer = Passages(rng.sample(facts, len(facts))), homes[self.chain[-1]]
        self.said = f"Where lives {'the boss of ' * (self.hops - 1)}{self.chain[0]}?"
        return self.said

    def score(self, answer: str) -> float:
        return float(answer == self.answer)

    def solve(self, rng: Random) -> str:
        del rng
        return self.answer if self.turns >= self.hops else f'search("{self.chain[self.turns]}")'

    def random_action(self, rng: Random) -> str:
        """Search for a word, or answer with it: any that stands in the question or in what was found."""
        word = rng.choice(re.findall("[A-Z][a-z]+", self.said)[1:])
        return f'search("{word}")' if rng.random() < 0.6 else word
