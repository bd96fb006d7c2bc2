"""The sampler on vLLM: continuous batching, prefix caching over the turns of an episode, tensor parallel."""

import asyncio
import copy
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from earl.config import SamplerConfig
from earl.engine.model import Policy
from earl.engine.probe import Probe, check
from earl.engine.vllm.device import Device, device, require_vllm
from earl.engine.vllm.loop import EngineLoop
from earl.rollout.prompt import Completion, Prompt

QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
"""Nothing is reported to anybody, and the processes of an engine, which lies on one host, meet on loopback; unless the
user's environment says otherwise."""


class VllmSampler:
    """Samples with an engine of its own.

    Args:
        policy: the model's shape and stop tokens, and the weights to begin with, unless it has none.
        max_tokens: of the longest context.

    Raises:
        EarlError: when vLLM is not there, or cannot run this model on this machine.
    """

    def __init__(self, policy: Policy, config: SamplerConfig, temperature: float, max_tokens: int) -> None:
        self._model, self._device = policy.model, device()
        os.environ.update({**QUIET, **os.environ, **self._device.environment(config)})
        require_vllm()
        self._device.check(policy.model.config, config)
        build = partial(_engine, policy.model, config, self._device, max_tokens)
        self._loop = EngineLoop(build, sorted(policy.stop_ids), temperature)
        self.close = weakref.finalize(self, self._loop.close)
        """Ends the engine and its processes; so does the end of this object, or of Python."""
        if not any(parameter.is_meta for parameter in policy.model.parameters()):
            self.load(policy.model.state_dict(), version=0)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""
        return [reply.result() for reply in self._loop.submit(prompts)]

    async def complete(self, prompt: Prompt) -> Completion:
        """One completion, while others are on their way."""
        [reply] = self._loop.submit([prompt])
        return await asyncio.wrap_future(reply)

    def release(self, sessions: Sequence[int]) -> None:
        """Nothing is kept by session: the prefix cache forgets by itself what is not used."""

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights, and forget whatever was computed with the old ones.

        Replies on their way keep their tokens and go on under the new weights.

        Args:
            probe: what the learner's weights say of a prompt; absent: computed here from `weights`.

        Raises:
            StaleWeights: when the engine then does not compute with them.
        """
        expected = probe or Probe.of(self._model, weights)

        def take(engine: Any) -> None:
            self._device.hand_over(engine, weights)
            assert engine.reset_prefix_cache(), "nothing runs while weights are loaded"
            check(expected, _measured(engine, expected), self._device.tolerance, version)
            self._loop.version = version

        self._loop.exclusively(take)

    def sleep(self) -> None:
        """Free the device's memory, where it has its own."""
        self._loop.exclusively(self._device.sleep)

    def wake(self) -> None:
        """Take it back."""
        self._loop.exclusively(self._device.wake)

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self._loop.version

    @property
    def cached_tokens(self) -> int:
        """Tokens of all prompts so far that came from the prefix cache."""
        return self._loop.cached_tokens


def _engine(model: Any, config: SamplerConfig, where: Device, max_tokens: int) -> Any:
    """An engine of the model's shape, without its weights yet."""
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
