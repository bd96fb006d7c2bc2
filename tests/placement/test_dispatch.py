"""Rows on their way from those who played them to those who learn: nothing is lost, turned around or counted twice."""

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.batch import Rows
from earl.dispatch.rows import LABELLED, LEARNED, Work, empty_shard
from earl.dispatch.transports.base import pack as packed
from earl.dispatch.transports.base import unpack
from earl.engine.learner import RowShare, minibatches
from earl.engine.model import make
from earl.engine.sampler import Probe
from earl.parallel.layout import Layout
from earl.placement.async_rollout import Ticket
from earl.placement.embedded import embedded_pipeline
from earl.placement.episode_store import EpisodeStore, RowTable
from earl.placement.peers import Peers, WorkerLost
from earl.placement.ray import learner
from earl.placement.ray.actor_group import CallResults, Member
from earl.placement.ray.learner import LearnerGroup
from earl.placement.ray.rollout_actor import RolloutActor
from earl.placement.ray.rollout_workers import RolloutWorkers
from earl.placement.ray.row_exchange import CallResult, EpisodeTable, Manifest, shares
from earl.rollout.metrics import episode_metrics, staleness_metrics
from earl.rollout.pack import Learnable, pack, trajectories_of
from earl.rollout.tasks import draw
from earl.trajectory import Author, Group, Outcome, StopReason, Task, Trajectory, Turn
from tests.placement.near import Near


@pytest.fixture
def groups(tiny):
    return embedded_pipeline(tiny(agent={"history": "board_only"}), Peers()).rollout(1)


def held(groups, workers):
    """What each of some workers keeps of a step, and says of it."""
    holdings = [EpisodeStore(Learnable()) for _ in range(workers)]
    for number, group in enumerate(groups):
        holdings[number % workers].keep({Ticket(1, number): group})
    return holdings, EpisodeTable.joined([own.table(1) for own in holdings], LEARNED)


def arrived(holdings, manifest):
    """What every rank takes of what the workers send."""
    plan = manifest.plan()
    for rank in range(manifest.layout.size):
        target = empty_shard(plan.target, rank, plan.lengths, plan.columns)
        for worker, own in enumerate(holdings):
            shard = own.shard(manifest.numbers(worker), manifest.table.columns)
            pieces = plan.pieces.where(
                (plan.pieces.source == manifest.layout.size + worker) & (plan.pieces.destination == rank)
            )
            unpack(packed(pieces, plan.columns, shard), pieces, plan.columns, target)
        yield manifest.taken(target)


@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(2, 1), Layout(3, 1)])
@pytest.mark.parametrize("workers", [1, 3])
def test_ranks_have_between_them_what_one_process_would_have(groups, layout, workers):
    holdings, table = held(groups, workers)
    part = shares(table, Work(), layout.dp, seed=7, count=2)
    manifest = Manifest(table, part, layout, np.zeros(layout.size + workers, np.int32))
    whole, seen = pack(trajectories_of(groups)), []
    for rank, (rows, own) in enumerate(arrived(holdings, manifest)):
        assert own.numbers.tolist() == np.flatnonzero(part == rank).tolist()
        theirs = whole.select(own.numbers)
        for name in Rows.__dataclass_fields__:
            assert getattr(rows, name).tolist() == getattr(theirs, name).tolist(), name
        seen += own.numbers.tolist()
        assert (own.learned.tolist(), own.turns.tolist()) == (
            RowShare.whole(whole).learned.tolist(),
            table.turns.tolist(),
        )
    assert sorted(seen) == list(range(whole.num_rows))


def test_a_table_takes_16_bytes_a_row_and_a_manifest_8_more(groups):
    _, table = held(groups, 2)
    rows = len(table.lengths)
    own = RowTable(table.lengths, table.learned, table.turns, table.order)
    assert sum(getattr(own, name).nbytes for name in RowTable.__dataclass_fields__) == 16 * rows
    part = shares(table, Work(), 2, seed=0, count=1)
    assert table.worker.nbytes + part.nbytes == 8 * rows


def test_outlines_say_of_a_step_what_its_trajectories_do(groups):
    outlines = [*EpisodeStore(Learnable()).keep({Ticket(1, n): group for n, group in enumerate(groups)}).values()]
    assert episode_metrics(outlines) == episode_metrics(groups)
    assert staleness_metrics(outlines, 3) == staleness_metrics(groups, 3)
    assert [group.task for group in outlines] == [group.task for group in groups]


