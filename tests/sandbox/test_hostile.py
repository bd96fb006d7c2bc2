"""Hostile programs in a sandbox: each is contained and told, leaves nothing behind, and does not disturb others."""

import os
import re
import socket
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from earl.benchmarks.sandbox import cgroups, mounts
from earl.config import SandboxConfig
from earl.envs.tools.tool import format_result
from earl.sandbox import local
from earl.sandbox.base import SESSION
from earl.sandbox.inside import CONTAINERS
from earl.sandbox.local import LocalSandbox

PROGRAMS = tomllib.loads(Path(__file__).with_name("hostile.toml").read_text(encoding="utf-8"))
LIMITS = SandboxConfig(seconds=30, memory_mb=256, scratch_mb=16)
CANARY = "earl-canary-5e1f"


# Of these programs a kind of sandbox differs from another; each kind runs the same first process for the rest.
SAMPLE = (
    "fork_bomb",
    "memory_bomb_of_many",
    "disk_bomb",
    "read_secret",
    "see_processes",
    "kill_parent",
    "network_tcp",
    "overwrite_system",
    "become_root",
    "orphans",
    "descriptors_of_the_host",
)
KINDS = [("local", name) for name in PROGRAMS] + [(kind, name) for kind in local.PROGRAMS for name in SAMPLE]
why_not = cache(local.fault)


def processes():
    """Those of this machine that descend from this one, by id: name."""
    found, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        parents[int(path.parent.name)], found[int(path.parent.name)] = int(rest.split()[1]), name
    own = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in own} - own:
        own |= more
    return {one: found[one] for one in own}


@pytest.fixture(scope="module")
def neighbour():
    """Another sandbox, with a file and a server process that must not notice anything."""
    sandbox = LocalSandbox(LIMITS)
    sandbox.write_file("mine", b"untouched")
    yield sandbox
    sandbox.terminate()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """What a program may want of the host: a file, the environment, a server, and a socket without a path."""
    secret = tmp_path_factory.mktemp("host") / "secret-5e1f"
    secret.write_text(CANARY)
    os.environ["EARL_SECRET"] = CANARY
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unnamed:
        unnamed.bind(f"\0earl-canary-{os.getpid()}")
        unnamed.listen()
        yield {"SECRET": str(secret), "HOST": str(os.getpid()), "PORT": str(server.getsockname()[1])}
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    del os.environ["EARL_SECRET"]
    assert [path.name for path in secret.parent.iterdir()] == [secret.name]
    assert secret.read_text() == CANARY


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_hostile_program_is_contained(kind, name, host, neighbour):
    program, code = PROGRAMS[name], PROGRAMS[name]["code"]
    for word, value in host.items():
        code = code.replace(word, value)
    container = kind in CONTAINERS  # it has processes and mounts of its program's, for as long as that likes
    if kind != "local" and (fault := why_not(kind)):
        pytest.skip(fault)
    before, mounted, cgroup = processes(), mounts(), cgroups()
    sandbox = LocalSandbox(LIMITS.model_copy(update={"kind": kind}))
    shell = ["sh", "-c", f"echo tried; {code}"]
    python = ["python", "-c", f"print('tried', flush=True)\n{code}"]
    endless = "timeout" in program.get("how", "")  # another one ends by itself, late on a busy machine
    result = sandbox.exec(shell if program.get("shell") else python, seconds=1.5 if endless else None)
    assert b"tried" in result.stdout
    assert "ESCAPED" not in result.text, result.text
    assert CANARY not in result.text
    assert re.fullmatch(program.get("how", "exit"), result.how), result.text
    assert program.get("says", "") in result.text
    assert result.how == "exit" or "[ended" in result.text  # the agent is told
    assert re.fullmatch(r"[ -~\n]*", format_result(result.text))
    assert len(result.stdout) <= LIMITS.output_kb * 1024 and len(result.stderr) <= LIMITS.output_kb * 1024
    # The same sandbox goes on, with nothing that runs; and nothing of it is left once it ends.
    assert sandbox.exec(["python", "-c", "import os; print(os.path.exists('/scratch'))"]).text == "True"
    # The sandbox's first process; where it is the first, its server; and the program that made it.
    assert container or len({*processes()} - {*before}) <= (2 if kind == "local" else 3)
    sandbox.terminate()
    until = time.monotonic() + 10
    while left := {*processes(), *cgroups()} - {*before, *cgroup}:  # until its server has seen that it ended
        assert time.monotonic() < until, left
    assert container or mounts() == mounted
    assert neighbour.exec(["cat", "mine"]).text == "untouched"


