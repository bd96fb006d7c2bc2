"""A model behind an OpenAI-compatible server, for evaluation; it cannot be trained with, having no way to load weights.

token ids   vLLM's server and a tokenizer that is here: what is sent and what comes are token ids
text        any server: the conversation is sent as messages, and a token is a character of what comes back
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from earl.engine.client import BadReply, Client
from earl.engine.model import read_tokenizer
from earl.engine.source import HUB_ID, folder_of
from earl.engine.tokenizer import character_tokenizer
from earl.envs.base import CHARACTERS
from earl.errors import EarlError
from earl.rollout.prompt import Completion, Prompt

CONNECTIONS = 64
"""Requests on their way at once."""
SLACK_TOKENS = 16
"""Tokens that a server may spend on a reply beside one for each character, such as its end."""
REPLY_BYTES, TOKEN_BYTES = 1 << 18, 1 << 10
"""Of an answer: around its tokens, and for each."""
MOST, ROUNDING = 1e6, 1e-3
"""A log-prob is above -MOST, and above 0 by rounding alone."""
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
        self._vocabulary = len(self.tokenizer)
        self._threads = ThreadPoolExecutor(CONNECTIONS, "earl-served")

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order; `logprobs` are 0 where the server tells none.

        A prompt to which the server gives no valid reply has a completion with an `error`.
        """
        return list(self._threads.map(self._complete, prompts))

    def release(self, sessions: Sequence[int]) -> None:
        """Nothing is kept here."""

    def _complete(self, prompt: Prompt) -> Completion:
        try:
            return self._exactly(prompt) if self._exact else self._by_text(prompt)
        except BadReply as error:
            return Completion([], [], [], False, error=str(error))

    def _exactly(self, prompt: Prompt) -> Completion:
        """Token ids in and out, as vLLM's server knows them."""
        stop = self.tokenizer.eos_token_id
        extra = {"return_token_ids": True, "stop_token_ids": [stop], "ignore_eos": True, "logprobs": 0}
        asked = {"prompt": list(prompt.tokens), "max_tokens": prompt.max_tokens, **extra}

        def take(answer: Any) -> Completion:
            choice = _only_choice(answer)
            if choice.get("token_ids") is None:
                raise EarlError(
                    f"the server at {self._client.url} returns no token ids, which only vLLM's does; name a model that "
                    "is not here, by the name that the server knows, to speak to it in text"
                )
            tokens = _ids(choice["token_ids"], prompt.max_tokens, self._vocabulary)
            logprobs = _logprobs(choice.get("logprobs"), len(tokens))
            return Completion(tokens, logprobs, [0] * len(tokens), tokens[-1] == stop)

        return self._client.post("completions", asked | self._sampling(prompt), take, _limit(prompt))

    def _by_text(self, prompt: Prompt) -> Completion:
        """Messages in, text out; characters that no environment speaks become question marks."""
        written = self.tokenizer.decode(prompt.tokens, skip_special_tokens=False)
        body = {"messages": messages(written), "max_tokens": prompt.max_tokens + SLACK_TOKENS}

        def take(answer: Any) -> Completion:
            choice = _only_choice(answer)
            message = choice.get("message")
            content = message.get("content") if isinstance(message, dict) else 0
            if content is not None and not isinstance(content, str):
                raise ValueError("its choice has no message with a text")
            said = "".join(c if c in CHARACTERS else "?" for c in (content or "").strip()[: prompt.max_tokens])
            tokens = self.tokenizer(said, add_special_tokens=False)["input_ids"]
            if choice.get("finish_reason") != "length":
                tokens.append(self.tokenizer.eos_token_id)
            tokens = (tokens or self.tokenizer("?")["input_ids"])[: prompt.max_tokens]
            return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), tokens[-1] == self.tokenizer.eos_token_id)

        return self._client.post("chat/completions", body | self._sampling(prompt), take, _limit(prompt))

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
    tokenizer = read_tokenizer(name, folder)
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
    names = client.get("models", _names)
    if len(names) != 1:
        shown = ", ".join(name[:99] for name in names[:5])
        raise EarlError(f"the server at {client.url} serves {len(names)} models ({shown}); name one with --model")
    return names[0]


def _names(answer: Any) -> list[str]:
    listed = answer.get("data") if isinstance(answer, dict) else None
    names = [entry.get("id") if isinstance(entry, dict) else None for entry in _list(listed, "models")]
    known = [name for name in names if isinstance(name, str)]
    if len(known) < len(names):
        raise ValueError("it lists a model without a name")
    return known


def _only_choice(answer: Any) -> dict[str, Any]:
    choices = _list(answer.get("choices") if isinstance(answer, dict) else None, "choices")
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise ValueError(f"it holds {len(choices)} choices, and one was asked for")
    return choices[0]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"it holds no list of {what}")
    return value


def _ids(value: Any, most: int, vocabulary: int) -> list[int]:
    tokens = _list(value, "token ids")
    if not 1 <= len(tokens) <= most:
        raise ValueError(f"it holds {len(tokens)} tokens, and 1 to {most} were asked for")
    if any(type(token) is not int or not 0 <= token < vocabulary for token in tokens):
        raise ValueError(f"it holds what is no token id of a vocabulary of {vocabulary}")
    return tokens


def _logprobs(value: Any, length: int) -> list[float]:
    """0 where the server tells none."""
    if value is None:
        return [0.0] * length
    told = _list(value.get("token_logprobs") if isinstance(value, dict) else None, "log-probs")
    if len(told) != length or any(type(p) not in (int, float) or not -MOST < p < ROUNDING for p in told):
        raise ValueError(f"its log-probs are not {length} finite numbers of at most 0")
    return [min(0.0, float(p)) for p in told]


def _limit(prompt: Prompt) -> int:
    """Bytes of an answer with one completion."""
    return REPLY_BYTES + TOKEN_BYTES * prompt.max_tokens
