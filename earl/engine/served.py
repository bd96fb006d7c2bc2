"""Samples from an OpenAI-compatible server, for evaluation; it cannot be trained with, since it takes no weights.

token ids   vLLM's server and a local tokenizer: token ids are sent and received
text        any server: the conversation is sent as messages, and a token is a character of the reply
"""

import http.client
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Timer
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from earl.agents.chat import stop_ids
from earl.engine.model import character_tokenizer, read_tokenizer
from earl.engine.source import HUB_ID, folder_of
from earl.envs.base import CHARACTERS
from earl.errors import EarlError
from earl.trajectory import Completion, Prompt

# JSON over HTTP to an untrusted server, with deadlines, limits and retries. The key, known only from the environment,
# goes to the user's address and nowhere else: no redirect is followed, and no proxy of the environment is used.

R = TypeVar("R")

KEY = "EARL_API_KEY"  # environment variable with the server's key, if it needs one
TRIES = 5
FIRST_PAUSE_SECONDS = 0.5  # doubled after every failure
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # status codes worth a retry
REASON_CHARACTERS = 300
LIST_BYTES = 4 << 20  # limit of the list of models


class BadReply(EarlError):
    """A server's reply breaks the protocol."""


@dataclass(frozen=True, slots=True)
class Client:
    """A server, by its address up to /v1; an invalid address raises EarlError. Its methods raise EarlError when the
    server refuses or does not answer, BadReply when replies break the protocol."""

    url: str
    timeout_seconds: float = 120.0  # of one try, from the connection to the last byte
    total_seconds: float = 300.0  # of all tries and the pauses between them

    def __post_init__(self) -> None:
        parts = urlsplit(self.url) if self.url.isascii() and self.url.isprintable() and " " not in self.url else None
        try:
            fit = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # not a valid port
            fit = False
        if parts is None or not fit or "@" in parts.netloc or parts.query or parts.fragment:
            raise EarlError(
                f"{self.url!r} is no address of a server; give one such as http://localhost:8000/v1 (a key, where it "
                f"needs one, goes into the environment variable {KEY})"
            )

    def ask(
        self, path: str, take: Callable[[Any], R], body: Mapping[str, Any] | None = None, limit_bytes: int = LIST_BYTES
    ) -> R:
        """What `take` reads from the answer at a path, of at most `limit_bytes`; it raises ValueError to have the
        request repeated. body: is posted."""
        data = None if body is None else json.dumps(body).encode()
        end = time.monotonic() + self.total_seconds
        for number in range(1, TRIES + 1):
            try:
                answer = self._exchange(path, data, limit_bytes, min(end, time.monotonic() + self.timeout_seconds))
                return take(json.loads(answer))
            except OSError as error:
                reason, bad = str(error) or type(error).__name__, False
            except EarlError:
                raise
            except (http.client.HTTPException, ValueError, RecursionError) as error:
                reason, bad = f"{type(error).__name__}: {error}".partition(" [type=")[0], True  # as pydantic ends
            pause = FIRST_PAUSE_SECONDS * 2 ** (number - 1)
            if time.monotonic() + pause >= end or number == TRIES:
                break
            time.sleep(pause)
        what, cure = "no answer", "check that it runs and can be reached from here without a proxy"
        if bad:
            what, cure = "no valid answer", "check that it is an OpenAI-compatible server"
        raise (BadReply if bad else EarlError)(
            f"the server at {self.url} gave {what} to {path} in {number} tries, the last: {_excerpt(reason)}; {cure}"
        )

    def _exchange(self, path: str, data: bytes | None, limit: int, end: float) -> bytes:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname, parts.port, timeout=max(0.001, end - time.monotonic()))
        with closing(connection):
            connection.connect()
            # Ends the reply at the deadline, however slowly its bytes come: a timeout holds for one read only.
            timer = Timer(end - time.monotonic(), _shut_down, [connection.sock])
            timer.start()
            try:
                method, url = "GET" if data is None else "POST", f"{parts.path.rstrip('/')}/{path}"
                connection.request(method, url, data, _headers())
                with connection.getresponse() as answer:
                    body = answer.read(limit + 1)
            except (OSError, http.client.HTTPException):
                _check_time(end)
                raise
            finally:
                timer.cancel()
        _check_time(end)
        if 200 <= answer.status < 300:
            return _checked_body(answer, body, limit)
        reason = _excerpt(f"{answer.status} {_error_text(answer, body)}")
        if answer.status in PASSING:
            raise _Passing(reason)
        raise EarlError(f"the server at {self.url} refuses {path}: {reason}; {_cure(answer.status)}")


