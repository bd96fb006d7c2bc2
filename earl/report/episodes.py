"""A few episodes as dialogues to read: which ones, and their tokens as spans of text with author and probability."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from earl.report.decoding import Decoder
from earl.report.text import shown
from earl.trajectory import FIRST_POLICY_AUTHOR, Author, Trajectory, Turn

MAX_EPISODES = 12
MAX_TURNS = 30
"""Turns shown of one episode: the first two thirds and the last third."""
SAMPLED_TOKENS = 1600
"""Tokens of the model shown one by one, per episode."""
GIVEN_CHARACTERS = 16_000
"""Characters of the environment shown per episode."""
LONG = 8
DOUBTS = (0.9, 0.5, 0.1)
"""A sampled token below the n-th of these probabilities is marked n-fold."""
_AUTHORS = {int(author): author.name.lower() for author in Author}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text by one author.

    Example:
        Span("action", "5", probability=0.93, doubt=0)
    """

    author: str
    text: str
    probability: float | None = None
    """That of a sampled token; None where nothing was sampled."""
    doubt: int = 0
    """How many of DOUBTS the probability is below."""
    mark: bool = False
    """Whether it is a control token of the chat, such as the one that ends a reply."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn: what the model was given, and its reply."""

    number: int
    given: list[Span]
    reply: list[Span]
    probability: float
    """Of the whole reply, or the geometric mean over its tokens when it is long."""
    long: bool
    """Whether the reply has more than LONG tokens; the probability of any one such reply is next to nothing."""
    refused: bool
    """Whether the reply was not taken as an action."""
    reward: float
    speaker: str
    """Who spoke to the model: "environment" or "tool"."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """An episode to read."""

    trajectory: Trajectory
    exchanges: list[Exchange]
    left_out: int
    """Turns not shown, between `exchanges[head - 1]` and `exchanges[head]`."""
    head: int
    rest: list[Span]
    """What stands after the last reply."""


def choose(trajectories: Sequence[Trajectory], limit: int = MAX_EPISODES) -> list[Trajectory]:
    """Up to `limit` different episodes, as varied as they come by opponent, seat, outcome and stop reason.

    Each next one is the first whose features have been chosen least so far.
    """
    unique = {trajectory.tokens.tobytes(): trajectory for trajectory in reversed(trajectories)}
    left = list(reversed(unique.values()))
    seen: Counter[tuple[str, object]] = Counter()
    chosen: list[Trajectory] = []
    while left and len(chosen) < limit:
        best = min(range(len(left)), key=lambda i: sum(seen[feature] for feature in _features(left[i])))
        seen.update(_features(left[best]))
        chosen.append(left.pop(best))
    return sorted(chosen, key=lambda t: (t.task.opponent, t.task.seat, t.outcome))


def _features(trajectory: Trajectory) -> list[tuple[str, object]]:
    task = trajectory.task
    illegal = ("illegal", trajectory.illegal > 0)
    return [("opponent", task.opponent), ("seat", task.seat), ("outcome", trajectory.outcome),
            ("stop", trajectory.stop), illegal, ("pair", (task.opponent, task.seat, trajectory.outcome))]  # fmt: skip


def dialogue(trajectory: Trajectory, decoder: Decoder) -> Dialogue:
    """The episode as spans of text, within bounds whatever its length."""
    turns = trajectory.turns
    head = len(turns) if len(turns) <= MAX_TURNS else MAX_TURNS * 2 // 3
    tail = 0 if len(turns) <= MAX_TURNS else MAX_TURNS - head
    kept = [*range(head), *range(len(turns) - tail, len(turns))]
    reader = _Reader(trajectory, decoder, max(1, len(kept)))
    end = turns[-1].end if turns else 0
    return Dialogue(
        trajectory=trajectory,
        exchanges=[_exchange(number, turns[number], reader) for number in kept],
        left_out=len(turns) - len(kept),
        head=head,
        rest=reader.spans(end, len(trajectory.tokens)),
    )


def _exchange(number: int, turn: Turn, reader: "_Reader") -> Exchange:
    given = reader.spans(turn.prompt_start, turn.action_start)
    logprobs = reader.trajectory.logprobs[turn.action_start : turn.end]
    long = len(logprobs) > LONG
    return Exchange(
        number=number + 1,
        given=given,
        reply=reader.spans(turn.action_start, turn.end),
        probability=math.exp(min(0.0, float(logprobs.sum())) / (len(logprobs) if long else 1)),
        long=long,
        refused=turn.action is None,
        reward=turn.reward,
        speaker="tool" if any(span.author == "tool" for span in given) else "environment",
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Tokens of one trajectory as spans, with the room that each turn may take."""

    trajectory: Trajectory
    decoder: Decoder
    turns: int

    def spans(self, start: int, end: int) -> list[Span]:
        """The tokens start … end, one span for each run of an author; sampled tokens one by one."""
        runs = groupby(range(start, end), key=lambda place: int(self.trajectory.authors[place]))
        return [span for author, places in runs for span in self._run(author, list(places))]

    def _run(self, author: int, places: list[int]) -> list[Span]:
        name = _AUTHORS.get(author, "template")
        ids = self.trajectory.tokens[places].tolist()
        if author < FIRST_POLICY_AUTHOR:
            limit = max(200, GIVEN_CHARACTERS // self.turns)
            return [Span(name, shown(self.decoder.whole(ids), limit))]
        logprobs = self.trajectory.logprobs[places].tolist()
        limit = max(12, SAMPLED_TOKENS // self.turns)
        if len(ids) <= limit:
            return self._sampled(name, ids, logprobs)
        head, tail = limit * 2 // 3, limit - limit * 2 // 3
        gap = Span("note", f" […{len(ids) - limit:,} tokens left out…] ")
        return [
            *self._sampled(name, ids[:head], logprobs[:head]),
            gap,
            *self._sampled(name, ids[-tail:], logprobs[-tail:]),
        ]

    def _sampled(self, name: str, ids: list[int], logprobs: list[float]) -> list[Span]:
        result = []
        for text, start, end in self.decoder.pieces(ids):
            probability = math.exp(min(0.0, sum(logprobs[start:end])))
            doubt = sum(probability < bound for bound in DOUBTS)
            mark = self.decoder.is_control(ids[start])
            result.append(Span(name, shown(text, 200), probability, doubt, mark))
        return result
