"""Chat templates, which are programs that come with a model: rendered in a process that has little time and memory.

Chat ─▶ Template ─▶ one line of JSON ─▶ this file as a program: a sandboxed Jinja under limits ─▶ one line of JSON

The sandbox of Jinja bounds neither loops nor the size of what they make, and much of that size is made in single calls
(`'x' * 10**9`), which only the operating system can stop. earl's own template is rendered in this process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any

EARL_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The template of the models that earl creates."""
TEMPLATE_CHARACTERS = 1 << 20
TEXT_CHARACTERS = 1 << 20
"""Of one rendered conversation."""
SECONDS = 1.0
"""Of computing, for one request."""
MEMORY_BYTES = 256 << 20
"""Of addresses, the interpreter's own included."""

Message = Mapping[str, str]


class TemplateError(Exception):
    """A template that fails, or passes a limit."""


class Template:
    """A chat template.

    Args:
        tokens: the special tokens by name, as the template knows them.
        tools: the JSON schemas of tools that a reply may call, as the template's `tools`.

    Raises:
        TemplateError: from `render`.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._program: dict[str, Any] = {"template": source, "tokens": tokens, "tools": [*tools] or None}
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, conversation: Sequence[Message]) -> str:
        """The conversation's text, up to the point where a reply begins."""
        source = self._program["template"]
        if len(source) > TEMPLATE_CHARACTERS:
            raise TemplateError(f"it is longer than {TEMPLATE_CHARACTERS} characters")
        own = source == EARL_TEMPLATE
        answer = _rendered(_earl_template(), self._program, conversation) if own else self._asked(conversation)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return answer["text"]

    def _asked(self, conversation: Sequence[Message]) -> dict[str, str]:
        request = _line(conversation)
        with self._lock:
            answer = self._ask(request) or self._ask(request)  # another program may have ended the process
        if answer is None:
            raise TemplateError(f"it takes more than {SECONDS:g} s or {MEMORY_BYTES >> 20} MiB")
        return answer

    def _ask(self, request: bytes) -> dict[str, str] | None:
        """What the process says: a "text" or an "error"; None: it has ended."""
        if self._process is None or self._owner != os.getpid():  # a forked process has its parent's pipes
            self._owner = os.getpid()
            self._process, request = _start(), _line(self._program) + request
            self._close = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            answer: dict[str, str] = json.loads(line)
            return answer
        self._close()
        overtime = self._process.wait() == -signal.SIGPROF
        self._process = None
        return {"error": f"it takes more than {SECONDS:g} s"} if overtime else None


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _start() -> "subprocess.Popen[bytes]":
    # Nothing of the environment goes along, such as keys; the time zone is what `strftime_now` tells.
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-P", __file__, str(SECONDS)], env=environment, **pipes)


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None and process.stdout is not None
    process.kill()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait()


def _serve() -> None:
    """Render what the standard input asks for, until it ends."""
    import resource

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the parent, which may still render
        signal.signal(number, signal.SIG_IGN)
    program = json.loads(sys.stdin.buffer.readline())
    environment = _environment()
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)]
    if sys.platform == "linux":  # elsewhere it is not enforced, or counts memory that is only mapped
        limits.append((resource.RLIMIT_AS, MEMORY_BYTES))
    for kind, limit in limits:
        resource.setrlimit(kind, (limit, limit))
    compiled, seconds = None, float(sys.argv[1])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, in the midst of any call
        try:
            compiled = compiled or environment.from_string(program["template"])
            answer = _rendered(compiled, program, json.loads(line))
        except MemoryError:
            answer = {"error": f"it takes more than {MEMORY_BYTES >> 20} MiB"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        sys.stdout.buffer.write(_line(answer))
        sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _rendered(compiled: Any, program: Mapping[str, Any], conversation: Sequence[Message]) -> dict[str, str]:
    names = {"tools": program["tools"], "documents": None, "add_generation_prompt": True, **program["tokens"]}
    text = compiled.render({**names, "messages": conversation})
    fits = len(text) <= TEXT_CHARACTERS
    return {"text": text} if fits else {"error": f"it makes over {TEXT_CHARACTERS} characters"}


@cache
def _earl_template() -> Any:
    return _environment().from_string(EARL_TEMPLATE)


def _environment() -> Any:
    """As `transformers` sets Jinja up for chat templates."""
    from datetime import datetime

    import jinja2.ext
    from jinja2.nodes import CallBlock, Node
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what the assistant writes; here it is only text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Any) -> Any:
            return caller()

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    extensions = [Generation, jinja2.ext.loopcontrols]
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": lambda text: datetime.now().strftime(text)}
    return made


if __name__ == "__main__":
    _serve()
