"""The sampler on vLLM: continuous batching, prefix caching over the turns of an episode, tensor parallel."""

import asyncio
import copy
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from threading import current_thread
from typing import Any

from torch import Tensor

from earl.config import SamplerConfig
from earl.dispatch.weights import SentWeights
from earl.engine.model import Policy
from earl.engine.sampler import NOTHING_CUT, Probe, Sampler, Truncation, check
from earl.engine.vllm.device import Cpu, Gpu, call_workers, device, require_vllm
from earl.errors import EarlError, boundary
from earl.seeds import derive
from earl.trajectory import Completion, Prompt


@dataclass(slots=True)
class SampledReply:
    prompt: Prompt
    done: "Future[Completion]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
"""No telemetry; an engine's processes, all on one host, use loopback. The user's environment overrides this."""


class VllmSampler(Sampler):
    """Samples with its own engine, initially with the policy's weights, if it has any. max_tokens: of the longest
    context. Raises EarlError when vLLM is missing, or cannot run this model on this machine.

    The engine has a thread of its own, in which requests join and leave between two of its steps. `version` of the
    weights changes only within `exclusively`; `cached_tokens` counts prompt tokens from the prefix cache."""

    def __init__(
        self,
        policy: Policy,
        config: SamplerConfig,
        temperature: float,
        max_tokens: int,
        truncation: Truncation = NOTHING_CUT,
    ) -> None:
        self.version = self.cached_tokens = 0
        self._model, self._device = policy.model, device()
        self._stop_ids, self._temperature, self._truncation = sorted(policy.stop_ids), temperature, truncation
        os.environ.update({**QUIET, **os.environ, **self._device.environment(config)})
        require_vllm()
        self._device.check(policy.model.config, config)
        self._replies: dict[str, SampledReply] = {}
        self._names = map(str, count())
        self._unsound: EarlError | None = None
        self._stepping = False  # whether a step waits in the thread
        self._thread = ThreadPoolExecutor(1, "earl-vllm")
        with boundary() as fault:
            made = self._thread.submit(_engine, policy.model, config, self._device, max_tokens)
            self._engine: Any = made.result()
        if fault.message:
            raise EarlError(f"vLLM's engine cannot be made: {fault.message}")
        # Also called when this object or Python ends.
        self._close = weakref.finalize(self, _close_engine, self._thread, self._engine, self._replies)
        if not any(parameter.is_meta for parameter in policy.model.parameters()):
            self.load(policy.model.state_dict(), version=0)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return [reply.result() for reply in self.submit(prompts)]

    async def complete(self, prompt: Prompt) -> Completion:
        [reply] = self.submit([prompt])
        return await asyncio.wrap_future(reply)

    def submit(self, prompts: Sequence[Prompt]) -> "list[Future[Completion]]":
        replies = [SampledReply(prompt, Future()) for prompt in prompts]
        for reply in replies:
            reply.done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._thread.submit(self._enter, replies)
        return [reply.done for reply in replies]

    def join_weights(self, *where: Any) -> None:
        """Let every worker join the ranks that will send it weights; see `WeightLoader.join_weights`."""
        self._exclusively(lambda engine: call_workers(engine, "join_weights", *where))

    def load(self, weights: Mapping[str, Tensor] | SentWeights, version: int, probe: Probe | None = None) -> None:
        """Take new weights, and drop everything computed with the old ones; unfinished replies continue. probe: if
        absent, computed from `weights`. Raises StaleWeights when the engine does not compute with them."""
        if probe is None:
            assert not isinstance(weights, SentWeights), "who sends them has a probe"
            probe = Probe.of(self._model, weights)
        expected = probe

        def take(engine: Any) -> None:
            self.received_bytes = self._device.hand_over(engine, weights)
            self.needed_bytes = call_workers(engine, "weight_bytes")
            assert engine.reset_prefix_cache(), "nothing runs while weights are loaded"
            check(expected, _probe_logprobs(engine, expected), self._device.tolerance, version)
            self.version = version

        self._exclusively(take)

    def close(self) -> None:
        self._close()

    def sleep(self) -> None:
        self._exclusively(self._device.sleep)

    def wake(self) -> None:
        self._exclusively(self._device.wake)

    def _exclusively(self, work: Callable[[Any], object]) -> None:
        """Run `work` on the engine while no request is in it; unfinished replies continue afterwards. They keep their
        sampled tokens, and are resubmitted with these. If `work` fails, the engine is unsound: current and later
        prompts fail alike until some `work` succeeds."""

        def run() -> None:
            waiting = [*self._replies.values()]
            self._engine.abort_request([*self._replies])
            self._replies.clear()
            try:
                work(self._engine)
                self._unsound = None
            except EarlError as error:
                self._unsound = error
                raise
            except Exception as error:
                self._unsound = _engine_error(f"{type(error).__name__}: {error}")
                raise self._unsound from error
            finally:
                self._enter(waiting)

        self._thread.submit(run).result()

    def _enter(self, replies: Sequence[SampledReply]) -> None:
        for reply in replies:
            name, tokens = next(self._names), [*reply.prompt.tokens, *reply.tokens]
            with boundary() as fault:
                if self._unsound is None:
                    self._engine.add_request(name, {"prompt_token_ids": tokens}, self._parameters(reply))
                    self._replies[name] = reply
            if fault.message:
                refused = f"vLLM refuses a prompt of {len(reply.prompt.tokens)} tokens: {fault.message}"
                reply.done.set_exception(EarlError(refused))
            elif self._unsound:
                reply.done.set_exception(self._unsound)
        self._go_on()

    def _parameters(self, reply: SampledReply) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt, sampled = reply.prompt, len(reply.tokens)
        return SamplingParams(
            temperature=0.0 if prompt.greedy else self._temperature,
            top_p=self._truncation.top_p,
            top_k=self._truncation.top_k,
            seed=derive(prompt.seed, sampled) if sampled else prompt.seed,
            max_tokens=prompt.max_tokens - sampled,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,  # stop_token_ids ends replies
            logprobs=0,  # of the sampled token only
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _go_on(self) -> None:
        if self._replies and not self._stepping:
            self._stepping = True
            self._thread.submit(self._step)

    def _step(self) -> None:
        self._stepping = False
        with boundary() as fault:
            for output in self._engine.step():
                self._hand_out(output)
        if fault.message:
            self._unsound = _engine_error(fault.message)
            _fail(self._replies, self._unsound)
        self._go_on()

    def _hand_out(self, output: Any) -> None:
        reply, [new] = self._replies[output.request_id], output.outputs
        reply.tokens += new.token_ids
        reply.logprobs += [chosen[token].logprob for token, chosen in zip(new.token_ids, new.logprobs, strict=True)]
        reply.versions += [self.version] * len(new.token_ids)
        if output.finished:
            del self._replies[output.request_id]
            self.cached_tokens += output.num_cached_tokens or 0
            finished = reply.tokens[-1] in self._stop_ids
            reply.done.set_result(Completion(reply.tokens, reply.logprobs, reply.versions, finished))


def _engine_error(cause: str) -> EarlError:
    return EarlError(f"vLLM's engine has ended: {cause}")


def _fail(replies: dict[str, SampledReply], error: EarlError) -> None:
    for reply in replies.values():
        reply.done.set_exception(error)
    replies.clear()


def _close_engine(thread: ThreadPoolExecutor, engine: Any, replies: dict[str, SampledReply]) -> None:
    # The garbage collector may call this from any thread.
    thread.shutdown(wait=current_thread() not in thread._threads, cancel_futures=True)
    with boundary():
        engine.engine_core.shutdown()
    _fail(replies, _engine_error("it was closed"))


def _engine(model: Any, config: SamplerConfig, where: Cpu | Gpu, max_tokens: int) -> Any:
    """An engine for the model's shape, with dummy weights."""
    from vllm.config import WeightTransferConfig
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
            worker_extension_cls="earl.engine.vllm.worker.WeightLoader",
            weight_transfer_config=WeightTransferConfig(backend="ipc"),  # for its sessions; nothing goes by IPC
            **where.arguments(config, max_tokens),
        )
        return LLMEngine.from_engine_args(arguments)


def _probe_logprobs(engine: Any, probe: Probe) -> list[float]:
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