def test_with_counts_and_manifest_outlines_of_one_turn_take_less_than_200_bytes_a_row():
    # 16 bytes of counts, 24 of the manifest, and the summary as it is sent, with a task for every eight episodes.
    random = np.random.default_rng(0)
    step = {
        Ticket(1, number): Group(tuple(short(task, random) for _ in range(8)))
        for number in range(125)
        for task in [Task("tictactoe", int(random.integers(1 << 60)), 0, "random")]
    }
    sent = pickle.dumps(EpisodeStore(Learnable()).keep(step))
    assert 16 + 24 + len(sent) / 1000 <= 200
    for ticket, group in pickle.loads(sent).items():  # what came is what was sent
        for ours, theirs in zip(group.trajectories, step[ticket].trajectories, strict=True):
            assert (ours.task, ours.seed, ours.turns, ours.stop) == (
                theirs.task,
                theirs.seed,
                theirs.turns,
                theirs.stop,
            )
            assert ours.author_tokens.tolist() == theirs.author_tokens.tolist()
            assert ours.author_tokens.dtype == theirs.author_tokens.dtype


def short(task, random):
    """An episode of one turn: a prompt and five tokens of an answer."""
    prompt = int(random.integers(20, 4000))
    authors = np.repeat([Author.ENVIRONMENT, Author.ACTION], [prompt, 5]).astype(np.uint8)
    versions = np.where(authors == Author.ACTION, 3, -1).astype(np.int32)
    turn = Turn(0, 0, prompt, prompt + 5, str(random.integers(9)), random.random(), random.random())
    zeros, seed = np.zeros(prompt + 5), int(random.integers(1 << 62))
    columns = (zeros.astype(np.int32), authors, zeros.astype(np.float32), versions)
    return Trajectory(task, seed, *columns, (turn,), StopReason.FINISHED, Outcome.WIN, 0)


def test_what_was_learned_from_is_forgotten(groups):
    holdings = EpisodeStore(Learnable())
    holdings.keep({Ticket(1, 0): groups[0], Ticket(2, 0): groups[1]})
    holdings.drop(1)
    assert holdings.whole([Ticket(1, 0), Ticket(2, 0)]) == {Ticket(2, 0): groups[1]}
    assert not len(holdings.table(1).lengths)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_every_minibatch_is_shared_evenly(lengths, parts, count):
    counts = np.array(lengths, np.int32)
    table = RowTable(counts, counts, np.ones_like(counts), np.arange(len(counts), dtype=np.int32))
    part = shares(table, Work(), parts, seed=3, count=count)
    for rows in minibatches(np.random.default_rng(3), len(counts), count):
        loads = np.bincount(part[rows], weights=counts[rows], minlength=parts)
        # Longest first, to the lightest: nobody is ahead of another by more than one row.
        assert loads.max() - loads.min() <= counts[rows].max()


