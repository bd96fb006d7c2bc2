"""What the embedded sampler is measured against: `transformers.generate`, once per turn, nothing kept between."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from earl.engine.model import Policy
from earl.rollout.prompt import Completion, Prompt


class GenerateSampler:
    """The usual way: the whole context of every episode, padded on the left, through one `generate` per turn.

    It answers the same prompts with the same stop token and temperature. Log-probabilities are left out, which
    `generate` would have to be asked for and which cost it more time.
    """

    def __init__(self, policy: Policy, temperature: float) -> None:
        self._model: Any = policy.model.eval()
        self._stop, self._pad = policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id
        self._temperature = temperature

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""
        width = max(len(prompt.tokens) for prompt in prompts)
        lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])
        padded = torch.tensor([[self._pad] * (width - len(p.tokens)) + list(p.tokens) for p in prompts])
        settings = GenerationConfig(
            do_sample=True,
            temperature=self._temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(prompt.max_tokens for prompt in prompts),
            eos_token_id=self._stop,
            pad_token_id=self._pad,
        )
        with torch.inference_mode():
            whole = self._model.generate(
                padded,
                attention_mask=torch.arange(width) >= (width - lengths)[:, None],
                generation_config=settings,
            )
        replies = whole[:, width:].tolist()
        return [self._completion(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]

    def _completion(self, reply: list[int], prompt: Prompt) -> Completion:
        ended = self._stop in reply[: prompt.max_tokens]
        tokens = reply[: reply.index(self._stop) + 1] if ended else reply[: prompt.max_tokens]
        return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), ended)

    def release(self, sessions: Sequence[int]) -> None:
        """Nothing was kept."""
