"""Checks that the model can play: prompts fit, actions can be written, the chat template works."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from earl.agents.chat import Chat
from earl.agents.parser import THINK_OPEN, ActionParser, Unreadable, parse, parser
from earl.agents.scripted import registry as scripted
from earl.agents.scripted.base import Agent, ScriptedPlayer
from earl.agents.scripted.registry import AFTER, ANY, EXPLOITER, PAST, RUN, SELF, agent, is_policy, player
from earl.algorithms.registry import algorithm_of
from earl.config import AlgorithmConfig, Config, OneEnvConfig, ToolsConfig
from earl.engine.model import Policy
from earl.envs import registry
from earl.envs.base import TextEnv
from earl.envs.check import play, playable
from earl.envs.games.env import BoardGameEnv, SharedSeat
from earl.errors import EarlError, outside, setting, unknown
from earl.evaluation import matches
from earl.parallel.memory import ModelShape
from earl.placement.fragment import episode_factory, load_opponent, read_warm_start
from earl.recipe import made_by_earl
from earl.rollout.env_process import Isolation, isolation, make
from earl.rollout.tasks import EVALUATION, EpisodeFactory
from earl.sandbox.local import LocalSandbox
from earl.seeds import derive
from earl.trajectory import Task

GIVEN = {
    "seat": "both seats are played in turn",
    "opponent": "name opponents in [env.opponents]",
    "sandbox": "set the keys of [sandbox]",
}
"""Arguments of an environment that come from the episode."""


def check_environment(config: Config) -> None:
    """Check environment, options, opponents, teacher, algorithm and history policy.
    Raises EarlError for an unknown name, or one that does not fit the environment."""
    env = config.env.name
    seats = registry.seats(env)
    with setting("agent.parser"):
        parser(config.agent.parser)
    with outside(f"env.options {config.env.options} of {env}", f"see `earl envs show {env}`"):
        for level in ({}, *config.env.leveled.values()):
            _check_options(env, {**config.env.options, **level}, isolation(config.env))
    options = config.env.options
    _check_opponents("env.opponents", config.env.opponents, env, options, needed=seats > 1)
    _check_restarts(config.env)
    _check_levels(config.env)
    if registry.takes(env, "sandbox"):
        sandbox = LocalSandbox(config.sandbox)
        sandbox.exec(["true"])
        sandbox.terminate()
    _check_known_ahead(config)
    _check_opponents("warm_start.opponents", config.warm_start.opponents, env, options, needed=False)
    _check_opponents("evaluate.opponents", config.evaluate.opponents, env, options, needed=seats > 1)
    _check_held_out(config)
    warm = config.warm_start
    if (warm.steps and not warm.data) or warm.distill:
        with setting("warm_start.teacher"):
            _check_plays(agent(warm.teacher, env), env, options)
    _check_distilled(config)
    if seats == 1 and config.agent.history == "board_only":
        raise EarlError(
            f"agent.history = 'board_only' forgets all but the last observation, which in {env} does not hold "
            "the task; it is for board games: set agent.history to 'full'"
        )
    _check_algorithm(config.algorithm, config)


def check_tools(config: Config) -> None:
    """Refuse a limit in [tools] of what no environment of a decided recipe calls, or that its processes cannot divide:
    each has the same part."""
    if config.tools == ToolsConfig():
        return
    if len({one.processes for one in config.env.each.values()}) > 1:
        raise EarlError("[tools] is divided by processes, and env.processes differs by environment; set it alike")
    processes = tool_processes(config)
    for name, most in config.tools.at_once.items():
        if most < processes:
            raise EarlError(
                f"tools.at_once.{name} = {most} is less than the {processes} processes that share it; "
                f"let {most} at most play, or set it to {processes}"
            )
    called = [schema["function"]["name"] for one in config.each_env() for schema in registry.schemas(one.env.name)]
    for key, limits in config.tools.model_dump().items():
        for name in limits:
            if name not in (*called, "prepare"):
                raise unknown(f"tool in tools.{key}", name, called)


def tool_processes(config: Config) -> int:
    """The processes that divide the limits in [tools] of a decided recipe."""
    return config.players * max(1, config.env.processes)


def check_batches(config: Config, embedded: bool) -> None:
    """Check that every process, update and micro-batch has data. Raises EarlError for contradictory sizes.
    An `embedded` run has `run.processes` processes."""
    rollout, learner, warm, place = config.rollout, config.learner, config.warm_start, config.placement
    groups = ("rollout.episodes / rollout.group_size", rollout.prompts)
    processes = config.run.processes if embedded else 1
    pairs = [
        ("learner.minibatches", learner.minibatches, "rollout.episodes", rollout.episodes),
        ("run.processes", processes, *groups),
        ("placement.samplers", place.samplers, *groups),
        ("placement.environments", place.environments, *groups),
        ("context.limit", config.context.first_limit, "learner.micro_batch_tokens", learner.micro_batch_tokens),
    ]
    if warm.steps:
        pairs += [
            ("warm_start.minibatches", warm.minibatches, "warm_start.episodes", warm.episodes),
            ("run.processes", processes, "warm_start.episodes", warm.episodes),
        ]
    for part, size, whole, room in pairs:
        if size > room:
            raise EarlError(f"{part} = {size} must not be larger than {whole} = {room}; lower it or raise the other")


def _check_options(env: str, options: Mapping[str, object], isolated: Isolation | None) -> None:
    """Options are known, have the type of their defaults, and give an environment that can be reset."""
    for option, cure in GIVEN.items():
        if option in options:
            raise EarlError(f"env.options.{option} is given by each episode; leave it out: {cure}")
    for option, default in registry.spec(env).options.items():
        given = options.get(option, default)
        if kind(given) != kind(default) and default is not None:
            raise EarlError(f"env.options.{option} = {given!r} must be {kind(default)}, as its default {default!r} is")
    make(env, options, isolated).reset(seed=0)


def kind(value: object) -> str:
    """The type of a setting in words; int and float are both numbers."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), type(value).__name__)


