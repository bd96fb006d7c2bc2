"""A tool is a typed Python function; a reply calls it in the format of its model's family.

reply ─▶ read_calls(): families, names, arguments against the signature ─▶ Calls ─▶ run_calls(): one observation

    hermes     <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>, one after another
    llama      {"name": "add", "parameters": {"a": 1, "b": 2}}, with "; " between; <|python_tag|> may stand before
    mistral    [TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}}], or [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}
    pythonic   [add(a=1, b=2), add(3, 4)], which may stand between <|python_start|> and <|python_end|>
    plain      add(1, 2)

A reply is calls of one family and nothing beside them. What is wrong with one is told to the agent: CallError.
"""

import ast
import inspect
import json
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from earl.actions.pool import pool
from earl.envs.base import awaited
from earl.errors import EarlError, boundary
from earl.sandbox.base import ExecResult
from earl.trajectory import ToolCall

MOST_CALLS = 16
"""In one reply."""
MOST_CHARACTERS = 1 << 16
"""Of a reply with calls."""
RESULT_CHARACTERS = 2000
"""That the agent is shown of the results of a reply's calls, each with the same share."""


class CallError(ValueError):
    """A reply whose calls are not carried out; the message is told to the agent."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What `tool_of` makes of a function. A first parameter `self` is not the model's: it is the environment."""

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]
    """As chat templates take it: {"type": "function", "function": {"name": …, "description": …, "parameters": …}}."""
    parameters: tuple[str, ...]
    arguments: TypeAdapter[Any]
    """Checks arguments as JSON, strictly, and gives them as keywords."""
    of_environment: bool


