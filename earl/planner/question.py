"""What is asked of a plan: a model on a cluster, over contexts, loads and splits."""

from dataclasses import dataclass

from earl.config import Config
from earl.dispatch.cost import GIGABIT
from earl.errors import EarlError
from earl.parallel.hardware import Cluster
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.precision import Precision
from earl.parallel.throughput.room import Engine
from earl.parallel.throughput.software import VLLM, Software
from earl.planner import axes

MOST_GPUS = 16_384


@dataclass(frozen=True, slots=True)
class Tokens:
    """How a context divides into what an engine reads and what it writes; None: the rest of the context.

    Example:
        Tokens(prompt=512, reply=None).of(2048)   # 512 read, 1,536 written
    """

    prompt: int | None = None
    reply: int | None = None

    def of(self, context: int) -> tuple[int, int]:
        """Tokens of prompt and reply. All is written where neither is named: the decode phase alone."""
        if self.reply is not None:
            return context - self.reply, self.reply
        prompt = self.prompt or 0
        return prompt, context - prompt


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user names, as it was written; None: left open."""

    contexts: str | None = None
    longest: int | None = None
    """The longest context that is expected."""
    responses: str | None = None
    tps: str | None = None
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    network_gbps: float = 200.0
    """Of the link between a host and the others, in one direction: that of the EARL paper's testbed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A plan to make."""

    config: Config
    model: str
    shape: ModelShape
    cluster: Cluster
    contexts: tuple[int, ...]
    responses: tuple[int, ...]
    tps: tuple[int, ...]
    tokens: Tokens
    precision: Precision
    """Of the engine."""
    software: Software
    network_gbps: float

    @property
    def network_bandwidth(self) -> float:
        """Bytes per second of a host's link to the others."""
        return self.network_gbps * GIGABIT

    def engine(self, tp: int) -> Engine:
        """One copy of it. earl gives vLLM `sampler.memory_share` of a GPU; another engine takes what it does by itself,
        unless the recipe says otherwise."""
        device, sampler = self.cluster.device, self.config.sampler
        assert device is not None, "the kinds of GPUs that can be named are listed"
        own = self.software is VLLM or "memory_share" in sampler.model_fields_set
        share = sampler.memory_share if own else None
        return Engine(self.shape, device, tp, self.precision, self.software, share)


def question(
    config: Config,
    model: str,
    shape: ModelShape,
    cluster: Cluster,
    precision: Precision,
    software: Software,
    wish: Wish,
) -> Question:
    """Check what a user names, and fill in what is left open.

    Raises:
        EarlError: for lists, contexts, splits or clusters that cannot be planned for.
    """
    if cluster.gpus > MOST_GPUS:
        raise EarlError(f"{cluster.where}: {cluster.gpus:,} GPUs; earl plans for {MOST_GPUS:,} at most, name fewer")
    tokens = Tokens(wish.prompt_tokens, wish.reply_tokens)
    contexts = _contexts(wish, shape, model)
    _check_tokens(tokens, contexts)
    return Question(
        config=config,
        model=model,
        shape=shape,
        cluster=cluster,
        contexts=contexts,
        responses=axes.responses(wish.responses),
        tps=axes.tps(wish.tps, shape, cluster, model),
        tokens=tokens,
        precision=precision,
        software=software,
        network_gbps=wish.network_gbps,
    )


def _contexts(wish: Wish, shape: ModelShape, model: str) -> tuple[int, ...]:
    """The contexts that are named in one way, of three."""
    named = {
        "--contexts": wish.contexts is not None,
        "--context": wish.longest is not None,
        "--prompt-tokens with --reply-tokens": wish.prompt_tokens is not None and wish.reply_tokens is not None,
    }
    ways = [way for way, given in named.items() if given]
    if len(ways) > 1:
        raise EarlError(f"{ways[0]} and {ways[1]} both say how long contexts are; leave one of them out")
    if wish.prompt_tokens is not None and wish.reply_tokens is not None:
        whole = str(wish.prompt_tokens + wish.reply_tokens)
        return axes.contexts(whole, None, shape, model)
    return axes.contexts(wish.contexts, wish.longest, shape, model)


def _check_tokens(tokens: Tokens, contexts: tuple[int, ...]) -> None:
    """Every context has room for what is read and for at least one token that is written."""
    for option, count, least in (("--prompt-tokens", tokens.prompt, 1), ("--reply-tokens", tokens.reply, 0)):
        if count is not None and count + least > contexts[0]:
            raise EarlError(
                f"{option} {count} leaves no room in a context of {contexts[0]} tokens; "
                f"give at most {contexts[0] - least}, or longer --contexts"
            )
