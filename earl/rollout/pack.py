"""From trajectories to packed rows and batches, and back to training records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, Algorithm, value_counts
from earl.algorithms.rae import NO_BASELINES, Baselines, turn_baselines
from earl.algorithms.registry import algorithm_of
from earl.batch import Batch, Rows, offsets_of
from earl.config import Config
from earl.trajectory import (
    FAULTS,
    Group,
    GroupOf,
    Labels,
    Played,
    PlayedGroups,
    TrainingRecord,
    Trajectory,
    Turn,
)

P = TypeVar("P", bound=Played)
G = TypeVar("G", bound=GroupOf[Any])


def pack(trajectories: Sequence[Trajectory], labels: Sequence[Labels] | None = None) -> Rows:
    """One row per context: the whole episode under full history, one row per turn where the context restarts.

    Args:
        trajectories: N episodes; their turns are numbered consecutively, 0 to K - 1.
        labels: per trajectory, the teacher's tokens per turn. Without labels the policy's own tokens are in the loss;
            with labels, only those. Labels that a trajectory has itself stand in `targets` beside its tokens. Where a
            label departs from the played tokens, its first different token is the last in the loss of that turn, since
            later tokens were conditioned on the played one.
    """
    parts, first_turn = [_NO_ROWS], 0
    for index, trajectory in enumerate(trajectories):
        own = None if labels is None else labels[index]
        parts += [_row(trajectory, turns, first_turn, own) for turns in contexts(trajectory)]
        first_turn += trajectory.num_values
    return Rows.joined(parts)


OrderedRows = tuple[Rows, NDArray[np.int64]]
"""Rows, and the index of each row's episode [N] over all processes."""


def joined(shares: Sequence[OrderedRows]) -> OrderedRows:
    """All rows in the order of their episodes; the result does not depend on how these were shared out."""
    numbers = np.concatenate([order for _, order in shares])
    order, parts, first = np.argsort(numbers, kind="stable"), [], 0
    for rows, _ in shares:
        parts.append(replace(rows, turns=np.where(rows.turns >= 0, rows.turns + first, -1).astype(np.int32)))
        first += rows.num_turns
    return Rows.joined(parts).select(order), numbers[order]


def complete(rows: Rows, advantages: Advantages, reference: NDArray[np.float32] | None) -> Batch:
    """The batch of `rows` with advantages, returns and values of all turns of the step, and per-token reference
    log-probs [T]. By token, there is a value before every sampled token."""
    zeros, estimates = np.zeros(len(rows.tokens), np.float32), advantages.values
    if advantages.starts is None:
        before = after = rows.turns.astype(np.int64)
    else:
        rows = token_valued(rows)
        before, after = _numbers_by_token(rows, advantages.starts)

    def at(marked: NDArray[np.bool_], numbers: NDArray[np.int64], own: NDArray[np.float32]) -> NDArray[np.float32]:
        padded = np.append(own, np.float32(0))  # index -1 reads the 0
        return np.where(marked, padded[numbers], 0).astype(np.float32)

    return Batch(
        **{column.name: getattr(rows, column.name) for column in fields(Rows)},
        advantages=at(rows.mask, after, advantages.turns),
        reference=zeros if reference is None else reference,
        returns=at(rows.value_mask, before, advantages.returns),
        values=zeros if estimates is None else at(rows.value_mask, before, estimates),
    )


def token_valued(rows: Rows) -> Rows:
    """Rows with a value before every sampled token, beside those before turns. The first of a row is never sampled."""
    return replace(rows, value_mask=rows.value_mask | np.append(rows.mask[1:], np.False_))