@cache
def tool_of(function: Callable[..., Any]) -> Tool:
    """A tool with the schema of a function's signature and docstring; a parameter is described by
    `Annotated[int, Field(description="…")]`. Raises EarlError for a signature that has no such schema."""
    name, signature = function.__name__, inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.name != "self"]
    odd = [one.name for one in own if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if odd or any(one.annotation is one.empty for one in own):
        raise EarlError(f"the tool {name} has a parameter without a type, or *, ** or /; write each as `name: type`")

    def keywords(**given: Any) -> dict[str, Any]:
        return given

    hints = inspect.get_annotations(function, eval_str=True)
    named = [one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    keywords.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    keywords.__annotations__ = {one.name: one.annotation for one in named}
    try:
        strict = ConfigDict(strict=True, allow_inf_nan=False)
        arguments: TypeAdapter[Any] = TypeAdapter(cast(Any, keywords), config=strict)
        parameters = arguments.json_schema()
    except PydanticUserError as error:
        raise EarlError(f"the tool {name} has a parameter without a JSON schema: {error.message}") from error
    for one in parameters["properties"].values():
        one.pop("title", None)  # the name again
    described = {"name": name, "description": inspect.getdoc(function) or "", "parameters": parameters}
    schema, names = {"type": "function", "function": described}, tuple(one.name for one in own)
    return Tool(name, function, schema, names, arguments, "self" in signature.parameters)


@dataclass(frozen=True, slots=True)
class Call:
    """`[add(1, b=2)]` gives one Call(tool of add, {"a": 1, "b": 2})."""

    tool: Tool
    arguments: Mapping[str, Any]


WrittenCall = tuple[str, Sequence[Any], Mapping[str, Any]]
"""A call as it was written: name, arguments in order, arguments by name."""


def read_calls(text: str, tools: Mapping[str, Tool]) -> list[Call]:
    """The calls of a reply; none: it has none, and is an answer. Raises CallError."""
    family = next((own for mark, own in FAMILIES.items() if re.match(mark, text.strip())), None)
    if family is None:
        if mark := re.search(r"</?tool_call>|\[TOOL_CALLS\]|<\|python_(tag|start|end)\|>", text):
            raise CallError(f"illegal: text stands before {mark[0]}; write calls alone, or an answer alone")
        return []
    if len(text) > MOST_CHARACTERS:
        raise CallError(f"illegal: a call of more than {MOST_CHARACTERS} characters")
    with _explained_to_agent():
        written = [*family(text.strip())]
    if len(written) > MOST_CALLS:
        raise CallError(f"illegal: {len(written)} calls; at most {MOST_CALLS} at once")
    calls = [_check_call(one, tools) for one in written]
    if any(call in calls[:number] for number, call in enumerate(calls)):
        raise CallError("illegal: the same call twice")
    return calls


def run_calls(calls: Sequence[Call], environment: object = None, records: list[ToolCall] | None = None) -> str:
    """What the tools return, as one text. A tool that fails or takes too long says so there, and in `records`. Each
    call is an action, which may wait for a core and for the tool's limits before its time begins."""
    results, records = [], [] if records is None else records
    since = getattr(environment, "since", None)
    for call in calls:
        cores = (1,) if getattr(environment, "external", False) else ()
        with pool().action(call.tool.name, cores, since) as admitted:
            text, fault = _result(call, environment)
        records.append(admitted.record(fault))
        results.append(format_result(text, RESULT_CHARACTERS // len(calls)))
    return results[0] if len(results) == 1 else "\n".join(f"{number}: {text}" for number, text in enumerate(results, 1))


def format_result(text: str, longest: int = RESULT_CHARACTERS) -> str:
    """A result as the agent reads it: printable ASCII, and what is cut says so."""
    begin = text[:longest].replace("\r\n", "\n").replace("\t", "    ")
    safe = "".join(one if one == "\n" or " " <= one <= "~" else ascii(one)[1:-1] for one in begin)
    cut = len(text) > longest or len(safe) > longest
    return safe[:longest].strip("\n") + f"\n[cut: {len(text)} characters in all]" * cut


def _result(call: Call, environment: object) -> tuple[str, str]:
    """What a call returns, as text, and what became of it: refused by the tool, timeouts, faults, or "" for neither."""
    before = (environment,) if call.tool.of_environment else ()
    with boundary() as fault:
        try:
            value = awaited(call.tool.function(*before, **call.arguments))
        except ValueError as error:  # by which a tool refuses what it was given
            kinds = {"timeouts": TimedOut, "faults": Failed, "refused": ValueError}
            return f"error: {error}", next(name for name, kind in kinds.items() if isinstance(error, kind))
        if isinstance(value, ExecResult):
            return value.text, "timeouts" if value.how == "timeout" else "" if value.ok else "faults"
        return value if isinstance(value, str) else json.dumps(value, default=str), ""
    return f"error: {fault.message}", "faults"


class TimedOut(EarlError):
    """A call that took too long."""


class Failed(EarlError):
    """A call that failed, by no refusal of the tool."""


def _check_call(written: WrittenCall, tools: Mapping[str, Tool]) -> Call:
    name, ordered, named = written
    if name not in tools:
        raise CallError(f"illegal: unknown tool {name[:99]!a}; tools: {', '.join(tools)}")
    tool = tools[name]
    first = dict(zip(tool.parameters, ordered, strict=False))
    if len(ordered) > len(tool.parameters) or first.keys() & named.keys():
        raise CallError(f"illegal: {name} takes {', '.join(tool.parameters) or 'nothing'}, each once")
    with _explained_to_agent():
        arguments = tool.arguments.validate_json(json.dumps({**first, **named}, allow_nan=False))
    return Call(tool, arguments)


@contextmanager
def _explained_to_agent() -> Iterator[None]:
    """Turn what a parser raises for a text into what the agent is told."""
    try:
        yield
    except CallError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise CallError(f"illegal: argument {'.'.join(map(str, first['loc']))[:99]}: {first['msg'][:200]}") from None
    except (RecursionError, MemoryError):
        raise CallError("illegal: a call that is nested too deeply") from None
    except (ValueError, TypeError, SyntaxError) as error:
        raise CallError(f"illegal: cannot read the call: {str(error)[:200]}") from None


# Families: the calls of a text, as they were written.


def _hermes(text: str) -> Iterator[WrittenCall]:
    while text:
        value, text = _json(_after(text, "<tool_call>"))
        yield _written_call(value, "arguments")
        text = _after(text, "</tool_call>")


def _llama(text: str) -> Iterator[WrittenCall]:
    text = text.removeprefix("<|python_tag|>").strip()
    while text:
        value, text = _json(text)
        yield _written_call(value, "parameters")
        text = _after(text, ";") if text else ""


def _mistral(text: str) -> Iterator[WrittenCall]:
    while text:
        text = _after(text, "[TOOL_CALLS]")
        name = re.match(r"([\w.-]*)\s*(?:\[ARGS\])", text)
        value, text = _json(text[name.end() :] if name else text)
        if name is None and not (isinstance(value, list) and value):
            raise CallError('illegal: write [TOOL_CALLS][{"name": ..., "arguments": {...}}]')
        for one in value if name is None else [{"name": name[1], "arguments": value}]:
            yield _written_call(one, "arguments")


def _pythonic(text: str) -> Iterator[WrittenCall]:
    bare = text.removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    listed = parsed(bare)
    if not isinstance(listed, ast.List) or not listed.elts:
        raise CallError("illegal: write [name(argument=value)]")
    yield from map(_python_call, listed.elts)


def _plain(text: str) -> Iterator[WrittenCall]:
    yield _python_call(parsed(text))


FAMILIES: dict[str, Callable[[str], Iterator[WrittenCall]]] = {
    r"<tool_call>": _hermes,
    r"\[TOOL_CALLS\]": _mistral,
    r"<\|python_tag\|>|\{": _llama,
    r"<\|python_start\|>|\[\s*[A-Za-z_]\w*\s*\(": _pythonic,
    r"[A-Za-z_]\w*\(": _plain,
}
"""What a text in a family begins with, and how it is read."""


def _after(text: str, mark: str) -> str:
    if not text.startswith(mark):
        raise CallError(f"illegal: {mark} is missing before {text[:20]!a}" if text else f"illegal: {mark} is missing")
    return text.removeprefix(mark).lstrip()


def _written_call(value: object, key: str) -> WrittenCall:
    if not isinstance(value, dict) or not {"name", key} <= value.keys() <= {"name", key, "type", "id"}:
        raise CallError(f'illegal: a call is {{"name": ..., "{key}": {{...}}}}')
    name, arguments = value["name"], value[key]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise CallError(f'illegal: "name" is a text, and "{key}" an object')
    return name, (), arguments


def _json(text: str) -> tuple[Any, str]:
    """The JSON that a text begins with, and the rest."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise CallError("illegal: a key stands twice in the JSON of a call")
        return found

    def constant(word: str) -> Any:
        raise CallError(f"illegal: {word} is no JSON")

    value, end = json.JSONDecoder(object_pairs_hook=once, parse_constant=constant).raw_decode(text)
    return value, text[end:].lstrip()


def parsed(text: str) -> ast.expr:
    """Python's expression in a text without comments. Raises SyntaxError, ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in a string
        expression = ast.parse(text, mode="eval").body
    if "#" in text and any(one.type == tokenize.COMMENT for one in tokenize.generate_tokens(StringIO(text).readline)):
        raise CallError("illegal: a comment stands beside the call")
    return expression


def _python_call(node: ast.expr) -> WrittenCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise CallError("illegal: a call is name(argument=value)")
    if any(one.arg is None for one in node.keywords):
        raise CallError("illegal: write each argument by itself, without **")
    names = [one.arg for one in node.keywords]
    if len({*names}) < len(names):
        raise CallError("illegal: an argument stands twice")
    ordered = [_literal(one) for one in node.args]
    return node.func.id, ordered, {str(one.arg): _literal(one.value) for one in node.keywords}


def _literal(node: ast.expr) -> Any:
    for one in ast.walk(node):
        if isinstance(one, ast.Dict):
            keys = [ast.literal_eval(key) for key in one.keys if key is not None]
            if len({*keys}) < len(keys):
                raise CallError("illegal: a key stands twice in an argument")
    return ast.literal_eval(node)