def _check_plays(player: object, env: str, options: Mapping[str, object]) -> None:
    """Raises EarlError for a scripted player that does not play a board of this size."""
    if isinstance(player, ScriptedPlayer):
        registry.make(env, **options, opponent=player)


def _check_opponents(key: str, names: Iterable[str], env: str, options: Mapping[str, Any], needed: bool) -> None:
    """Opponents exist, are unique, and are present if `needed`."""
    listed = list(names)
    if needed and not listed:
        raise EarlError(f"{key} is empty, but {env} needs an opponent; name one, such as random")
    for name in listed:
        if listed.count(name) > 1:
            raise EarlError(f"{key} names {name!r} twice; name each opponent once")
        if name == ANY and key == "evaluate.opponents":
            continue
        with setting(key):
            if is_policy(name):
                _check_policy(key, name, env, options)
            elif name.startswith(EXPLOITER):
                _check_exploiter(key, name, env, options)
            else:
                _check_plays(player(name, env), env, options)


def _check_held_out(config: Config) -> None:
    """Held-out opponents exist, and are met nowhere else."""
    held_out, warm = config.evaluate.held_out, config.warm_start
    _check_opponents("evaluate.held_out", held_out, config.env.name, config.env.options, needed=False)
    for key, met in (
        ("env.opponents", config.env.opponents),
        ("warm_start.opponents", warm.opponents),
        ("evaluate.opponents", config.evaluate.opponents),
    ):
        if known := [name for name in held_out if name in met]:
            raise EarlError(f"evaluate.held_out names {known[0]!r}, which {key} has too; leave it out of one of them")


def _check_known_ahead(config: Config) -> None:
    """Raises EarlError where games are drawn ahead of the learner, but their opponents depend on what it learned."""
    ahead = config.placement.max_staleness
    each = config.env.each.values()
    follows = any(one.prefer != "none" or one.restarts or EXPLOITER in one.opponents for one in each)
    if ahead and (config.pool_size or follows):
        raise EarlError(
            f"placement.max_staleness = {ahead}: tasks are drawn before it is known what the ones before taught, and "
            "which were lost; leave out the opponents 'past' and 'exploiter', env.prefer and env.restarts, or set it "
            "to 0"
        )


def _check_distilled(config: Config) -> None:
    """Raises EarlError where a teacher cannot be asked what it would do in the policy's states."""
    warm, env = config.warm_start, config.env
    against = {
        f"warm_start.data = {warm.data!r}": warm.data,
        f"env.processes = {env.processes}": env.processes and warm.teacher != "random",
        "the policy as an opponent": any(map(is_policy, env.opponents)),
    }
    for what, found in against.items():
        if warm.distill and found:
            raise EarlError(
                f"warm_start.distill = {warm.distill:g} asks a scripted teacher in each state of an episode against "
                f"scripted opponents, which {what} does not allow; leave one of the two out"
            )


