"""A model behind an OpenAI-compatible server, for evaluation; it cannot be trained with, having no way to load weights.

token ids   vLLM's server and a tokenizer that is here: what is sent and what comes are token ids
text        any server: the conversation is sent as messages, and a token is a character of what comes back
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from earl.engine.client import Client
from earl.engine.source import HUB_ID, folder_of
from earl.engine.tokenizer import character_tokenizer
from earl.envs.base import CHARACTERS
from earl.errors import EarlError, boundary
from earl.rollout.prompt import Completion, Prompt

CONNECTIONS = 64
"""Requests on their way at once."""
SLACK_TOKENS = 16
"""Tokens that a server may spend on a reply beside one for each character, such as its end."""
MESSAGE = re.compile(r"<\|(system|user|assistant|tool)\|>(.*?)<\|end\|>", re.DOTALL)


class Served:
    """Completes prompts by asking a server, greedily or at temperature 1.

    Args:
        client: the server.
        model: the name that the server knows the model by; None: the only one that it serves.
        tokenizer: that of the served model, for token ids; None: text.

    Raises:
        EarlError: when the server does not answer, has no such model, or returns no token ids where they are needed.
    """

    def __init__(self, client: Client, model: str | None = None, tokenizer: Any = None) -> None:
        self._client, self._model = client, model or _only_model(client)
        self._exact = tokenizer is not None
        self.tokenizer = tokenizer if self._exact else character_tokenizer()
        self._threads = ThreadPoolExecutor(CONNECTIONS, "earl-served")

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order; `logprobs` are 0 where the server tells none."""
        return list(self._threads.map(self._exactly if self._exact else self._by_text, prompts))

    def release(self, sessions: Sequence[int]) -> None:
        """Nothing is kept here."""

    def _exactly(self, prompt: Prompt) -> Completion:
        """Token ids in and out, as vLLM's server knows them."""
        stop = self.tokenizer.eos_token_id
        extra = {"return_token_ids": True, "stop_token_ids": [stop], "ignore_eos": True, "logprobs": 0}
        asked = {"prompt": list(prompt.tokens), "max_tokens": prompt.max_tokens, **extra}
        [choice] = self._client.post("completions", asked | self._sampling(prompt))["choices"]
        tokens = choice.get("token_ids")
        if not tokens:
            raise EarlError(
                f"the server at {self._client.url} returns no token ids, which only vLLM's does; name a model that is "
                "not here, by the name that the server knows, to speak to it in text"
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or [0.0] * len(tokens)
        return Completion(tokens, logprobs, [0] * len(tokens), tokens[-1] == stop)

    def _by_text(self, prompt: Prompt) -> Completion:
        """Messages in, text out; characters that no environment speaks become question marks."""
        written = self.tokenizer.decode(prompt.tokens, skip_special_tokens=False)
        body = {"messages": messages(written), "max_tokens": prompt.max_tokens + SLACK_TOKENS}
        [choice] = self._client.post("chat/completions", body | self._sampling(prompt))["choices"]
        said = "".join(c if c in CHARACTERS else "?" for c in (choice["message"].get("content") or "").strip())
        tokens = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        if choice.get("finish_reason") != "length":
            tokens.append(self.tokenizer.eos_token_id)
        tokens = (tokens or self.tokenizer("?")["input_ids"])[: prompt.max_tokens]
        return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), tokens[-1] == self.tokenizer.eos_token_id)

    def _sampling(self, prompt: Prompt) -> dict[str, Any]:
        return {"model": self._model, "temperature": 0.0 if prompt.greedy else 1.0, "seed": prompt.seed % (1 << 31)}


def served(url: str, name: str, model: str | None) -> Served:
    """The model behind a server.

    Args:
        name: a folder or hub id, for its tokenizer; anything else is only a name, and the server is spoken to in text.
        model: the name that the server knows it by; absent: `name`, or for a folder the only one that it serves.
    """
    client = Client(url)
    if not Path(name).exists() and not HUB_ID.fullmatch(name):
        return Served(client, model or name)
    folder = folder_of(name, weights=False)
    with boundary() as fault:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if fault.message:
        raise EarlError(f"no tokenizer can be loaded from {name!r}: {fault.message.splitlines()[0]}; check the folder")
    return Served(client, model or (None if Path(name).exists() else name), tokenizer)


def messages(text: str) -> list[dict[str, str]]:
    """The conversation that a prompt of earl's own tokenizer spells.

    Example:
        >>> messages("<|user|>1+1<|end|><|assistant|>2<|end|><|user|>2+2<|end|><|assistant|>")[-1]
        {'role': 'user', 'content': '2+2'}
    """
    spoken = [{"role": role, "content": content} for role, content in MESSAGE.findall(text)]
    # What a tool says is the user's turn to servers that were told of no tool calls.
    return [{**message, "role": "user"} if message["role"] == "tool" else message for message in spoken]


def _only_model(client: Client) -> str:
    names = [entry["id"] for entry in client.get("models")["data"]]
    if len(names) != 1:
        raise EarlError(
            f"the server at {client.url} serves {len(names)} models ({', '.join(names[:5])}); name one with --model"
        )
    return str(names[0])
