"""Rows that arrive damaged are named, and sent again."""

import pytest

from earl.config import PlacementConfig
from earl.dispatch.rows import Work
from earl.parallel.layout import Layout
from earl.placement.embedded import embedded
from earl.placement.peers import Peers, WorkerLost
from earl.placement.ray.actor_group import CallResults, Member
from earl.placement.ray.learner import LearnerActor
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.row_exchange import LEARNED, RowDispatcher
from tests.placement.test_dispatch import held


class Worker:
    """What has the rows, in this process."""

    def __init__(self, holdings):
        self.holdings, self.members = holdings, [Member("worker", None, node="another host")]

    def offer(self, known, checksums):
        import ray

        from earl.dispatch.transports import objects

        manifest = ray.get(known)
        shard = self.holdings.shard(manifest.numbers(0), LEARNED)
        return [objects.offer(manifest.plan(), 1, shard, checksums)]


class Ranks:
    """One learner rank, in this process."""

    def __init__(self, take):
        self.members = [
            Member("rank", type("Rank", (), {"exchange": type("Method", (), {"remote": staticmethod(take)})}))
        ]

    def __len__(self):
        return 1

    def ask(self, stage, call, numbers):
        return CallResults({number: call(self.members[number].actor, number) for number in numbers})


class Notes:
    """Who hears of events."""

    def turn(self, group):
        pass

    def __init__(self):
        self.told = []

    def note(self, kind, message):
        self.told.append((kind, message))


def sent(ray, groups, damaged, checksums=True):
    """Send rows of which a bit flips on the way the first so many times: what the rank has, and what was told."""
    (holdings,), table = held(groups, 1)
    rank, notes, times = LearnerActor(), Notes(), []
    rank._budget = Budget(None)

    def take(known, number, checked, by_source):
        times.append(1)
        if len(times) <= damaged:
            ((source, reference),) = by_source.items()
            message = ray.get(reference).copy()
            message[7] ^= 1
            by_source = {source: ray.put(message)}
        return rank.exchange(ray.get(known), number, checked, by_source)

    settings = PlacementConfig(transport="objects", checksums=checksums)
    dispatcher = RowDispatcher(Worker(holdings), Ranks(take), Layout(), Work(), settings, notes)
    dispatcher.send(table, 7, 2)
    return rank._rows, notes.told


@pytest.mark.slow
def test_a_flipped_bit_is_named_and_the_rows_are_sent_again(ray, tiny):
    groups = embedded(tiny(agent={"history": "board_only"}), Peers()).rollout(1)
    whole, none = sent(ray, groups, damaged=0)
    again, told = sent(ray, groups, damaged=2)
    assert (none, len(told)) == ([], 2)
    assert told[0][0] == "dispatch" and "process 1 (host 1)" in told[0][1] and "checksum differs" in told[0][1]
    assert again.tokens.tolist() == whole.tokens.tolist() and again.logprobs.tolist() == whole.logprobs.tolist()
    with pytest.raises(WorkerLost, match=r"checksum differs.* this was tried 3 times"):
        sent(ray, groups, damaged=3)
    # Unasked for, nobody looks: the first column is that of the tokens.
    assert sent(ray, groups, damaged=1, checksums=False)[0].tokens.tolist() != whole.tokens.tolist()