def _check_levels(config: OneEnvConfig) -> None:
    """Raises EarlError for levels beside opponents or growth, and for a preference among fewer than two."""
    if config.levels and registry.seats(config.name) > 1:
        raise EarlError(
            f"env.levels is of tasks, and {config.name} is a game: name opponents of several strengths in env.opponents"
        )
    if grown := {*config.levels} & {*config.grow}:
        raise EarlError(f"env.levels.{grown.pop()} grows with env.grow too; leave it out of one of them")
    if config.prefer != "none" and len({**config.leveled, **config.opponents}) < 2 and PAST not in config.opponents:
        raise EarlError(
            f"env.prefer = {config.prefer!r} chooses among levels or opponents, and there are no two of them; name "
            "more in env.levels or env.opponents, or leave it out"
        )


def _check_restarts(config: OneEnvConfig) -> None:
    """Raises EarlError where no game can begin at a position of another one."""
    if config.restarts and SELF not in config.opponents:
        raise EarlError(
            f"env.restarts = {config.restarts:g} is of the games against 'self', and env.opponents does not name it; "
            "add it, or set env.restarts to 0"
        )
    if config.restarts and getattr(registry.make(config.name, **config.options), "dealt", False):
        raise EarlError(
            f"env.restarts = {config.restarts:g}: {config.name} begins by chance, and the moves of a game do not tell "
            "its positions; set it to 0"
        )


def _check_exploiter(key: str, name: str, env: str, options: Mapping[str, object]) -> None:
    """Raises EarlError for a game whose moves do not tell its positions, and outside of training."""
    if key != "env.opponents" or name != EXPLOITER:
        raise EarlError(f"opponent {name!r} is met in training alone, as {EXPLOITER!r}; name another one")
    made = registry.make(env, **options) if registry.seats(env) == 2 else None
    if not isinstance(made, BoardGameEnv) or made.dealt:
        raise EarlError(
            f"opponent {name!r} plays games again that were lost, and those of {env} are not told by their moves; "
            "name another one"
        )


def _check_policy(key: str, name: str, env: str, options: Mapping[str, Any]) -> None:
    """Raises EarlError for a game whose seats policies cannot have, and for a checkpoint that is not here or plays
    another game."""
    if name.startswith(AFTER):
        raise EarlError(f"opponent {name!r} is given by env.restarts; name {SELF!r}")
    board = registry.make(env, **options) if registry.seats(env) == 2 else None
    if not isinstance(board, BoardGameEnv):
        raise EarlError(f"opponent {name!r} plays earl's own board games, and {env} is none; name another one")
    if name.startswith(RUN):
        load_opponent(name)[0].of(env).take_seat(SharedSeat(board, 0), name)
    if key == "warm_start.opponents" or (key != "env.opponents" and name in (SELF, PAST)):
        raise EarlError(f"opponent {name!r} is met in training alone; name another one")


def _check_algorithm(config: AlgorithmConfig, recipe: Config) -> None:
    with setting("algorithm"):
        how = algorithm_of(recipe)
    if config.kl_in == "reward" and (how.needs_baselines or not recipe.context.learn_truncated):
        what = f"{config.name}'s running baselines" if how.needs_baselines else "episodes that a limit cut off"
        raise EarlError(
            f"algorithm.kl_in = 'reward' with {what}: returns with the divergence taken off would be compared with "
            "others; leave algorithm.kl_in out" + ", or set context.learn_truncated to true" * (not how.needs_baselines)
        )
    if recipe.rollout.group_size == 1 and how.needs_groups:
        raise EarlError(
            f"rollout.group_size = 1: {config.name} compares the episodes of a group, and one alone teaches nothing; "
            "set it to 2 or more"
        )
    if recipe.rollout.resample and not (how.needs_groups and how.drop_flat_groups):
        cure = "set algorithm.options.drop_flat_groups to true" if how.needs_groups else "take dapo or grpo"
        raise EarlError(
            f"rollout.resample = {recipe.rollout.resample}: {config.name} learns from groups whose episodes all "
            f"have the same return, so none takes their place; leave it out, or {cure}"
        )


SCRATCH_RATE = 1e-4
"""A learning rate above it is for a new model."""


