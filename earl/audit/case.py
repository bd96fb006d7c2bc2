"""One stored step under audit, with the data that its checks share."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property

from earl.audit.diagnosis import diagnose
from earl.audit.findings import Fault, Finding, Said, Unchecked
from earl.audit.rebuild import Replay, Slot, rebuild, slots_of
from earl.audit.run import AuditedRun, StoredStep
from earl.group import Group
from earl.trajectory import TrainingRecord


class Case:
    def __init__(self, run: AuditedRun, file: StoredStep) -> None:
        self.run, self.file, self.step = run, file, file.step
        self.findings: list[Finding] = []  # of the checks so far
        self.slots = slots_of(run.config, file.step)
        stored = file.trajectories
        numbers = {slot: number for number, slot in enumerate(self.slots)}
        own = [Slot(episode.task, episode.seed) for episode in stored]
        self.taken = [numbers.get(slot) for slot in own]
        """Number of the slot of each stored episode; None if its task and seed match no slot of the step."""
        world = run.world_at(self.step)
        self.replays = [
            rebuild(
                world, self.step, index, stored[index], [slot] if taken is not None else [*self.slots[index:][:1], slot]
            )
            for index, (slot, taken) in enumerate(zip(own, self.taken, strict=True))
        ]
        actions = Counter(turn.action for episode in stored for turn in episode.turns if turn.action is not None)
        frequent = [action for action, _ in actions.most_common()]
        self.diagnoses = [diagnose(replay, frequent) for replay in self.replays]

    @cached_property
    def twins(self) -> dict[int, int]:
        """Duplicate episode → the episode with the same task and seed that is in the right place."""
        twins = {}
        for index, slot in enumerate(self.taken):
            if slot is not None:
                rightful = slot if self.taken[slot : slot + 1] == [slot] else self.taken.index(slot)
                if index != rightful:
                    twins[index] = rightful
        return twins

    @property
    def told(self) -> set[int | None]:
        """Episodes in which the checks so far found something; None stands for the whole step."""
        return {finding.episode for finding in self.findings}

    def finding(self, fault: Fault, message: str, episode: int | None = None) -> Finding:
        return Finding(fault, message, self.step, episode)

    @cached_property
    def sound(self) -> list[Replay]:
        """The episodes whose tokens match their replay, with other columns of the same length; their tokens and turns
        are known from the replay, even if other parts of the file are wrong."""
        return [replay for replay in self.replays if self._whole(replay)]

    def _whole(self, replay: Replay) -> bool:
        stored = replay.stored
        same = len({len(stored.tokens), len(stored.authors), len(stored.logprobs), len(stored.versions)}) == 1
        told = [finding.fault for finding in self.diagnoses[replay.index]]
        return same and replay.same_tokens and not replay.waiting and Fault.REENCODED_ACTION not in told

    def true_groups(self) -> list[Group]:
        """The groups as they were played. Raises Unchecked if an episode is unknown, missing or duplicated."""
        size, reencoded = self.run.config.rollout.group_size, Fault.REENCODED_ACTION
        known = len(self.replays) == len(self.slots) and tuple(replay.slot for replay in self.sound) == self.slots
        if not known or any(finding.fault is reencoded for finding in self.findings):
            raise Unchecked("not all episodes of the step can be told")
        played = [replay.played for replay in self.sound]
        return [Group(tuple(played[start : start + size])) for start in range(0, len(played), size)]

    @property
    def experiences(self) -> tuple[TrainingRecord, ...]:
        """One for each stored episode. Raises Unchecked if the file has none."""
        if not self.file.experiences:
            raise Unchecked("the file does not say what was learned from")
        return self.file.experiences

    def sound_experiences(self) -> list[tuple[Replay, TrainingRecord]]:
        told = self.experiences
        return [(replay, told[replay.index]) for replay in self.sound if replay.index < len(told)]


Check = Callable[[Case], Iterable[Said]]
