"""JSON over HTTP to an OpenAI-compatible server: with retries, and with a key that only the environment knows."""

import http.client
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from earl.errors import EarlError

KEY = "EARL_API_KEY"
"""The environment variable that holds the server's key, where it wants one."""
TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
"""Doubled after every failure."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which it is worth to ask again."""
REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Client:
    """A server, by its address up to /v1.

    Raises:
        EarlError: when the address is none, or from its methods, when the server refuses or does not answer.
    """

    url: str
    timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.username:
            raise EarlError(
                f"{self.url!r} is no address of a server; give one such as http://localhost:8000/v1 (a key, where it "
                f"needs one, goes into the environment variable {KEY})"
            )

    def get(self, path: str) -> Any:
        """What the server has at a path."""
        return self._ask(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The server's answer to a request."""
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, data: bytes | None) -> Any:
        pause, reason = FIRST_PAUSE_SECONDS, ""
        for number in range(TRIES):
            if number:
                time.sleep(pause)
                pause *= 2
            try:
                with urlopen(self._request(path, data), timeout=self.timeout_seconds) as answer:
                    return json.load(answer)
            except HTTPError as error:
                reason = f"{error.code} {_said(error)}"
                if error.code not in PASSING:
                    raise EarlError(f"the server at {self.url} refuses {path}: {reason}; {_cure(error.code)}") from None
            except (URLError, TimeoutError, ConnectionError, http.client.HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise EarlError(
            f"the server at {self.url} gave no answer to {path} in {TRIES} tries, the last: {reason}; "
            "check that it runs and can be reached from here"
        )

    def _request(self, path: str, data: bytes | None) -> Request:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        return Request(f"{self.url.rstrip('/')}/{path}", data, headers)


def _said(error: HTTPError) -> str:
    """What the server says of its refusal, without the key, should it repeat that."""
    text = error.read(1 << 16).decode("utf-8", "replace").replace(os.environ.get(KEY) or "\0", "***")
    return " ".join(text.split())[:REASON_CHARACTERS] or str(error.reason)


def _cure(code: int) -> str:
    if code in (401, 403):
        return f"set the environment variable {KEY} to a key that it takes"
    return "check the address, which ends in /v1, and the model's name"
