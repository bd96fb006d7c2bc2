"""Tools of an MCP server: a program that speaks over its standard input and output, or a URL (streamable HTTP).

A connection is made at an episode's first call, and ends with the episode. A server that ends or fails in the middle of
a call is an observation for the agent; the next call connects anew, once.
"""

import asyncio
import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import jsonschema
import jsonschema_specifications
import referencing
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from earl.envs.base import awaited
from earl.envs.tools.base import ToolEnv
from earl.envs.tools.tool import Failed, TimedOut, Tool, tool_of
from earl.errors import EarlError, boundary


class Connection:
    """To one server. A task of its own holds it open, since what opens it has to close it."""

    def __init__(self, server: str, seconds: float) -> None:
        self.server, self.seconds = server, seconds
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None

    async def open(self) -> Any:
        """The client of the server, which is connected where it is not. Raises Failed."""
        if self._task is None or self._task.done():
            self._over, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(ready))
            done, _ = await asyncio.wait([ready], timeout=self.seconds)
            if not done or isinstance(fault := ready.result(), str):
                await self.close()
                raise Failed(f"the MCP server {self.server!r} cannot be reached: {fault if done else 'no answer'}")
            self._client = ready.result()
        return self._client

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        with boundary() as fault, Path(os.devnull).open("w") as nowhere:
            at: Any = self.server
            if not at.startswith(("http://", "https://")):
                command, *arguments = shlex.split(at)
                at = stdio_client(StdioServerParameters(command=command, args=arguments), errlog=nowhere)
            async with Client(at, cache=None) as client:
                ready.set_result(client)
                await self._over.wait()
        if not ready.done():
            ready.set_result(fault.message)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        client, result = await self.open(), None
        with boundary() as fault, suppress(TimeoutError):
            result = await asyncio.wait_for(client.call_tool(name, dict(arguments)), self.seconds)
        if result is None:
            await self.close()
            raise Failed(fault.message) if fault.message else TimedOut(f"it took more than {self.seconds} s")
        text = "\n".join(getattr(part, "text", f"[{part.type}]") for part in result.content)
        if result.is_error:
            raise ValueError(text)
        return text or json.dumps(result.structured_content)

    async def close(self) -> None:
        self._over.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self.seconds)
            self._task.cancel()


class Schema:
    """Checks arguments by a JSON schema, as a `TypeAdapter` does by types."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        # The default registry fetches what a schema refers to; this one has the published meta-schemas alone.
        self._validator = jsonschema.validators.validator_for(schema)(
            schema, registry=jsonschema_specifications.REGISTRY
        )

    def validate_json(self, text: str) -> Any:
        arguments = json.loads(text)
        try:
            error = jsonschema.exceptions.best_match(self._validator.iter_errors(arguments))
        except referencing.exceptions.Unresolvable as unknown:
            raise ValueError(f"the tool's schema refers to what it does not hold: {unknown}") from None
        if error is not None:
            raise ValueError(f"{error.json_path.removeprefix('$.')}: {error.message}")
        return arguments


def _tool(described: Any) -> Tool:
    async def call(environment: "McpEnv", **arguments: Any) -> str:
        return await environment.connection.call(described.name, arguments)

    schema = described.input_schema
    function = {"name": described.name, "description": described.description or "", "parameters": schema}
    names, checked = tuple(schema.get("properties", {})), cast(Any, Schema(schema))
    return Tool(described.name, call, {"type": "function", "function": function}, names, checked, True)


async def _listed(server: str, seconds: float) -> list[Any]:
    connection = Connection(server, seconds)
    client = await connection.open()
    try:
        found, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            if not (cursor := page.next_cursor):
                return found
    finally:
        await connection.close()


class McpEnv(ToolEnv):
    """A `ToolEnv` whose tools are those of the server, beside `tools` of its own."""

    server: ClassVar[str]
    """A command, such as "python -m my_server", or a URL."""
    seconds: ClassVar[float] = 30.0
    """Of a call, and of connecting."""

    @property
    def connection(self) -> Connection:
        if not hasattr(self, "_connection"):
            self._connection = Connection(self.server, self.seconds)
        return self._connection

    @classmethod
    @cache
    def known(cls) -> dict[str, Tool]:
        served = [_tool(one) for one in awaited(_listed(cls.server, cls.seconds))]
        tools = {tool.name: tool for tool in (*served, *map(tool_of, cls.tools))}
        if len(tools) < len(served) + len(cls.tools):
            raise EarlError(f"the MCP server {cls.server!r} and {cls.__name__}.tools have a tool of the same name")
        return tools

    def close(self) -> None:
        awaited(self.connection.close())
