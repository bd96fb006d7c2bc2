"""Which episodes a step plays: tasks drawn by the shares of opponents and seats, their seeds and environments."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain
from random import Random
from typing import Any, cast

from earl.agents.chat import Chat
from earl.agents.scripted.base import Agent
from earl.agents.scripted.registry import AFTER, EXPLOITER, SELF, is_policy, is_self
from earl.config import Config
from earl.envs import registry
from earl.envs.base import TextEnv
from earl.envs.games.env import BoardGameEnv, SharedSeat
from earl.errors import EarlError, boundary
from earl.rollout.env_process import Isolation, make
from earl.rollout.episode import Episode, Rules
from earl.rollout.opponents import EMPTY, OpponentPool, VisitedPosition, draw_starts, exploiter_task
from earl.rollout.self_play import LateSeat, PairedEpisodes
from earl.seeds import derive
from earl.trajectory import FAULTS, Outcome, Played, PlayedGroups, Task

EVALUATION = "evaluation"
"""Seeds derived from this word are held out: training never sees them. A run selects its best weights by them."""
OTHER_SEAT = 1 << 31
"""Sets the sessions of the second seat apart; more than the episodes of a step."""


@dataclass(frozen=True, slots=True)
class EpisodeFactory:
    """Makes the episodes of a run. `others` makes those of its other environments, by their names."""

    env: str
    options: Mapping[str, Any]
    chat: Chat
    rules: Rules
    delay_seconds: float = 0.0  # median of simulated waits before the environment's answers
    isolation: Isolation | None = None  # environments in processes of their own
    others: "Mapping[str, EpisodeFactory]" = field(default_factory=dict)
    sandbox: Mapping[str, Any] = field(default_factory=dict)  # the recipe's, for environments that run programs
    random_replies: int = 0  # of one seat against SELF, at most
    levels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options of tasks, by what these name
    checkpoints: "Callable[[str], EpisodeFactory] | None" = None  # how an opponent's checkpoint plays, by its name
    teacher: Agent | None = None  # labels the policy's turns in games and tasks that are learned from

    @property
    def seats(self) -> int:
        """2 for games, 1 for tool tasks."""
        return registry.seats(self.env)

    def of(self, env: str) -> "EpisodeFactory":
        return self.others.get(env, self)

    def changed(self, change: "Callable[[EpisodeFactory], EpisodeFactory]") -> "EpisodeFactory":
        """With a change to each environment's."""
        return replace(change(self), others={name: change(other) for name, other in self.others.items()})

    def episode(self, task: Task, seed: int, session: int, opponent: object = None) -> Episode:
        """A new episode of a task; `opponent` replaces the task's."""
        world, env = self.of(task.env), cast(Any, None)
        with boundary() as fault:
            env = world.make(task, opponent)
        if fault.message:
            env = FailedEnv(fault.message)
        return Episode(env, world.chat, world.rules, task, seed, session, world.delay_seconds)

    def game(self, task: Task, seed: int, session: int) -> Episode | PairedEpisodes:
        """A new episode of a task; where its opponent is a policy, both seats of the game."""
        if not is_policy(task.opponent):
            episode = self.episode(task, seed, session)
            episode.teacher = self.of(task.env).teacher
            return episode
        board, late = self._board(task, seed)
        return PairedEpisodes(board, partial(self._seat, task, seed, session), late.move, task.seed)

    def _board(self, task: Task, seed: int) -> tuple[BoardGameEnv, LateSeat]:
        world = self.of(task.env)
        board = board_game(task.env, world.options)
        late = Random(f"late {task.seed}").randint(0, world.random_replies) if task.opponent == SELF else 0
        opening = task.opponent.removeprefix(AFTER) if task.opponent.startswith(AFTER) else ""
        return board, LateSeat(1 - task.seat, late, Random(f"opponent {seed}"), opening)

    def passed(self, task: Task, seed: int, ended: Mapping[int, Played]) -> Iterator[VisitedPosition]:
        """The positions of a game against SELF in which the policy was to move, by playing it again. ended: episodes by
        their seeds, those of its seats among them."""
        own = [ended.get(derive(seed, "seat", seat)) for seat in (0, 1)]
        left = [[turn.action for turn in one.turns if turn.action is not None] if one else [] for one in own]
        board, late = self._board(task, seed)
        board.begin(task.seed)
        while True:
            late.move(board)
            if board.over or (mover := own[board.player]) is None or mover.stop in FAULTS:
                return
            lost = mover.outcome is Outcome.LOSS and not mover.bootstrapped
            yield VisitedPosition(task.env, board.seen_by(board.player)[0], " ".join(board.moves), lost)
            if not (actions := left[board.player]):
                return
            board.move(board.plain_action(actions.pop(0)))

    def _seat(self, task: Task, seed: int, session: int, env: SharedSeat) -> Episode:
        """The episode of one of both seats: of the policy, or of the checkpoint that is its opponent."""
        learns = is_self(task.opponent) or env.seat == task.seat
        world = self if learns or self.checkpoints is None else self.checkpoints(task.opponent)
        world = world.of(task.env)
        if not learns:
            world.take_seat(env, task.opponent)
        own, number = replace(task, seat=env.seat), derive(seed, "seat", env.seat)
        session += OTHER_SEAT * env.seat
        episode = Episode(env, world.chat, world.rules, own, number, session, self.delay_seconds)
        episode.policy, episode.teacher = ("", self.of(task.env).teacher) if learns else (task.opponent, None)
        return episode

    def take_seat(self, seat: SharedSeat, name: str) -> None:
        """Show a board to a seat as this environment's are shown, in which `name` was trained. Its options may have
        grown since. Raises EarlError for a board of another game."""
        game, met = board_game(self.env, self.options).game, seat.board.game
        if game.name != met.name:
            raise EarlError(f"{name!r} plays {game.name}, not {met.name}; name a run of the same environment")
        if game.play == met.play:
            seat.show_as(game)

    def make(self, task: Task, opponent: object = None) -> TextEnv:
        if opponent is not None:
            return registry.make(self.env, seat=task.seat, opponent=opponent, **self.options)
        seat = {"seat": task.seat, "opponent": task.opponent} if self.seats == 2 else {}
        sandbox = {"sandbox": self.sandbox} if registry.takes(self.env, "sandbox") else {}
        level = self.levels.get(task.opponent, {})
        return make(self.env, {**self.options, **level, **sandbox}, self.isolation, **seat)