def risks(config: Config) -> Iterator[str]:
    """Warnings of settings that are allowed, but hardly meant for a pretrained model."""
    if config.model.path is None or made_by_earl(config.model.path):
        return
    rate = config.learner.learning_rate
    if rate > SCRATCH_RATE and not config.learner.lora_rank:
        yield f"learner.learning_rate = {rate:g} is for a new model, and ruins a pretrained one; 1e-6 to 1e-5 is usual"
    if config.warm_start.steps:
        yield (
            f"warm_start.steps = {config.warm_start.steps}: imitation of {imitated(config)} takes the place of "
            "what a pretrained model can do; 0 leaves it out"
        )
    if not config.agent.instructions:
        yield "agent.instructions = false: the model is not told the rules, which it has not seen; true tells it"
    if config.agent.max_turn_tokens < SHORT_TURN and config.agent.thinking:
        yield f"agent.max_turn_tokens = {config.agent.max_turn_tokens} cuts off what it thinks; 256 or more is usual"


SHORT_TURN = 64


def imitated(config: Config) -> str:
    """The file or teacher that the warm start imitates."""
    return repr(config.warm_start.data or config.warm_start.teacher)


SEEDS = 64
"""Episodes sampled per opponent and seat."""
MOST_STEPS = 400
"""Steps of random play in which actions are looked at, per seat."""


def check_prompts(config: Config, policy: Policy | None, shape: ModelShape) -> int | None:
    """Check prompts, actions and chat template. Returns the tokens of the longest first prompt; None without a
    tokenizer.

    `policy` may lack weights where they are not needed; None if the tokenizer is missing as well. Raises EarlError
    for a limit that is too short, an action that cannot be written, or an unfit chat template.
    """
    limit, max_positions = config.context.first_limit, shape.max_positions
    if limit > max_positions:
        raise EarlError(
            f"context.limit = {limit} is longer than the {max_positions} tokens the model was made for; "
            f"set context.limit to at most {max_positions}"
            + ("" if config.model.path else f", or model.max_positions to at least {limit}")
        )
    if policy is None:
        return None
    _check_vocabulary(policy, shape)
    world = episode_factory(config, policy.tokenizer)
    read_warm_start(config, world)
    with setting("evaluate"):
        matches(world, config.evaluate.opponents, config.evaluate.exact, config.evaluate.episodes)
    with outside(f"the chat template of {config.model.path!r} fails", "choose another chat model"):
        if world.chat.opens_thinking and not config.agent.thinking:
            raise EarlError(
                f"the chat template of {config.model.path!r} opens a thinking span before every reply, so that no "
                "reply is an action; set agent.thinking to true, or where the template knows it "
                "agent.chat_template_kwargs.enable_thinking to false"
            )
        shortest, *_, first = _openings(config, world) * 2
        world.chat.reply("user", "?", True)
        if world.seats == 1:
            world.chat.reply("tool", "?", True)
    action = _check_actions(config, world.chat)
    if shortest + action > limit:
        raise EarlError(
            f"context.limit is {limit} tokens, but the first prompt of {world.env} takes {shortest} and its shortest "
            f"action {action}; set context.limit to at least {first + config.agent.max_turn_tokens}"
        )
    return first


def _check_vocabulary(policy: Policy, shape: ModelShape) -> None:
    """Check that every token id has an embedding."""
    named = len(policy.tokenizer)
    known = policy.model.get_input_embeddings().num_embeddings if policy.model is not None else shape.vocab
    if named > known:
        raise EarlError(
            f"the tokenizer has {named} ids, its model knows {known}; give a model with the tokenizer it was made with"
        )


def _openings(config: Config, world: EpisodeFactory) -> list[int]:
    """Tokens of first prompts, of every opponent and seat, in ascending order. Raises EarlError for a fault of the
    environment, and when not one prompt leaves room for a reply."""
    met = {*config.env.opponents, *config.warm_start.opponents, *config.evaluate.opponents}
    met = met or {"", *config.env.leveled}
    lengths, faults = [], []
    for opponent in sorted("random" if name == ANY or is_policy(name) else name for name in met):
        for seat in range(world.seats):
            for number in range(SEEDS if world.seats == 1 else 1):
                seed = derive(EVALUATION, "preflight", number)
                episode = world.episode(Task(world.env, seed, seat, opponent), seed, 0)
                lengths.append(len(episode.token_log))
                if episode.error and lengths[-1] < world.rules.context_limit:
                    faults.append(episode.error)
    # Who keeps environments apart expects faults of theirs.
    if len(faults) > (len(lengths) - 1 if world.isolation else 0):
        raise EarlError(f"environment {world.env!r} fails: {faults[0]}; check it with `earl envs check {world.env}`")
    if min(lengths) >= world.rules.context_limit:
        assert episode.error, "its first prompt is too long as well"
        raise EarlError(episode.error)
    return sorted(lengths)