def test_the_driver_needs_few_bytes_a_row():
    # 100,000 rows of 64 workers for 16 parts: what the driver has at once, and what it hands out.
    rows, workers = 100_000, 64
    random = np.random.default_rng(0)
    own = [
        RowTable(*(random.integers(1, 4096, rows // workers, dtype=np.int32) for _ in range(3)), order)
        for order in np.array_split(random.permutation(rows).astype(np.int32)[: rows // workers * workers], workers)
    ]
    tracemalloc.start()
    table = EpisodeTable.joined(own, LEARNED)
    manifest = Manifest(table, shares(table, Work(), 16, seed=0, count=4), Layout(16, 8), np.zeros(192, np.int32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 200 * rows
    assert len(pickle.dumps(manifest)) <= 30 * rows


class Here:
    """An actor of this process: what is asked of it is done when the answer is taken."""

    def __init__(self):
        self.actor = RolloutActor()

    def __getattr__(self, name):
        method = getattr(self.actor, name)
        return type("Method", (), {"remote": staticmethod(lambda *given: lambda: method(*given))})


class Crew:
    """Actors without processes, each with a whole copy of the sampler."""

    members = ()

    def __init__(self, size):
        self.actors = [Here() for _ in range(size)]

    def mates(self, number):
        return range(number, number + 1)

    def __len__(self):
        return len(self.actors)

    def ask(self, stage, call, numbers):
        return CallResults({number: call(self.actors[number], number)() for number in numbers}, {})

    def introduce(self):
        return {}

    def replace(self, number):
        self.actors[number] = Here()

    def turn(self, group):
        pass

    failed = turn

    def note(self, kind, message):
        pass


def test_a_worker_replaced_before_its_rows_were_sent_plays_and_packs_them_again(tiny):
    config = tiny()
    group, workers = rollout_workers(config, 2)
    workers.play(draw(config, 1))
    manifest = Manifest(workers.rows([]), np.zeros(0, np.int32), Layout(), np.zeros(3, np.int32))
    before = group.actors[1].actor._episodes.shard(manifest.numbers(1), LEARNED)
    workers.replace("dispatch", {1: "has died"})
    after = group.actors[1].actor._episodes.shard(manifest.numbers(1), LEARNED)
    assert len(before.rows)
    assert before.offsets.tolist() == after.offsets.tolist()
    for name in LEARNED:
        assert before.columns[name].tolist() == after.columns[name].tolist()


class Exchange:
    """Ranks and workers as one group: every third call is an exchange of rows, and the first ones fail."""

    tp = 1

    def __init__(self, config, faults):
        self.members, self.calls, self.faults, self.told = [Member("learner rank 0", None)], 0, faults, []
        self.config = config

    def __len__(self):
        return 1

    def joined(self, others):
        return self

    def ask(self, stage, call, numbers):
        self.calls += 1
        failed = self.calls % 3 == 0 and self.calls // 3 <= self.faults
        return CallResults(
            {number: CallResult("its checksum differs" * failed, {"dispatch/bytes": 5.0}) for number in numbers}
        )

    def note(self, kind, message):
        self.told.append((kind, message))


def test_rows_whose_exchange_failed_are_sent_again_three_times_in_all(tiny, groups, monkeypatch):
    monkeypatch.setattr(learner.ray, "put", lambda manifest: manifest)  # no actor of the group takes it
    _, table = held(groups, 1)
    group = Exchange(tiny(), faults=2)
    ranks = LearnerGroup(group, group, group, Work())
    assert ranks.take(table, 7, 2) is table
    assert ranks.costs == {"dispatch/bytes": 5.0}
    assert group.told == [("dispatch", "its checksum differs (during dispatch): sent again")] * 2
    failing = Exchange(tiny(), faults=3)
    with pytest.raises(WorkerLost, match=r"its checksum differs.* this was tried 3 times"):
        LearnerGroup(failing, failing, failing, Work()).take(table, 7, 2)


def rollout_workers(config, count):
    group = Crew(count)
    workers = RolloutWorkers(
        group, lambda actor, _, meeting: actor.setup.remote(config.model_dump(), None, (), meeting), group
    )
    model = make(config.model, config.run.seed).model
    workers.load((Near(model.state_dict()), Probe.of(model)), 0)
    return group, workers


def test_labels_go_with_the_rows_as_long_as_a_teacher_is_asked(tiny):
    config = tiny(warm_start={"teacher": "perfect", "distill": 1.0})
    group, workers = rollout_workers(config, 2)
    workers.play(replace(draw(config, 1), labelled=True))
    manifest = Manifest(workers.rows([]), np.zeros(0, np.int32), Layout(), np.zeros(3, np.int32))
    assert manifest.table.columns == LABELLED
    for number in range(2):
        shard = group.actors[number].actor._episodes.shard(manifest.numbers(number), LABELLED)
        labelled = shard.columns["targets"] < 0
        assert labelled.any() and shard.columns["mask"][labelled].all()
    workers.play(draw(config, 2))
    assert workers.rows([]).columns == LEARNED


def test_groups_of_further_rounds_are_held_and_told_in_the_order_of_their_numbers(tiny):
    # An untrained policy: most episodes are forfeited at once, so most groups are flat.
    config = tiny(rollout={"episodes": 16, "group_size": 4, "resample": 2}, algorithm={"name": "dapo"})
    told = []
    for count in (1, 3):
        _, workers = rollout_workers(config, count)
        groups = workers.play(draw(config, 1))
        whole = workers.whole(groups)
        assert [group.task for group in groups] == [group.task for group in whole]
        told.append([(one.task, one.seed, one.tokens.tolist()) for group in whole for one in group.trajectories])
    assert told[0] == told[1]
    assert 4 * 4 < len(told[0]) <= 4 * 4 * 3
