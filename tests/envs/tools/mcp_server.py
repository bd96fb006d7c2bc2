"""An MCP server for tests: `mcp_server.py` speaks over standard input and output, `mcp_server.py PORT` over HTTP."""

import os
import sys
import time

from mcp.server import MCPServer

server, notes = MCPServer("notes"), []


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def note(text: str) -> str:
    """Keep a text, and list all that are kept."""
    notes.append(text)
    return ", ".join(notes)


@server.tool()
def wrong() -> str:
    """Fail."""
    raise RuntimeError("it is broken")


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    os._exit(1)


@server.tool()
def stay() -> str:
    """Do not answer."""
    time.sleep(60)
    return "late"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