def _check_actions(config: Config, chat: Chat) -> int:
    """Check that every action can be written, with its end, within a turn. Returns the fewest tokens of an action."""
    limit, lengths = config.agent.max_turn_tokens, []
    what, cure = f"environment {config.env.name!r}", f"check it with `earl envs check {config.env.name}`"
    with outside(f"{what} fails", cure), setting(what):
        actions = sorted(set(_actions(config)))
    form = parser(config.agent.parser)
    for action in actions:
        reply = form.phrased(action, thinking=config.agent.thinking)
        with outside(f"the model's tokenizer fails at the action {action!r}", "choose another model"):
            tokens = chat.written(reply)
            if chat.decode(tuple(tokens)) != reply:
                raise EarlError(f"the model's tokenizer cannot write the action {action!r}; choose another model")
        _check_read(config, form, reply, parse(action, thinking=config.agent.thinking).action)
        lengths.append(len(tokens))
    if max(lengths, default=0) > limit:
        raise EarlError(
            f"agent.max_turn_tokens = {limit} is too short: the longest action takes {max(lengths)} tokens with its "
            f"end; set agent.max_turn_tokens to at least {max(lengths)}"
        )
    return min(lengths, default=1)  # no action is listed


def _check_read(config: Config, form: ActionParser, reply: str, action: str) -> None:
    """Raises EarlError when the recipe's parser does not find the action in a reply that keeps to its form."""
    found, what = None, f"agent.parser = {config.agent.parser!r} fails at the reply {reply!r}"
    with outside(what, "mend it"), suppress(Unreadable):
        found = form.action(parse(reply, thinking=config.agent.thinking).action)
    if found == action:
        return
    raise EarlError(
        f"agent.parser = {config.agent.parser!r} does not read the action {action!r} of {config.env.name} in the reply "
        f"{reply!r}; choose another parser, such as tag:answer"
    )


def _actions(config: Config) -> Iterator[str]:
    """Actions that occur in play: all that the environment lists, or in a task those of its teacher and its solver.
    None of an environment that is kept apart, whose faults belong to the run."""
    if config.env.processes:
        return
    for level in config.env.leveled.values() or ({},):
        yield from _actions_under(config, {**config.env.options, **level})


def _actions_under(config: Config, options: Mapping[str, Any]) -> Iterator[str]:
    env = config.env.name
    names: set[str] = set()
    seats: list[dict[str, int]] = [{"seat": 0}, {"seat": 1}]
    if registry.seats(env) == 1:
        seats = [{}]
        names |= {config.warm_start.teacher} if config.warm_start.steps and not config.warm_start.data else set()
        names |= {"solver"} & {*scripted.names(env)}
    agents = [scripted.agent(name, env) for name in sorted(names)]
    for seat in seats:
        for seed in range(SEEDS):
            if agents:
                own = agents[seed % len(agents)]
                yield from _played(registry.make(env, **options, **seat), own, seed, config.agent.thinking)
        if playable(made := registry.make(env, **options, **seat)):
            steps = (step for seed in range(SEEDS) for step in play(made, seed))
            for step in islice(steps, MOST_STEPS):
                yield from step.info.get("legal_actions", ())


def _played(env: TextEnv, agent: Agent, seed: int, thinking: bool) -> Iterator[str]:
    """The replies of one episode. Raises EarlError for a reply that the environment would refuse."""
    rng = Random(seed)
    env.reset(seed=seed)
    for _ in range(env.max_turns):
        reply = agent.act(env, rng)
        yield reply
        action = parse(reply, thinking=thinking).action
        if (rule := env.rule(action)) is not None:
            hint = "; set agent.thinking to true" if reply.startswith(THINK_OPEN) and not thinking else ""
            raise EarlError(f"a scripted agent's reply {reply!r} would be refused ({rule}){hint}")
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return
