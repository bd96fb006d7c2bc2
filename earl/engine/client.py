"""JSON over HTTP to an OpenAI-compatible server, which may be anybody's: with deadlines, limits and retries.

The key, which only the environment knows, goes to the address that the user gave and nowhere else: no redirect is
followed, and no proxy of the environment is used.
"""

import http.client
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from socket import socket
from typing import Any, TypeVar
from urllib.parse import urlsplit

from earl.errors import EarlError

R = TypeVar("R")

KEY = "EARL_API_KEY"
"""The environment variable that holds the server's key, where it wants one."""
TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
"""Doubled after every failure."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which it is worth to ask again."""
REASON_CHARACTERS = 300
LIST_BYTES = 4 << 20
"""Of an answer that lists models."""


class BadReply(EarlError):
    """A server answers, but not in the protocol."""


@dataclass(frozen=True, slots=True)
class Client:
    """A server, by its address up to /v1.

    Raises:
        EarlError: when the address is none, or from its methods, when the server refuses or does not answer.
        BadReply: from its methods, when its answers break the protocol.
    """

    url: str
    timeout_seconds: float = 120.0
    """Of one try, from the connection to the last byte."""
    total_seconds: float = 300.0
    """Of all tries and the pauses between them."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url) if self.url.isascii() and self.url.isprintable() and " " not in self.url else None
        try:
            fit = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            fit = False
        if parts is None or not fit or "@" in parts.netloc or parts.query or parts.fragment:
            raise EarlError(
                f"{self.url!r} is no address of a server; give one such as http://localhost:8000/v1 (a key, where it "
                f"needs one, goes into the environment variable {KEY})"
            )

    def get(self, path: str, take: Callable[[Any], R]) -> R:
        """What the server has at a path.

        Args:
            take: reads the answer, and raises ValueError for one that breaks the protocol: it is asked for again.
        """
        return self._ask(path, None, take, LIST_BYTES)

    def post(self, path: str, body: Mapping[str, Any], take: Callable[[Any], R], limit_bytes: int) -> R:
        """The server's answer to a request, of at most `limit_bytes`."""
        return self._ask(path, json.dumps(body).encode(), take, limit_bytes)

    def _ask(self, path: str, data: bytes | None, take: Callable[[Any], R], limit: int) -> R:
        end = time.monotonic() + self.total_seconds
        pause, number, reason, kind = FIRST_PAUSE_SECONDS, 0, "", EarlError
        while number < TRIES and (left := end - time.monotonic()) > 0:
            if number:
                if pause >= left:
                    break
                time.sleep(pause)
                pause *= 2
            number += 1
            try:
                body = self._exchange(path, data, limit, min(end, time.monotonic() + self.timeout_seconds))
                return take(json.loads(body))
            except _Passing as error:
                reason, kind = str(error), EarlError
            except EarlError:
                raise
            except OSError as error:
                reason, kind = str(error) or type(error).__name__, EarlError
            except (http.client.HTTPException, ValueError, RecursionError) as error:
                reason, kind = f"{type(error).__name__}: {error}", BadReply
        what, cure = "no answer", "check that it runs and can be reached from here without a proxy"
        if kind is BadReply:
            what, cure = "no valid answer", "check that it is an OpenAI-compatible server"
        reason = _without_key(reason)[:REASON_CHARACTERS]
        raise kind(f"the server at {self.url} gave {what} to {path} in {number} tries, the last: {reason}; {cure}")

    def _exchange(self, path: str, data: bytes | None, limit: int, end: float) -> bytes:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname, parts.port, timeout=_left(end))
        connection.response_class = partial(_Response, end=end)  # type: ignore[assignment]
        try:
            method = "GET" if data is None else "POST"
            connection.request(method, f"{parts.path.rstrip('/')}/{path}", data, _headers())
            with connection.getresponse() as answer:
                body = answer.read(limit + 1)
                if 200 <= answer.status < 300:
                    return _whole(answer, body, limit)
                reason = _without_key(f"{answer.status} {_said(answer, body)}")[:REASON_CHARACTERS]
        finally:
            connection.close()
        if answer.status in PASSING:
            raise _Passing(reason)
        raise EarlError(f"the server at {self.url} refuses {path}: {reason}; {_cure(answer.status)}")


class _Passing(Exception):
    """An answer after which it is worth to ask again."""


class _Response(http.client.HTTPResponse):
    """A response that has to be there, to the last byte, before a moment of the monotonic clock."""

    def __init__(self, sock: socket, *arguments: Any, end: float, **keywords: Any) -> None:
        super().__init__(sock, *arguments, **keywords)
        self._kept, self.fp = self.fp, io.BufferedReader(_Timed(sock, end))  # the first one holds the socket open

    def close(self) -> None:
        super().close()
        self._kept.close()


class _Timed(io.RawIOBase):
    """Reads a socket before a moment of the monotonic clock, however slowly the bytes come."""

    def __init__(self, sock: socket, end: float) -> None:
        self._sock, self._end = sock, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._end))
        return self._sock.recv_into(buffer)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _whole(answer: http.client.HTTPResponse, body: bytes, limit: int) -> bytes:
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


def _without_key(text: str) -> str:
    """A server's text without the key, should it repeat that."""
    return text.replace(os.environ.get(KEY) or "\0", "***")


def _said(answer: http.client.HTTPResponse, body: bytes) -> str:
    if 300 <= answer.status < 400:
        return f"it redirects to {answer.headers.get('Location', 'nowhere')!r}"
    return " ".join(body[: 1 << 16].decode("utf-8", "replace").split()) or answer.reason


def _cure(code: int) -> str:
    if 300 <= code < 400:
        return "redirects are not followed, as the key would go along: give the address where the server is"
    if code in (401, 403):
        return f"set the environment variable {KEY} to a key that it takes"
    return "check the address, which ends in /v1, and the model's name"