def board_game(env: str, options: Mapping[str, Any]) -> BoardGameEnv:
    """A new board. Raises EarlError for what is no board game of earl's."""
    board = registry.make(env, **options)
    if not isinstance(board, BoardGameEnv):
        raise EarlError(f"{env} is no board game of earl's; players of it do not meet here")
    return board


class FailedEnv:
    """Stands for an environment whose construction failed: its episode ends by that fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def reset(self, **_: object) -> None:
        raise EarlError(self._fault)


@dataclass(frozen=True, slots=True)
class Draw:
    """The groups of a step, before they are played."""

    step: int
    tasks: Sequence[Task]  # one per group
    seed: int  # seeds the episodes, see `episode_seed`
    labelled: bool = False  # whether the teacher labels the turns
    others: Sequence[Task] = ()
    """In rounds of as many: what is played next where a group teaches nothing; numbered on from `tasks`."""

    @property
    def slots(self) -> list[Sequence[Task]]:
        """Of each group its task and those of the rounds after it."""
        return [(*self.tasks, *self.others)[slot :: len(self.tasks)] for slot in range(len(self.tasks))]


def draw(config: Config, step: int, pool: OpponentPool = EMPTY) -> Draw:
    """The tasks of a step. Where opponents do not depend on the run's course, they follow from recipe and step alone,
    and so are known ahead of time."""
    seed = derive(config.run.seed, "rollout", step)
    others = [derive(seed, "round", number) for number in range(config.rollout.resample)]
    course = config.course(step)
    # A round's tasks are drawn opponent by opponent; in a slot, another opponent should follow.
    drawn = (Random(own).sample(_draw_round(config, pool, course, own), config.rollout.prompts) for own in others)
    return Draw(step, _draw_round(config, pool, course, seed), seed, pool.labelled, [*chain.from_iterable(drawn)])


def _draw_round(config: Config, pool: OpponentPool, course: float, seed: int) -> Sequence[Task]:
    tasks = draw_tasks(opponents(config, pool, course), config.rollout.prompts, seed)
    for name, env in config.env.each.items():
        tasks = _with_restarts(tasks, name, env.restarts, pool, Random(f"starts of {name} {seed}"))
    return [exploiter_task(task, pool.lost, Random(f"exploiter {task.seed}")) for task in tasks]


def _with_restarts(tasks: Sequence[Task], env: str, share: float, pool: OpponentPool, rng: Random) -> list[Task]:
    """The tasks, with that share of an environment's games against SELF begun at positions of the pool."""
    chosen = [number for number, task in enumerate(tasks) if (task.env, task.opponent) == (env, SELF)]
    chosen = rng.sample(chosen, round(share * len(chosen)))
    found = dict(zip(chosen, draw_starts(pool.starts, env, len(chosen), rng), strict=False))
    return [replace(task, opponent=found.get(number, task.opponent)) for number, task in enumerate(tasks)]


