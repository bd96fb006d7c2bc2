"""Tools of real MCP servers, over standard input and output and over HTTP, and servers that end in a call."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")
pytestmark = pytest.mark.slow  # a server takes seconds to start

from earl.envs.tools.mcp import McpEnv, Schema  # noqa: E402
from earl.errors import EarlError  # noqa: E402

SERVER = Path(__file__).parent / "mcp_server.py"


def env_of(at):
    class Notes(McpEnv):
        """A task of notes."""

        instructions, server = "Use the tools.", at

        def task(self, rng):
            return "Go on."

        def score(self, answer):
            return float(answer == "3")

    env = Notes()
    env.reset(seed=0)
    return env


def outcomes(info):
    return [(call.tool, call.fault) for call in info["tool_calls"]]


def serve(port):
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.1)
    raise AssertionError("the server does not listen")


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


STDIO = f"{sys.executable} {SERVER}"


def test_tools_of_a_server_are_called_and_checked_by_their_schemas():
    env = env_of(STDIO)
    try:
        schema = env.known()["add"].schema["function"]
        assert schema["description"] == "Add two numbers." and schema["parameters"]["required"] == ["a"]
        assert env.step('[add(2, b=3), note("x")]')[0] == "1: 5\n2: x"
        assert env.step('{"name": "note", "parameters": {"text": "y"}}')[0] == "x, y"
        told = env.step("wrong()")
        assert "it is broken" in told[0] and outcomes(told[4]) == [("wrong", "refused")]
        for call in ('add("2")', "add()", "add(1, 2, 3)", "add(a=1, c=2)", "no()"):
            assert env.step(call)[4].get("illegal", "").startswith("illegal: ") or call == "add(a=1, c=2)"
        env.reset(seed=1)
        assert env.step('note("z")')[0] == "z"  # another episode, another server
        assert env.step("<answer>3</answer>")[1:3] == (1.0, True)
    finally:
        env.close()


def test_a_server_that_ends_in_a_call_is_an_observation_and_the_episode_goes_on():
    env = env_of(STDIO)
    try:
        assert env.step('note("x")')[0] == "x"
        told, _, terminated, truncated, info = env.step("die()")
        assert told.startswith("error: ") and not (terminated or truncated)
        assert outcomes(info) == [("die", "faults")]
        assert env.step('note("y")')[0] == "y"  # of a new one
    finally:
        env.close()


def test_a_server_over_http_that_ends_in_a_call_and_comes_back(port):
    process = serve(port)
    try:
        env = env_of(f"http://127.0.0.1:{port}/mcp")
        assert env.step("add(2)")[0] == "3"
        assert outcomes(env.step("die()")[4]) == [("die", "faults")]
        process.wait()
        lost = env.step("add(3)")
        assert "cannot be reached" in lost[0] and outcomes(lost[4]) == [("add", "faults")]
        process = serve(port)
        assert env.step("add(4)")[0] == "5"
        env.close()
    finally:
        process.kill()
        process.wait()


def test_a_call_that_takes_too_long_is_given_up():
    env = env_of(STDIO)
    try:
        assert env.step("add(1)")[0] == "2"
        env.connection.seconds = 1.0
        told = env.step("stay()")
        assert told[0] == "error: it took more than 1.0 s"
        assert outcomes(told[4]) == [("stay", "timeouts")]
    finally:
        env.close()


def test_a_server_that_does_not_start_is_refused():
    with pytest.raises(EarlError, match="the MCP server 'no-such-program' cannot be reached: "):
        env_of("no-such-program").known()


def test_a_schema_fetches_nothing_that_it_refers_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        schema = Schema({"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"})
        with pytest.raises(ValueError, match="refers to what it does not hold"):
            schema.validate_json("{}")
        with pytest.raises(BlockingIOError):
            server.accept()