def _numbers_by_token(rows: Rows, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of the step's values is read at each position, and which is that of the token there: [T], -1 for none."""
    places = np.flatnonzero(rows.value_mask)
    turns = rows.turns[places]
    first = np.flatnonzero(np.diff(turns, prepend=-2))  # a turn's places follow one another
    ranks = np.arange(len(places)) - np.repeat(first, np.diff(np.append(first, len(places))))
    before = np.full(len(rows.tokens), -1, np.int64)
    before[places] = starts[turns] + ranks
    return before, np.append(np.int64(-1), before)[:-1]


def by_seat(groups: Iterable[G]) -> list[G]:
    """The groups, one for each seat of those that have both: only episodes of one seat start alike."""
    return [
        replace(group, trajectories=tuple(own))
        for group in groups
        for _, own in groupby(group.trajectories, key=lambda trajectory: trajectory.task.seat)
    ]


def num_rows(trajectory: Trajectory) -> int:
    return len(contexts(trajectory))


def trajectories_of(groups: Iterable[GroupOf[P]]) -> list[P]:
    return [trajectory for group in groups for trajectory in group.trajectories]


_COLUMNS: Any = [np.zeros(0, kind) for kind in (np.int32, np.bool_, np.int32, np.float32, np.int32, np.bool_)]
_NO_ROWS = Rows(np.zeros(1, np.int64), *_COLUMNS)


def contexts(trajectory: Trajectory) -> list[list[tuple[int, Turn]]]:
    """The turns of a trajectory, grouped by shared context."""
    numbered = enumerate(trajectory.turns)
    return [list(turns) for _, turns in groupby(numbered, key=lambda item: item[1].context_start)]


def _row(trajectory: Trajectory, turns: list[tuple[int, Turn]], first_turn: int, labels: Labels | None) -> Rows:
    """One context: from its start to its last sampled token, or to the prompt that would have followed."""
    start, end = _span(trajectory, turns)
    tokens = trajectory.tokens[start:end]
    sampled = trajectory.sampled[start:end]
    mask, targets = sampled.copy(), tokens.copy()
    numbers = np.full(len(tokens), -1, np.int32)
    value_mask = np.zeros(len(tokens), np.bool_)
    for number, turn in turns:
        span = slice(turn.action_start - start, turn.end - start)
        numbers[span.start - 1 : span.stop] = first_turn + number
        value_mask[span.start - 1] = True
        if labels is not None:
            mask[span] = _write_label(targets[span], labels.get(number, ()))
        elif number in trajectory.labels:
            taught = _write_label(targets[span], trajectory.labels[number])
            targets[span][taught] = -1 - targets[span][taught]
    if end > turns[-1][1].end:
        numbers[-1], value_mask[-1] = first_turn + len(trajectory.turns), True
    return Rows(offsets_of([len(tokens)]), tokens, mask, targets, trajectory.logprobs[start:end], numbers, value_mask)


def _span(trajectory: Trajectory, turns: list[tuple[int, Turn]]) -> tuple[int, int]:
    """The tokens of a context's row."""
    number, last = turns[-1]
    whole = trajectory.bootstrapped and number == len(trajectory.turns) - 1
    return turns[0][1].context_start, trajectory.num_tokens if whole else last.end


def _write_label(played: NDArray[np.int32], label: Sequence[int]) -> NDArray[np.bool_]:
    """Write the label over the played tokens up to the first that differs; returns the mask of what was written."""
    mask = np.zeros(len(played), np.bool_)
    for position, token in enumerate(label[: len(played)]):
        departs = played[position] != token
        played[position], mask[position] = token, True
        if departs:
            break
    return mask


@dataclass(frozen=True, slots=True)
class Learnable:
    """Which episodes of a step are learned from. Metrics count all of them."""

    truncated: bool = True  # also those that a token limit ended
    flat: bool = True  # also groups whose episodes all have the same return
    length_penalty: float = 0.0  # per sampled token, part of the return

    def compared(self, groups: Sequence[G]) -> list[G]:
        """The groups without faults, and without flat ones unless they are learned from."""
        sound = (_filtered(group, lambda one: one.stop not in FAULTS) for group in groups)
        return [group for group in sound if group.trajectories and (self.flat or not self._is_flat(group))]

    def learned(self, groups: Sequence[G]) -> list[G]:
        """Of the groups that are compared, what is learned from."""
        kept = (_filtered(group, self.learns) for group in self.compared(groups))
        return [group for group in kept if group.trajectories]

    def learns(self, compared: Played) -> bool:
        return self.truncated or not compared.truncated

    def _is_flat(self, group: GroupOf[Any]) -> bool:
        (penalised,) = length_penalised([group], self.length_penalty)
        return len({trajectory.reward for trajectory in penalised.trajectories}) == 1


def learnable(config: Config) -> Learnable:
    context, own = config.context, algorithm_of(config)
    return Learnable(context.learn_truncated, not own.drop_flat_groups, context.length_penalty)


def _filtered(group: G, wanted: Callable[[Any], bool]) -> G:
    return replace(group, trajectories=tuple(filter(wanted, group.trajectories)))


Estimates = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Turns of what is learned from, and what was estimated of each; by token a turn comes again for each of them."""


def assign_credit(
    algorithm: Algorithm,
    groups: PlayedGroups,
    rule: Learnable,
    estimates: Estimates | None = None,
    baselines: Baselines = NO_BASELINES,
    costs: Estimates | None = None,
) -> Advantages:
    """Advantages of all turns that are learned from, or of their tokens. Without a value head, an episode that a token
    limit ended keeps its place in its group's baseline where it is not learned from itself. costs: of tokens, taken off
    the rewards of their turns."""
    compared = rule.compared(groups) if estimates is None else rule.learned(groups)
    each = trajectories_of(compared)
    counts = value_counts(each, algorithm.by_token)
    values = np.zeros(counts.sum(), np.float32)
    if estimates is not None:
        turns, own = estimates
        values = own[np.argsort(turns, kind="stable")]
    elif algorithm.needs_baselines:
        values = turn_baselines(baselines, compared)
    rewarded = length_penalised(compared, rule.length_penalty)
    if costs is not None:
        left = iter(np.bincount(costs[0], costs[1], len(counts)).tolist())
        rewarded = _charged(rewarded, lambda one: [*islice(left, one.num_values)])
    found = algorithm.advantages(rewarded, values)
    learns = np.repeat(np.array([rule.learns(one) for one in each], np.bool_), [one.num_values for one in each])
    kept = np.repeat(learns, counts)
    starts = offsets_of(counts[learns])[:-1] if algorithm.by_token else None
    return Advantages(found.turns[kept], found.returns[kept], starts, values[kept] if algorithm.needs_values else None)


def length_penalised(groups: Sequence[G], penalty: float) -> Sequence[G]:
    """The groups with `penalty` subtracted from each turn's reward per sampled token."""
    if not penalty:
        return groups
    return _charged(groups, lambda one: [penalty * (turn.end - turn.action_start) for turn in one.turns])


def _charged(groups: Sequence[G], costs: Callable[[Any], Iterable[float]]) -> Sequence[G]:
    """The groups with the costs of an episode's turns subtracted from their rewards."""

    def charged(episode: Any) -> Any:
        pairs = zip(episode.turns, costs(episode), strict=False)  # no turn begins after the last
        return replace(episode, turns=tuple(replace(turn, reward=turn.reward - cost) for turn, cost in pairs))

    return [replace(group, trajectories=tuple(map(charged, group.trajectories))) for group in groups]


def experiences(
    groups: Sequence[Group], kept: Sequence[Group], batch: Batch, logprobs: NDArray[np.float32]
) -> list[TrainingRecord]:
    """The training record of every trajectory of `groups`, read from the batch that was packed from `kept`.
    `logprobs` are the learner's after the update, [T] at batch.mask."""
    rows = iter(range(batch.num_rows))
    made = {id(own): _training_record(own, rows, batch, logprobs) for own in trajectories_of(kept)}
    return [made.get(id(trajectory)) or _empty_record(trajectory) for trajectory in trajectories_of(groups)]


def empty_records(groups: Iterable[Group]) -> list[TrainingRecord]:
    """Training records of trajectories that were not trained on."""
    return [_empty_record(trajectory) for trajectory in trajectories_of(groups)]


def _training_record(
    trajectory: Trajectory, rows: Iterator[int], batch: Batch, logprobs: NDArray[np.float32]
) -> TrainingRecord:
    result = _empty_record(trajectory)
    for turns in contexts(trajectory):
        (start, end), offset = _span(trajectory, turns), int(batch.offsets[next(rows)])
        row = slice(offset, offset + end - start)
        result.mask[start:end] = batch.mask[row]
        result.logprobs[start:end] = np.where(batch.mask[row], logprobs[row], 0)
        for number, turn in turns:
            result.advantages[number] = batch.advantages[offset + turn.action_start - start]
    return result


def _empty_record(trajectory: Trajectory) -> TrainingRecord:
    tokens, turns = len(trajectory.tokens), len(trajectory.turns)
    return TrainingRecord(np.zeros(tokens, np.bool_), np.zeros(turns, np.float32), np.zeros(tokens, np.float32))
