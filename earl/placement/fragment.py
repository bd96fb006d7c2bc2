"""The rollout fragment: a sampler, and the episodes, demonstrations and matches that are played with it.

Every placement has one or more. Each plays its share; `Players` splits the work and joins the results.

`warm_start.data` is imitated in place of a scripted teacher: episodes of another run, or chats.

    chats.jsonl          a line for each, {"messages": [{"role": "user", "content": …}, {"role": "assistant", …}, …]}
    step-000010.parquet  what a run kept of a step in its folder `trajectories`; a folder: all of its files

Of a run's episodes the won and drawn ones are learned from, and of these the replies that were legal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from earl import evaluation
from earl.actions.pool import core_use, pool
from earl.agents.chat import Chat
from earl.agents.parser import Unreadable, parse, parser
from earl.agents.scripted.registry import RUN, agent
from earl.config import Config
from earl.engine.local import LocalSampler
from earl.engine.model import load
from earl.engine.sampler import Sampler, Truncation
from earl.engine.samplers import Batcher
from earl.envs.registry import check_edition, schemas
from earl.errors import EarlError
from earl.evaluation import Match
from earl.matches import MatchResult
from earl.recipe import build
from earl.rollout.drivers import BatchSampler, Greedy, Playable, PromptSampler, demonstrate, play
from earl.rollout.env_process import isolation
from earl.rollout.episode import Rules, TokenLog
from earl.rollout.pack import OrderedRows, by_seat, contexts, joined, learnable, num_rows, pack
from earl.rollout.tasks import EpisodeFactory, group_episodes
from earl.runs import trajectories
from earl.runs.folder import open_run
from earl.runs.storage import storage
from earl.runs.summary import chosen_checkpoint, context_limit
from earl.seeds import derive
from earl.trajectory import Author, Completion, Group, Labels, Outcome, Prompt, StopReason, Task, Trajectory, Turn

FORM = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


Demonstrations = Sequence[tuple[Trajectory, Labels]]


def demonstrations(path: Path, chat: Chat, rules: Rules) -> Demonstrations:
    """Read demonstrations from a file or folder, in a tokenizer's tokens.
    Raises EarlError for a file that is missing, has nothing to learn from, or has a reply that the rules cut off."""
    if not path.exists():
        raise EarlError(f"warm_start.data = {str(path)!r} is not here; name a file that every node has")
    found, read = [], _read_chats if path.suffix == ".jsonl" else _read_trajectories
    with storage(path):
        for place, episode, labels in read(path, chat, rules):
            _check_length(place, episode, labels, rules)
            found.append((episode, labels))
    if not found:
        raise EarlError(f"warm_start.data = {str(path)!r} has nothing to learn from; name chats, or won episodes")
    return found


def _check_length(place: str, episode: Trajectory, labels: Labels, rules: Rules) -> None:
    longest = max(turns[-1][1].end - turns[-1][1].context_start for turns in contexts(episode))
    said = max(map(len, labels.values()), default=0)
    sizes = {"context.limit": (longest, rules.context_limit), "agent.max_turn_tokens": (said, rules.max_turn_tokens)}
    for key, (size, limit) in sizes.items():
        if size > limit:
            raise EarlError(f"{place} takes {size} tokens, more than {key} = {limit}; set {key} to at least {size}")


Found = Iterator[tuple[str, Trajectory, Labels]]


def _read_trajectories(path: Path, chat: Chat, rules: Rules) -> Found:
    for file in trajectories.files(path) if path.is_dir() else [path]:
        _, groups = trajectories.read(file)
        for number, episode in enumerate(one for group in groups for one in group.trajectories):
            if episode.outcome is not Outcome.LOSS:
                yield f"episode {number} of {file}", episode, _legal_replies(episode, chat, rules)


def _legal_replies(episode: Trajectory, chat: Chat, rules: Rules) -> Labels:
    """The legal replies of an episode. Raises EarlError where they do not read as the actions that they were."""
    opened, labels = rules.thinking and chat.opens_thinking, {}
    for number, turn in enumerate(episode.turns):
        tokens = episode.tokens[turn.action_start : turn.end].tolist()
        if turn.action is None:
            continue
        try:
            reply = parse(chat.decode(tuple(tokens)), thinking=rules.thinking, opened=opened)
            read = parser(rules.parser).action(reply.action)
        except Unreadable:
            read = None
        if read != turn.action:
            raise EarlError(
                f"the action {turn.action!r} of warm_start.data reads as {read!r}: another tokenizer or agent.parser "
                "wrote it; name episodes of the same model and parser"
            )
        labels[number] = tokens
    return labels


def _read_chats(path: Path, chat: Chat, rules: Rules) -> Found:
    del rules
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            place = f"line {number} of {path}"
            yield place, *_conversation(_messages(line, place), chat)


def _messages(line: str, place: str) -> list[dict[str, str]]:
    """The messages of a line, a system message first. Raises EarlError unless user and assistant take turns."""
    try:
        parsed: Any = json.loads(line)["messages"]
        messages: list[Any] = [{"role": one["role"], "content": one["content"]} for one in parsed]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EarlError(f"{place} is no chat ({type(error).__name__}: {error}); write {FORM}") from None
    if any(not isinstance(value, str) for message in messages for value in message.values()):
        raise EarlError(f"{place} has a role or a content that is no text; write {FORM}")
    roles = [message["role"] for message in messages]
    if roles[:1] != ["system"]:
        messages, roles = [{"role": "system", "content": ""}, *messages], ["system", *roles]
    asked, answered = roles[1::2], roles[2::2]
    known = {*asked} <= {"user", "tool"} and {*answered} == {"assistant"}
    if not known or asked[0] != "user" or len(asked) != len(answered):
        named = ", ".join(roles)[:200]
        raise EarlError(f"{place} has the roles {named}; let a user (later also a tool) and the assistant take turns")
    return messages


def _conversation(messages: Sequence[Mapping[str, str]], chat: Chat) -> tuple[Trajectory, Labels]:
    """A chat as an episode whose replies are all learned."""
    said = [message["content"] for message in messages]
    token_log, turns, labels = TokenLog(), [], {}
    for number, (content, reply) in enumerate(zip(said[1::2], said[2::2], strict=True)):
        start, tokens = len(token_log), chat.written(reply)
        role = messages[2 * number + 1]["role"]
        token_log.give(chat.reply(role, content, True) if number else chat.opening(said[0], content))
        begun, many = len(token_log), len(tokens)
        token_log.write(Completion(tokens, [0.0] * many, [0] * many, True), bytes([Author.ACTION]) * many)
        turns.append(Turn(0, start, begun, len(token_log), reply, 0.0, 0.0))
        labels[number] = tokens
    ended = (StopReason.FINISHED, Outcome.WIN, 0)
    return Trajectory(Task("", 0), 0, *token_log.columns(), tuple(turns), *ended), labels


def episode_factory(config: Config, tokenizer: Any, limit: int | None = None) -> EpisodeFactory:
    """The episodes of a recipe, for a tokenizer; `limit` replaces the recipe's first context limit."""
    agent = config.agent
    rules = Rules(**agent.model_dump(), context_limit=limit or config.context.first_limit)
    examples = [example.model_dump() for example in agent.examples]
    plain = Chat(tokenizer, agent.chat_template_kwargs, agent.system_prompt, examples)
    worlds = {}
    for env in config.env.each.values():
        check_edition(env.name, config.env.edition)
        tools = schemas(env.name)
        chat = Chat(tokenizer, agent.chat_template_kwargs, agent.system_prompt, examples, tools) if tools else plain
        shared = (chat, rules, env.delay_seconds, isolation(env))
        sandbox = config.sandbox.model_dump()
        own: dict[str, Any] = {"sandbox": sandbox, "random_replies": env.random_replies, "levels": env.leveled}
        worlds[env.name] = EpisodeFactory(env.name, env.options, *shared, **own)
    return replace(worlds.pop(config.env.name), others=worlds, checkpoints=lambda name: load_opponent(name)[0])