def opponents(
    config: Config, pool: OpponentPool = EMPTY, course: float = 0.0, taught: bool = False
) -> dict[str, dict[str, float]]:
    """Environment → opponent, or level of a task, → share of the groups, once that share of the run is done; "" where a
    task has none. `taught`: those of the warm start, which are scripted: random where [env] names policies alone."""
    shares = [1.0, *(other.share for other in config.env.others)]
    found = {}
    for share, one in zip(shares, config.each_env(), strict=True):
        met = pool.shares(one.env, course) or {"": 1.0}
        if taught:
            scripted = {name: part for name, part in met.items() if not is_policy(name) and name != EXPLOITER}
            met = one.warm_start.opponents or scripted or {"random": 1.0}
        found[one.env.name] = {name: share * part / sum(met.values()) for name, part in met.items()}
    return found


def draw_tasks(opponents: Mapping[str, Mapping[str, float]], count: int, seed: int) -> list[Task]:
    """`count` tasks whose environments, opponents and seats match their shares, as nearly as whole numbers allow.

    Systematic sampling: `count` evenly spaced points, shifted by one random offset, select from the cells environment ×
    opponent × seat laid end to end by their shares. Over many steps every cell gets exactly its share.
    """
    cells = [
        (env, name, seat, share / registry.seats(env))
        for env, met in opponents.items()
        for name, share in met.items()
        for seat in range(registry.seats(env))
    ]
    ends = [*accumulate(share for *_, share in cells)]
    offset = derive(seed, "offset") / 2**63
    drawn = []
    for number in range(count):
        point = (number + offset) / count * ends[-1]
        env, name, seat, _ = cells[min(bisect_right(ends, point), len(cells) - 1)]
        drawn.append(Task(env, derive(seed, "task", number), seat, name))
    return drawn


def group_episodes(
    world: EpisodeFactory, tasks: Mapping[int, Task], size: int, seed: int, first_session: int = 0
) -> list[Episode | PairedEpisodes]:
    """`size` episodes of every task, group after group.
    `tasks` are keyed by their number in the step, so that seeds do not depend on the process that plays them."""
    return [
        world.game(task, episode_seed(seed, number, member), first_session + number * size + member)
        for number, task in tasks.items()
        for member in range(size)
    ]


def episode_seed(seed: int, number: int, member: int) -> int:
    return derive(seed, "episode", number, member)


def passed(world: EpisodeFactory, drawn: Draw, size: int, groups: PlayedGroups) -> Iterator[VisitedPosition]:
    """The positions of a step's games against SELF in which the policy was to move. size: of a group."""
    ended = {played.seed: played for group in groups for played in group.trajectories}
    for number, task in enumerate((*drawn.tasks, *drawn.others)):
        if is_self(task.opponent):
            for member in range(size):
                yield from world.passed(task, episode_seed(drawn.seed, number, member), ended)
