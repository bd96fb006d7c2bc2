"""The sampler on vLLM: continuous batching, prefix caching over the turns of an episode, tensor parallel."""

import asyncio
import copy
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

from torch import Tensor

from earl.config import SamplerConfig
from earl.engine.model import Policy
from earl.engine.sampler import Probe, Sampler, check
from earl.engine.vllm.device import Cpu, Gpu, device, require_vllm
from earl.errors import EarlError, boundary
from earl.rollout.prompt import Completion, Prompt
from earl.seeds import derive

R = TypeVar("R")


@dataclass(slots=True)
class SampledReply:
    prompt: Prompt
    done: "Future[Completion]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class EngineLoop:
    """Runs vLLM's engine in its own thread, where `build` makes it; requests join and leave between steps. All
    methods are thread-safe. `version` of the weights changes only within `exclusively`; `cached_tokens` counts prompt
    tokens from the prefix cache."""

    def __init__(self, build: Callable[[], Any], stop_ids: Sequence[int], temperature: float) -> None:
        self.version = 0
        self.cached_tokens = 0
        self._stop_ids, self._temperature = list(stop_ids), temperature
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._replies: dict[str, SampledReply] = {}
        self._names = map(str, count())
        self._engine: Any = None
        self._fault: str | None = None
        self._unsound: EarlError | None = None
        self._closed = False
        self._thread = Thread(target=self._run, args=(build,), name="earl-vllm", daemon=True)
        self._thread.start()
        self.exclusively(lambda _: None)  # waits until the engine is built

    def submit(self, prompts: Sequence[Prompt]) -> "list[Future[Completion]]":
        replies = [SampledReply(prompt, Future()) for prompt in prompts]

        def enter() -> None:
            for reply in replies:
                self._enter(reply)

        self._put(enter)
        return [reply.done for reply in replies]

    def exclusively(self, work: Callable[[Any], R]) -> R:
        """Run `work` on the engine while no request is in it; unfinished replies continue afterwards. They keep their
        sampled tokens, and are resubmitted with these. If `work` raises an EarlError, the engine is unsound: current
        and later prompts fail with it until some `work` succeeds."""
        done: Future[R] = Future()

        def enter() -> None:
            self._engine.abort_request([*self._replies])
            waiting, self._replies = [*self._replies.values()], {}
            try:
                result = work(self._engine)
            except EarlError as error:
                self._unsound = error
                done.set_exception(error)
            else:
                self._unsound = None
                done.set_result(result)
            for reply in waiting:
                self._enter(reply)

        self._put(enter)
        return self._wait(done)

    def close(self) -> None:
        self._closed = True
        self._inbox.put(lambda: None)
        if current_thread() is not self._thread:  # the garbage collector may call this from any thread
            self._thread.join()

    def _put(self, command: Callable[[], None]) -> None:
        if self._fault is not None or self._closed:
            raise EarlError(f"vLLM's engine has ended: {self._fault or 'it was closed'}")
        self._inbox.put(command)

    def _wait(self, done: "Future[R]") -> R:
        while True:
            try:
                return done.result(timeout=1.0)
            except TimeoutError:
                if not self._thread.is_alive():
                    raise EarlError(f"vLLM's engine has ended: {self._fault or 'it was closed'}") from None

    def _run(self, build: Callable[[], Any]) -> None:
        with boundary() as fault:
            self._engine = build()
            while not self._closed:
                self._take(block=not self._replies)
                if self._replies:
                    self._hand_out(self._engine.step())
        self._fault = fault.message
        with boundary():
            self._engine.engine_core.shutdown()
        for reply in self._replies.values():
            reply.done.set_exception(EarlError(f"vLLM's engine has ended: {fault.message or 'it was closed'}"))

    def _take(self, block: bool) -> None:
        """Run the commands in the inbox; with `block`, wait for the first one."""
        try:
            while True:
                self._inbox.get(block)()
                block = False
        except Empty:
            pass

    def _enter(self, reply: SampledReply) -> None:
        if self._unsound is not None:
            return reply.done.set_exception(self._unsound)
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt, sampled = reply.prompt, len(reply.tokens)
        params = SamplingParams(
            temperature=0.0 if prompt.greedy else self._temperature,
            seed=derive(prompt.seed, sampled) if sampled else prompt.seed,
            max_tokens=prompt.max_tokens - sampled,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,  # stop_token_ids ends replies
            logprobs=0,  # of the sampled token only
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name = next(self._names)
        with boundary() as fault:
            self._engine.add_request(name, {"prompt_token_ids": [*prompt.tokens, *reply.tokens]}, params)
        if fault.message:
            error = EarlError(f"vLLM refuses a prompt of {len(prompt.tokens)} tokens: {fault.message}")
            reply.done.set_exception(error)
        else:
            self._replies[name] = reply
        return None

    def _hand_out(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            reply, [new] = self._replies[output.request_id], output.outputs
            reply.tokens += new.token_ids
            reply.logprobs += [chosen[token].logprob for token, chosen in zip(new.token_ids, new.logprobs, strict=True)]
            reply.versions += [self.version] * len(new.token_ids)
            if output.finished:
                del self._replies[output.request_id]
                self.cached_tokens += output.num_cached_tokens or 0
                finished = reply.tokens[-1] in self._stop_ids
                reply.done.set_result(Completion(reply.tokens, reply.logprobs, reply.versions, finished))


QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
"""No telemetry; an engine's processes, all on one host, use loopback. The user's environment overrides this."""


class VllmSampler(Sampler):
    """Samples with its own engine, initially with the policy's weights, if it has any. max_tokens: of the longest
    context. Raises EarlError when vLLM is missing, or cannot run this model on this machine."""

    def __init__(self, policy: Policy, config: SamplerConfig, temperature: float, max_tokens: int) -> None:
        self._model, self._device = policy.model, device()
        os.environ.update({**QUIET, **os.environ, **self._device.environment(config)})
        require_vllm()
        self._device.check(policy.model.config, config)
        build = partial(_engine, policy.model, config, self._device, max_tokens)
        self._loop = EngineLoop(build, sorted(policy.stop_ids), temperature)
        self._close = weakref.finalize(self, self._loop.close)  # also called when this object or Python ends
        if not any(parameter.is_meta for parameter in policy.model.parameters()):
            self.load(policy.model.state_dict(), version=0)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return [reply.result() for reply in self._loop.submit(prompts)]

    async def complete(self, prompt: Prompt) -> Completion:
        [reply] = self._loop.submit([prompt])
        return await asyncio.wrap_future(reply)

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights, and drop everything computed with the old ones; unfinished replies continue. probe: if
        absent, computed from `weights`. Raises StaleWeights when the engine does not compute with them."""
        expected = probe or Probe.of(self._model, weights)

        def take(engine: Any) -> None:
            self._device.hand_over(engine, weights)
            assert engine.reset_prefix_cache(), "nothing runs while weights are loaded"
            check(expected, _measured(engine, expected), self._device.tolerance, version)
            self._loop.version = version

        self._loop.exclusively(take)

    def close(self) -> None:
        self._close()

    def sleep(self) -> None:
        self._loop.exclusively(self._device.sleep)

    def wake(self) -> None:
        self._loop.exclusively(self._device.wake)

    @property
    def version(self) -> int:
        return self._loop.version

    @property
    def cached_tokens(self) -> int:
        return self._loop.cached_tokens


def _engine(model: Any, config: SamplerConfig, where: Cpu | Gpu, max_tokens: int) -> Any:
    """An engine for the model's shape, with dummy weights."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    described = copy.deepcopy(model.config)
    described.architectures = [type(model).__name__]
    with tempfile.TemporaryDirectory(prefix="earl-vllm-") as folder:
        described.save_pretrained(folder)
        arguments = EngineArgs(
            model=folder,
            load_format="dummy",
            config_format="hf",
            trust_remote_code=False,
            skip_tokenizer_init=True,
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enforce_eager=not config.compiled,
            tensor_parallel_size=config.tp,
            max_model_len=max_tokens,
            disable_log_stats=True,
            **where.arguments(config, max_tokens),
        )
        return LLMEngine.from_engine_args(arguments)


def _measured(engine: Any, probe: Probe) -> list[float]:
    """The engine's log-probs [T - 1] of a probe's tokens."""
    from vllm import SamplingParams

    engine.add_request(
        "probe",
        {"prompt_token_ids": [*probe.tokens]},
        SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, ignore_eos=True),
    )
    outputs: list[Any] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    [known] = [output.prompt_logprobs for output in outputs if output.prompt_logprobs]
    return [place[token].logprob for place, token in zip(known[1:], probe.tokens[1:], strict=True)]