LOADED = 16
"""Opponents' checkpoints that stay loaded."""


@lru_cache(maxsize=LOADED)
def load_opponent(name: str) -> tuple[EpisodeFactory, Sampler]:
    """The checkpoint run:NAME@STEP, to play as it did in its run, which lies in the folder `runs` or at the path NAME.
    Raises EarlError where this node does not have it."""
    run, at, step = name.removeprefix(RUN).rpartition("@")
    if not at:
        raise EarlError(f"opponent {name!r} is not of the form run:NAME@STEP, such as run:tictactoe-1@200")
    folder = open_run(Path("runs"), run)
    saved, config = chosen_checkpoint(folder, step), build(folder.recipe())
    policy = load(saved.path)
    sampler = LocalSampler(policy, config.rollout.temperature, truncation=Truncation.of(config.rollout))
    return episode_factory(config, policy.tokenizer, context_limit(saved)), Batcher(sampler)


class WithOpponents:
    """A sampler together with those of checkpoints that are opponents: a prompt goes to the sampler of its policy.
    known: samplers of further policies, by name."""

    def __init__(self, sampler: BatchSampler, known: Mapping[str, BatchSampler] = MappingProxyType({})) -> None:
        self._sampler, self._known = sampler, known
        self._met: set[str] = set()

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        found: dict[int, Completion] = {}
        for policy in {prompt.policy: None for prompt in prompts}:
            own = {number: prompt for number, prompt in enumerate(prompts) if prompt.policy == policy}
            found |= zip(own, self.of(policy).generate([*own.values()]), strict=True)
        return [found[number] for number in range(len(prompts))]

    def release(self, sessions: Sequence[int]) -> None:
        for policy in ("", *self._met):
            self.of(policy).release(sessions)

    def of(self, policy: str) -> BatchSampler:
        if not policy:
            return self._sampler
        self._met.add(policy)
        return self._known[policy] if policy in self._known else load_opponent(policy)[1]