class _Passing(OSError):
    """A status worth a retry."""


def _shut_down(sock: socket) -> None:
    with suppress(OSError):  # the server was faster
        sock.shutdown(SHUT_RDWR)


def _check_time(end: float) -> None:
    if time.monotonic() >= end:
        raise TimeoutError("timed out")


def _checked_body(answer: http.client.HTTPResponse, body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    if answer.length:
        raise ValueError(f"it ends {answer.length} bytes before the length that it gave")
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it is compressed, which was not asked for")
    return body.replace((os.environ.get(KEY) or "\0").encode(), b"***")


def _headers() -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY):
        if not key.isascii() or not key.isprintable() or key != key.strip():
            raise EarlError(f"the key in {KEY} holds characters that no header can; set it again, without white space")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _excerpt(text: str) -> str:
    """The beginning of a server's text, in one line, without the key in case it is echoed."""
    return " ".join(text.replace(os.environ.get(KEY) or "\0", "***").split())[:REASON_CHARACTERS]


def _error_text(answer: http.client.HTTPResponse, body: bytes) -> str:
    if 300 <= answer.status < 400:
        return f"it redirects to {answer.headers.get('Location', 'nowhere')!r}"
    return body[: 1 << 16].decode("utf-8", "replace").strip() or answer.reason


def _cure(code: int) -> str:
    if 300 <= code < 400:
        return "redirects are not followed, as the key would go along: give the address where the server is"
    if code in (401, 403):
        return f"set the environment variable {KEY} to a key that it takes"
    return "check the address, which ends in /v1, and the model's name"


CONNECTIONS = 64  # concurrent requests
SLACK_TOKENS = 16
"""Tokens that a server may use beyond one per character of a reply, such as end tokens."""
REPLY_BYTES, TOKEN_BYTES = 1 << 18, 1 << 10  # limits of an answer: fixed part, and per token
MOST, ROUNDING = 1e6, 1e-3
"""A log-prob is above -MOST, and above 0 by rounding only."""


class Checked(BaseModel):
    """What is read of a server's answer. Other fields are ignored."""

    model_config = ConfigDict(strict=True)


class ListedModel(Checked):
    id: str


class ModelList(Checked):
    data: list[ListedModel]


class TextMessage(Checked):
    content: str | None = None


class TextChoice(Checked):
    message: TextMessage
    finish_reason: Any = None


class TextReply(Checked):
    choices: list[TextChoice] = Field(min_length=1, max_length=1)


class TokenLogprobs(Checked):
    token_logprobs: list[Annotated[float, Field(gt=-MOST, lt=ROUNDING)]]


class TokenChoice(Checked):
    token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None


class TokenReply(Checked):
    choices: list[TokenChoice] = Field(min_length=1, max_length=1)


MESSAGE = re.compile(r"<\|(system|user|assistant|tool)\|>(.*?)<\|end\|>", re.DOTALL)


