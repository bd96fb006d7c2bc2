"""The input of a plan: a model on a cluster, over contexts, loads and splits."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from earl.config import Config
from earl.dispatch.predicted_cost import load_at
from earl.errors import EarlError
from earl.parallel.cost_model import CostModel
from earl.parallel.hardware import ClusterSpec
from earl.parallel.layout import Choice, Layout, splits
from earl.parallel.memory import Load, ModelShape
from earl.parallel.throughput.step import Precision, Software

FIRST_CONTEXT = 1024
RESPONSES = (8, 16, 32, 64, 128)
MOST_VALUES = 32  # of one axis, so that it fits into a table
MOST_RESPONSES = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a list, sorted and unique: "8, 4,8" gives (4, 8). `option` is named in errors.
    Raises EarlError when the list is empty, invalid, or too long."""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if not _NUMBER.fullmatch(item) or not int(item):
            what = repr(item) if item else "an empty item"
            raise EarlError(
                f"{option} {text!r}: {what} is not a whole number from 1; give numbers with commas between them, such "
                f"as {option} {_SUCH_AS[option]}"
            )
    found = tuple(sorted({int(item) for item in items}))
    if len(found) > MOST_VALUES:
        raise EarlError(f"{option} names {len(found)} values; name {MOST_VALUES} at most")
    return found


_SUCH_AS = {"--contexts": "1024,2048", "--responses": "8,32,128", "--tp": "4,8", "--loads": "96,384"}


@dataclass(frozen=True, slots=True)
class Wish:
    """A user's options, unparsed; None: left open."""

    contexts: str | None = None
    longest: int | None = None  # the longest expected context
    responses: str | None = None
    tps: str | None = None
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    network_gbps: float = 200.0
    """Of the link between a host and the others, in one direction: that of the EARL paper's testbed."""


def contexts(wish: Wish, shape: ModelShape, name: str, own: Sequence[int] = ()) -> tuple[int, ...]:
    """Contexts of the plan: a user's list, prompt and reply together, or the recipe's `own` and powers of two up to the
    longest or the model's limit. `name` is the model's. Raises EarlError for a context that the model was not made
    for."""
    parts = (wish.prompt_tokens, wish.reply_tokens)
    whole = None if None in parts else str(sum(filter(None, parts)))
    named = {"--contexts": wish.contexts, "--context": wish.longest, "--prompt-tokens with --reply-tokens": whole}
    ways = [way for way, given in named.items() if given is not None]
    if len(ways) > 1:
        raise EarlError(f"{ways[0]} and {ways[1]} both say how long contexts are; leave one of them out")
    given = whole or wish.contexts
    if given is not None:
        found = numbers("--contexts", given)
    else:
        most = wish.longest if wish.longest is not None else shape.max_positions
        powers = [FIRST_CONTEXT << by for by in range(30) if FIRST_CONTEXT << by < most]
        found = tuple(sorted({*(tokens for tokens in own if tokens < most), *powers, most}))
    if found[-1] > shape.max_positions:
        option = "--context" if given is None else "--contexts"
        raise EarlError(
            f"{option} {found[-1]}: {name} was made for contexts of {shape.max_positions} tokens at most; "
            f"give at most {shape.max_positions}, or another model"
        )
    return found


ANY = "any"
"""The name of the environment if none is given."""


def recipe_contexts(config: Config) -> list[int]:
    """The recipe's first limit on an episode's tokens, and the ceiling of one that may grow."""
    context = config.context
    return [] if config.env.name == ANY else [context.first_limit, *([context.ceiling] if context.ceiling else [])]


def responses(given: str | None) -> tuple[int, ...]:
    """Responses given to one copy of the engine at once. Raises EarlError for an invalid list or too large numbers."""
    found = numbers("--responses", given) if given is not None else RESPONSES
    if found[-1] > MOST_RESPONSES:
        raise EarlError(
            f"--responses {found[-1]}: earl plans for {MOST_RESPONSES:,} at once per engine at most; give fewer"
        )
    return found


def tps(given: str | None, shape: ModelShape, cluster: ClusterSpec, name: str) -> tuple[int, ...]:
    """Splits of one copy of the engine: all that the heads allow and that fill a host evenly, or the given ones.
    Raises EarlError for one that does not divide the heads, or is larger than a host."""
    host = cluster.gpus_per_host
    possible = [tp for tp in splits(shape, host, replicated=True) if host % tp == 0]
    if given is None:
        return tuple(possible)
    found = numbers("--tp", given)
    for tp in found:
        if tp > host:
            why = f"one copy lies on one host, and a host of {cluster.where} has {host} GPUs"
        elif tp not in splits(shape, host, replicated=True):
            heads = f"{shape.heads} attention heads and {shape.kv_heads} key-value heads"
            why = f"{name} has {heads}, which {tp} GPUs cannot share evenly"
        elif host % tp:
            why = f"a host of {cluster.where} has {host} GPUs, which copies of {tp} do not fill"
        else:
            continue
        near = min(possible, key=lambda size: abs(size - tp))
        raise EarlError(f"--tp {tp}: {why}; nearest valid: {near} (possible: {', '.join(map(str, possible))})")
    return found


@dataclass(frozen=True, slots=True)
class Question:
    model: str
    costs: CostModel  # of the recipe on the cluster
    contexts: tuple[int, ...]
    responses: tuple[int, ...]
    tps: tuple[int, ...]

    def load(self, context: int) -> Load:
        """A step of the recipe whose longest episode has `context` tokens."""
        return load_at(self.costs.config.rollout.episodes, context)

    def learner_layouts(self, gpus: int) -> list[Layout]:
        possible = self.costs.learner_layouts(gpus)
        return [layout for layout in possible if layout.tp in self.tps] or possible

    def update_choice(self, context: int, gpus: int) -> Choice:
        """The fastest way to learn that fits, or the one that comes nearest."""
        return self.costs.best_update(self.learner_layouts(gpus), self.load(context))


def question(
    config: Config,
    model: str,
    shape: ModelShape,
    cluster: ClusterSpec,
    precision: Precision,
    software: Software,
    wish: Wish,
    reference: ModelShape | None = None,
) -> Question:
    """Check a user's options, and complete them. Raises EarlError for lists, contexts or splits that cannot be planned
    for; every context has to hold the prompt and at least one written token. reference: what `algorithm.reference`
    names."""
    least = max((wish.prompt_tokens or 0) + 1, wish.reply_tokens or 0)
    lengths = contexts(wish, shape, model, [own for own in recipe_contexts(config) if own >= least])
    for option, count, least in (("--prompt-tokens", wish.prompt_tokens, 1), ("--reply-tokens", wish.reply_tokens, 0)):
        if count is not None and count + least > lengths[0]:
            raise EarlError(
                f"{option} {count} leaves no room in a context of {lengths[0]} tokens; "
                f"give at most {lengths[0] - least}, or longer --contexts"
            )
    loads, layouts = responses(wish.responses), tps(wish.tps, shape, cluster, model)
    read, written = wish.prompt_tokens, wish.reply_tokens
    costs = CostModel(config, shape, cluster, software, precision, read, written, wish.network_gbps, pipelines=True)
    return Question(model, replace(costs, reference=reference), lengths, loads, layouts)