class StreamsWithOpponents(WithOpponents):
    """The same over a sampler that completes single prompts."""

    async def complete(self, prompt: Prompt) -> Completion:
        sampler = self.of(prompt.policy)
        assert isinstance(sampler, PromptSampler), "checkpoints are behind a Batcher"
        return await sampler.complete(prompt)


def with_opponents(sampler: BatchSampler) -> WithOpponents:
    return StreamsWithOpponents(sampler) if isinstance(sampler, PromptSampler) else WithOpponents(sampler)


def read_warm_start(config: Config, world: EpisodeFactory) -> Demonstrations:
    """The demonstrations of a warm start; none where it imitates a teacher. Raises EarlError as `demonstrations`
    does."""
    warm = config.warm_start
    return demonstrations(Path(warm.data), world.chat, world.rules) if warm.steps and warm.data else ()


def group_of(episodes: Sequence[Playable]) -> Group:
    """The trajectories of a task's episodes, by seat where these have both."""
    played = [own.trajectory() for episode in episodes for own in episode.learners()]
    return Group(tuple(sorted(played, key=lambda trajectory: trajectory.task.seat)))


class RolloutFragment:
    """Plays with one copy of the policy, or with several behind one `Sampler`."""

    def __init__(self, config: Config, tokenizer: Any, sampler: Sampler) -> None:
        self.config = config
        self.world = episode_factory(config, tokenizer)
        self._shown = read_warm_start(config, self.world)
        self.sampler = sampler
        self._kept: list[OrderedRows] = []  # demonstrations so far, where they are aggregated
        self.costs: Mapping[str, float] = {}  # costs of the last groups, by metric name
        self._learnable = learnable(config)

    def play(
        self, step: int, slots: Mapping[int, Sequence[Task]], seed: int, labelled: bool = False
    ) -> dict[int, Group]:
        """Groups of episodes by their number in the step: of each slot its first task, and those after it as long as
        nothing can be learned of the one before. `slots` by number, see `Draw`; labelled: ask the teacher beside."""
        self.sampler.most_waves()  # forgets those of before
        self._kept = []
        world, played = with_growth(self.world, self.config, step), dict[int, Group]()
        world = with_teacher(world, self.config) if labelled else world
        first, left = 0, {**slots}
        while left:
            found = self._round(world, {first + slot: tasks[0] for slot, tasks in left.items()}, seed)
            played |= found
            informative = {slot for slot in left if self._learnable.learned(by_seat([found[first + slot]]))}
            left = {slot: tasks[1:] for slot, tasks in left.items() if tasks[1:] and slot not in informative}
            first += self.config.rollout.prompts
        calls = [call for group in played.values() for one in group.trajectories for call in one.tools]
        waves = self.sampler.most_waves()
        self.costs = {} if waves is None else {"sampler/waves": float(waves)}
        self.costs = {**self.costs, **core_use(calls, len(pool().cores))}
        return played

    def _round(self, world: EpisodeFactory, tasks: Mapping[int, Task], seed: int) -> dict[int, Group]:
        size = self.config.rollout.group_size
        episodes = group_episodes(world, tasks, size, seed)
        play(episodes, with_opponents(self.sampler))
        starts = range(0, len(episodes), size)
        return {number: group_of(episodes[start : start + size]) for number, start in zip(tasks, starts, strict=True)}

    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> OrderedRows:
        """The teacher's rows for the tasks under a context limit of `limit`, or those of warm_start.data, and the task
        number of each, [N]. With warm_start.aggregate a task is played once, and its rows are kept."""
        known = {number for _, order in self._kept for number in order.tolist()}
        new = {number: task for number, task in tasks.items() if number not in known}
        rows = self._demonstrate(new, seed, limit)
        if not self.config.warm_start.aggregate:
            return rows
        self._kept = [joined([*self._kept, rows])]
        return self._kept[0]

    def _demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> OrderedRows:
        if self._shown:
            chosen = [self._shown[derive(seed, "data", number) % len(self._shown)] for number in tasks]
            played, labels = [trajectory for trajectory, _ in chosen], [own for _, own in chosen]
        else:
            world = with_context_limit(self.world, limit)
            played, labels = teacher_episodes(world, self.config, tasks, seed, self.config.warm_start.noise)
        order = np.repeat(np.array([*tasks], np.int64), [num_rows(trajectory) for trajectory in played])
        return pack(played, labels), order

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        sampler, trees = Greedy(with_opponents(self.sampler)), evaluation.Trees()
        return [evaluation.evaluated(self.world, sampler, match, 0, trees)[0] for match in matches]

    def limit(self, tokens: int) -> None:
        self.world = with_context_limit(self.world, tokens)