# Of a session descriptor 3 is open: what it says there is taken for its own exit code.
ITS_OWN = ("forge_the_answer", "descriptors_of_the_host")


@pytest.mark.parametrize(
    "name", [name for name, program in PROGRAMS.items() if not program.get("shell") and name not in ITS_OWN]
)
def test_a_hostile_program_in_a_session_is_contained(name, host, neighbour):
    code = PROGRAMS[name]["code"]
    for word, value in host.items():
        code = code.replace(word, value)
    before, sandbox = processes(), LocalSandbox(LIMITS)
    result = sandbox.exec(SESSION, f"print('tried', flush=True)\n{code}".encode(), seconds=1.5)
    assert b"tried" in result.stdout and len(result.stdout) <= LIMITS.output_kb * 1024
    assert "ESCAPED" not in result.text and CANARY not in result.text, result.text
    assert sandbox.exec(["python", "-c", "print(1)"]).text == "1"
    assert sandbox.exec(SESSION, b"print(2)", seconds=9).stdout == b"2\n"
    assert len({*processes()} - {*before}) <= 3  # the first process, the interpreter, and maybe the server
    sandbox.terminate()
    assert neighbour.exec(["cat", "mine"]).text == "untouched"


WITHOUT_CGROUP = (
    "memory_bomb_of_many",
    "memory_shared",
    "memory_shared_and_let_go",
    "memory_of_zeros",
    "memory_of_sockets",
    "memory_without_a_first_thread",
    "memory_of_pages_in_a_pipe",
    "old_system_calls",
)


@pytest.fixture
def no_cgroup(monkeypatch):
    """A server that finds no cgroup in which it could make others."""

    def program(function):
        *words, code = named(function)
        return [*words, code.replace("inside.serve", "inside.CGROUPS = '/nowhere'; inside.serve")]

    named = local._program
    local.stop_server()
    monkeypatch.setattr(local, "_program", program)
    yield
    local.stop_server()


@pytest.mark.parametrize("name", WITHOUT_CGROUP)
def test_memory_is_bounded_without_a_cgroup(name, no_cgroup):
    program, sandbox = PROGRAMS[name], LocalSandbox(LIMITS)
    result = sandbox.exec(["python", "-c", program["code"]])
    assert "cgroup" not in sandbox.layers
    assert "ESCAPED" not in result.text, result.text
    assert re.fullmatch(program.get("how", "exit"), result.how), result.text
    assert program.get("says", "") in result.text
    sandbox.terminate()


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user all sandboxes are that user")
def test_what_the_kernel_counts_by_user_is_a_sandboxs_own():
    full = PROGRAMS["descriptors_in_flight"]["code"].replace("while True", "held = []\n    while True")
    full = full.replace("for _ in", "held.append(ends)\n        for _ in")
    send = "import socket; ends = socket.socketpair(); socket.send_fds(ends[0], [b'x'], [0]); print('sent')"
    one, other = LocalSandbox(LIMITS), LocalSandbox(LIMITS)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(one.exec, ["python", "-c", f"{full}\nimport time; time.sleep(2)"])
        time.sleep(1)
        assert other.exec(["python", "-c", send]).text == "sent"
        assert not first.done()
        assert "OSError" in first.result().text
    one.terminate()
    other.terminate()


def test_the_list_is_long():
    assert len(PROGRAMS) >= 40


def test_orphans_do_not_live_on_between_commands():
    sandbox = LocalSandbox(LIMITS)
    sandbox.exec(["sh", "-c", "while true; do date +%N > alive; done & sleep 0.2"])
    first = sandbox.exec(["cat", "alive"]).text
    time.sleep(0.1)
    assert sandbox.exec(["cat", "alive"]).text == first
    sandbox.terminate()
