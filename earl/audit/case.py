"""One stored step under audit, with the data that its checks share."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from earl.audit.diagnosis import diagnose
from earl.audit.findings import Fault, Finding, Said, Spoken
from earl.audit.rebuild import Placing, Replay, Slot, place, rebuild, slots_of
from earl.audit.run import AuditedRun, StoredStep
from earl.group import Group
from earl.rollout.tasks import EpisodeFactory
from earl.trajectory import TrainingRecord, Trajectory


@dataclass
class Case:
    run: AuditedRun
    file: StoredStep
    world: EpisodeFactory = field(init=False)
    placing: Placing = field(init=False)
    replays: list[Replay] = field(init=False)
    diagnoses: dict[int, list[Finding]] = field(init=False)
    """Findings by episode; episodes without findings are left out."""
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        stored = self.file.trajectories
        self.world = self.run.world_at(self.step)
        self.placing = place(slots_of(self.run.config, self.step), stored)
        self.replays = [rebuild(self.world, i, episode, self._slots(i, episode)) for i, episode in enumerate(stored)]
        actions = [turn.action for episode in stored for turn in episode.turns if turn.action is not None]
        frequent = [action for action, _ in Counter(actions).most_common()]
        found = {replay.index: diagnose(self.world, replay, self.step, frequent) for replay in self.replays}
        self.diagnoses = {index: findings for index, findings in found.items() if findings}

    @property
    def step(self) -> int:
        return self.file.step

    def spoken(self, episode: int) -> Spoken:
        return Spoken(self.world.chat, self.step, episode)

    @property
    def told(self) -> set[int | None]:
        """Episodes in which the checks so far found something; None stands for the whole step."""
        return {finding.episode for finding in self.findings}

    def finding(self, fault: Fault, message: str, episode: int | None = None) -> Finding:
        return Finding(fault, message, self.step, episode)

    def sound(self) -> list[tuple[int, Trajectory]]:
        """The episodes whose tokens and turns are known; from the replay, even if other parts of the file are wrong."""
        return [(r.index, r.played) for r in self.replays if r.played is not None and self.whole(r)]

    def whole(self, replay: Replay) -> bool:
        """Whether an episode's tokens match its replay, and its other columns have the same length."""
        stored = replay.stored
        same = len({len(stored.tokens), len(stored.authors), len(stored.logprobs), len(stored.versions)}) == 1
        told = [finding.fault for finding in self.diagnoses.get(replay.index, ())]
        return same and replay.same_tokens and not replay.waiting and Fault.REENCODED_ACTION not in told

    def true_groups(self) -> list[Group] | None:
        """The groups as they were played; None if an episode is unknown, missing or duplicated."""
        size = self.run.config.rollout.group_size
        if any(finding.fault is Fault.REENCODED_ACTION for finding in self.findings):
            return None
        if self.placing.twins or len(self.replays) != len(self.placing.slots) or len(self.sound()) != len(self.replays):
            return None
        if any(replay.slot != slot for replay, slot in zip(self.replays, self.placing.slots, strict=True)):
            return None
        played = [trajectory for _, trajectory in self.sound()]
        return [Group(tuple(played[start : start + size])) for start in range(0, len(played), size)]

    def experiences(self) -> list[tuple[Replay, TrainingRecord]]:
        return [(r, e) for r, e in zip(self.replays, self.file.experiences, strict=False) if self.whole(r)]

    def _slots(self, index: int, stored: Trajectory) -> list[Slot]:
        """Task and seed, first as derived from the run's seed, then as stored."""
        own, slots, taken = Slot(stored.task, stored.seed), self.placing.slots, self.placing.taken[index]
        if taken is not None:
            return [own]
        return [slots[index], own] if index < len(slots) else [own]


Check = Callable[[Case], Iterable[Said]]