class ServedSampler:
    """Completes prompts through a server, greedily or at temperature 1. model: the server's name of it; None: the
    only one served. tokenizer: None means text. Raises EarlError when the server does not answer, has no such model,
    or returns no token ids where they are needed."""

    def __init__(self, client: Client, model: str | None = None, tokenizer: Any = None) -> None:
        self._client, self._model = client, model or _only_model(client)
        self._exact = tokenizer is not None
        self.tokenizer = tokenizer if self._exact else character_tokenizer()
        self._threads = ThreadPoolExecutor(CONNECTIONS, "earl-served")

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order; `logprobs` are 0 where the server returns none. A prompt without a valid
        reply gets a completion with an `error`."""
        return list(self._threads.map(self._complete, prompts))

    def release(self, sessions: Sequence[int]) -> None:
        """A no-op."""

    def _complete(self, prompt: Prompt) -> Completion:
        try:
            return self._exactly(prompt) if self._exact else self._by_text(prompt)
        except BadReply as error:
            return Completion([], [], [], False, error=str(error))

    def _exactly(self, prompt: Prompt) -> Completion:
        stop, vocabulary = stop_ids(self.tokenizer), len(self.tokenizer)
        extra = {"return_token_ids": True, "stop_token_ids": sorted(stop), "ignore_eos": True, "logprobs": 0}
        asked = {"prompt": list(prompt.tokens), "max_tokens": prompt.max_tokens, **extra}

        def take(answer: Any) -> Completion:
            [choice] = TokenReply.model_validate(answer).choices
            tokens, logprobs = choice.token_ids, choice.logprobs.token_logprobs if choice.logprobs else None
            if tokens is None:
                raise EarlError(
                    f"the server at {self._client.url} returns no token ids, which only vLLM's does; name a model that "
                    "is not here, by the name that the server knows, to speak to it in text"
                )
            if not 1 <= len(tokens) <= prompt.max_tokens or not all(0 <= token < vocabulary for token in tokens):
                raise ValueError(f"it holds no 1 to {prompt.max_tokens} token ids of a vocabulary of {vocabulary}")
            if logprobs is not None and len(logprobs) != len(tokens):
                raise ValueError(f"it holds {len(logprobs)} log-probs of {len(tokens)} tokens")
            scores = [min(0.0, score) for score in logprobs or [0.0] * len(tokens)]
            return Completion(tokens, scores, [0] * len(tokens), tokens[-1] in stop)

        return self._asked("completions", prompt, asked, take)

    def _by_text(self, prompt: Prompt) -> Completion:
        """Messages in, text out; characters outside of CHARACTERS become question marks."""
        written = self.tokenizer.decode(prompt.tokens, skip_special_tokens=False)
        body = {"messages": messages(written), "max_tokens": prompt.max_tokens + SLACK_TOKENS}

        def take(answer: Any) -> Completion:
            [choice] = TextReply.model_validate(answer).choices
            content = (choice.message.content or "").strip()[: prompt.max_tokens]
            said = "".join(c if c in CHARACTERS else "?" for c in content)
            tokens = self.tokenizer(said, add_special_tokens=False)["input_ids"]
            if choice.finish_reason != "length":
                tokens.append(self.tokenizer.eos_token_id)
            tokens = (tokens or self.tokenizer("?")["input_ids"])[: prompt.max_tokens]
            return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), tokens[-1] == self.tokenizer.eos_token_id)

        return self._asked("chat/completions", prompt, body, take)

    def _asked(
        self, path: str, prompt: Prompt, body: Mapping[str, Any], take: Callable[[Any], Completion]
    ) -> Completion:
        how = {"temperature": 0.0 if prompt.greedy else 1.0, "seed": prompt.seed % (1 << 31)}
        limit = REPLY_BYTES + TOKEN_BYTES * prompt.max_tokens
        return self._client.ask(path, take, {"model": self._model, **how, **body}, limit)


def served_sampler(url: str, name: str, model: str | None) -> ServedSampler:
    """The model behind a server. name: a folder or hub id, for its tokenizer; anything else is only a name, and text is
    exchanged. model: the server's name of it; absent: `name`, or for a folder the only one that it serves."""
    client = Client(url)
    if not Path(name).exists() and not HUB_ID.fullmatch(name):
        return ServedSampler(client, model or name)
    folder = folder_of(name, weights=False)
    tokenizer = read_tokenizer(name, folder)
    return ServedSampler(client, model or (None if Path(name).exists() else name), tokenizer)


def messages(text: str) -> list[dict[str, str]]:
    """The conversation in a prompt of earl's own tokenizer, as messages with role and content."""
    spoken = [{"role": role, "content": content} for role, content in MESSAGE.findall(text)]
    # Servers that were told of no tool calls take a tool's output as a user turn.
    return [{**message, "role": "user"} if message["role"] == "tool" else message for message in spoken]


def _only_model(client: Client) -> str:
    names = client.ask("models", lambda answer: [model.id for model in ModelList.model_validate(answer).data])
    if len(names) != 1:
        shown = ", ".join(name[:99] for name in names[:5])
        raise EarlError(f"the server at {client.url} serves {len(names)} models ({shown}); name one with --model")
    return names[0]