def teacher_episodes(
    world: EpisodeFactory, config: Config, tasks: Mapping[int, Task], seed: int, noise: float
) -> tuple[list[Trajectory], list[Labels]]:
    """The teacher's episodes of tasks, by their numbers, and its labels. noise: see `drivers.demonstrate`."""
    teachers = {one.env.name: one.warm_start.teacher for one in config.each_env()}
    blind = {env for env, teacher in teachers.items() if teacher == "random"}  # others see an environment's state
    world = world.changed(lambda own: own if own.env in blind else replace(own, isolation=None))
    episodes = [world.episode(task, derive(seed, "episode", number), number) for number, task in tasks.items()]
    agents = {env: (agent(teacher, env), agent("random", env)) for env, teacher in teachers.items()}
    return demonstrate(episodes, agents, noise)


def with_teacher(world: EpisodeFactory, config: Config) -> EpisodeFactory:
    """The factory with a teacher that labels each turn of the policy."""
    teachers = {one.env.name: one.warm_start.teacher for one in config.each_env()}
    return world.changed(lambda own: replace(own, teacher=agent(teachers[own.env], own.env)))


def with_context_limit(world: EpisodeFactory, tokens: int) -> EpisodeFactory:
    return world.changed(lambda own: replace(own, rules=own.rules.model_copy(update={"context_limit": tokens})))


def with_growth(world: EpisodeFactory, config: Config, step: int) -> EpisodeFactory:
    """The factory with the options of environments at a step of training."""
    share, envs = config.course(step), config.env.each
    return world.changed(lambda own: replace(own, options=envs[own.env].options_at(share)))
