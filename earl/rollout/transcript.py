"""An episode's tokens as they were given and sampled, and who wrote each: one flat list, nothing encoded twice."""

from dataclasses import dataclass, field

from earl.agents.chat import Piece
from earl.rollout.prompt import Completion


@dataclass(slots=True)
class Transcript:
    """Four columns of the same length, which only grow."""

    tokens: list[int] = field(default_factory=list)
    authors: bytearray = field(default_factory=bytearray)
    """Who wrote each token, see `earl.trajectory.Author`."""
    logprobs: list[float] = field(default_factory=list)
    """Those of the sampler; 0 where nothing was sampled."""
    versions: list[int] = field(default_factory=list)
    """The weight version that sampled each; -1 where nothing was sampled."""

    def __len__(self) -> int:
        return len(self.tokens)

    def give(self, piece: Piece) -> None:
        """Add what the policy did not write."""
        self.tokens += piece.tokens
        self.authors += piece.authors
        self.logprobs += [0.0] * len(piece.tokens)
        self.versions += [-1] * len(piece.tokens)

    def write(self, completion: Completion, authors: bytes) -> None:
        """Add what the policy wrote."""
        self.tokens += completion.tokens
        self.authors += authors
        self.logprobs += completion.logprobs
        self.versions += completion.versions

    def repeat(self, start: int, end: int) -> None:
        """Give a stretch again: the same tokens by the same authors, though not sampled here."""
        self.give(Piece(tuple(self.tokens[start:end]), bytes(self.authors[start:end])))
