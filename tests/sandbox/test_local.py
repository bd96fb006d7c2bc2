"""What a sandbox does for programs that mean well, what it is made of, and what becomes of it when its makers end."""

import marshal
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from earl.benchmarks import sandbox as benchmark
from earl.config import SandboxConfig
from earl.errors import EarlError
from earl.sandbox import inside, local
from earl.sandbox.local import LocalSandbox


@pytest.fixture
def sandbox():
    made = LocalSandbox()
    yield made
    made.terminate()


def test_a_command_has_input_arguments_output_and_a_code(sandbox):
    code = "import sys; print(sys.stdin.read().upper(), sys.argv); print('e', file=sys.stderr); sys.exit(7)"
    result = sandbox.exec(["python", "-c", code, "one"], b"given")
    assert (result.how, result.code) == ("exit", 7)
    assert (result.stdout, result.stderr) == (b"GIVEN ['-c', 'one']\n", b"e\n")
    assert sandbox.exec(["cat"], b"x" * 1_000_000).cut == 1_000_000 - (64 << 10)
    assert sandbox.exec(["nothing-of-that-name"]).code == 127


def test_a_program_ends_as_an_interpreter_does(sandbox):
    code = "import atexit, threading, time\natexit.register(print, 'exit')\n"
    code += "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
    code += "print(__name__)\nraise SystemExit('why')"
    result = sandbox.exec(["python", "-c", code])
    assert (result.stdout, result.stderr, result.code) == (b"__main__\nthread\nexit\n", b"why\n", 1)


def test_files_are_written_and_nothing_outside(sandbox):
    assert sandbox.write_file("a/b.bin", bytes(range(256))).code == 0
    assert sandbox.exec(["cat", "a/b.bin"]).stdout == bytes(range(256))
    assert sandbox.exec(["python", "a/b.py"]).text.endswith("'a/b.py'\n[exit code 1]")
    sandbox.exec(["ln", "-s", "/usr/bin", "out"])
    for path in ("/usr/bin/x", "../x", "out/x"):
        assert sandbox.write_file(path, b"x").code == 1
    sandbox.terminate()
    assert sandbox.exec(["ls", "-A"]).text == ""  # and it begins anew


def test_a_missing_layer_is_refused(monkeypatch):
    # A kernel without Landlock: the server of this test says so.
    program = local._program("serve")
    program[-1] = program[-1].replace("inside.serve()", "inside.layers_here = lambda: ['seccomp']; inside.serve()")
    monkeypatch.setattr(local, "_program", lambda function: program)
    local.stop_server()
    try:
        with pytest.raises(EarlError, match="no sandbox can be made here: missing: landlock; see earl doctor"):
            LocalSandbox().exec(["true"])
        without = LocalSandbox(SandboxConfig(require=["seccomp"]))
        assert without.exec(["sh", "-c", "touch /usr/x || echo no"]).stdout == b"no\n"
        assert without.layers == ["seccomp"]
        without.terminate()
    finally:
        local.stop_server()


def test_each_layer_is_there_by_itself():
    # Only Landlock refuses a device's ioctl, EACCES in place of ENOTTY; only seccomp a socket, EPERM.
    code = "import fcntl, socket\ntry: fcntl.ioctl(open('/dev/zero'), 0x5413)\nexcept OSError as e: print(e.errno)\n"
    code += "try: socket.socket()\nexcept OSError as e: print(e.errno)"
    sandbox = LocalSandbox()
    assert sandbox.exec(["python", "-c", code]).stdout == b"13\n1\n"
    sandbox.terminate()


def test_an_ended_sandbox_is_a_result(sandbox):
    sandbox.exec(["true"])
    signal.pidfd_send_signal(sandbox._process, signal.SIGKILL)
    assert sandbox.exec(["true"]).text == "[ended: its sandbox ended]"
    assert sandbox.exec(["echo", "again"]).text == "again"


def test_a_server_that_ends_takes_its_sandboxes_along(sandbox):
    sandbox.exec(["true"])
    os.kill(local._server().process.pid, signal.SIGKILL)
    assert sandbox.exec(["true"]).how == "lost"
    assert sandbox.exec(["echo", "again"]).text == "again"


def test_nothing_outlives_the_process_that_made_it():
    code = (
        "import os, sys, time\nfrom earl.sandbox.local import LocalSandbox, _server\nmade = LocalSandbox()\n"
        "made.exec(['true'])\nprint(_server().process.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    try:
        watch = os.pidfd_open(int(told.stdout))
    except ProcessLookupError:
        return
    ended = select.poll()
    ended.register(watch, select.POLLIN)
    assert ended.poll(10_000)
    os.close(watch)


def test_a_forked_process_has_a_server_of_its_own(sandbox):
    sandbox.exec(["true"])
    child = os.fork()
    if not child:
        own = LocalSandbox()
        os._exit(own.exec(["sh", "-c", "exit 5"]).code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert sandbox.exec(["echo", "mine"]).text == "mine"


PYTHON = "/usr/bin/python3"


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason=f"needs root and {PYTHON}, to be another user"
)
def test_an_ordinary_user_has_sandboxes_too(tmp_path_factory):
    folder = Path("/tmp") / f"earl-{os.getpid()}"
    folder.mkdir(mode=0o755)
    shutil.copy(inside.__file__, folder / "inside.py")
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, other = socket.socketpair()
    program = f"import sys; sys.path[:0] = [{str(folder)!r}]; import inside; inside.serve()"
    server = subprocess.Popen(
        [PYTHON, "-B", "-s", "-S", "-c", program],
        stdin=theirs.fileno(),
        env={},
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
    )
    try:
        socket.send_fds(mine, [marshal.dumps(SandboxConfig().model_dump())], [other.fileno()])
        assert mine.recv(4096).split()[1:] == [b"seccomp", b"landlock"]
        command = "id -u; cat /etc/passwd || kill -9 1 || touch /usr/x || unshare -U true || echo contained"
        request = marshal.dumps((["sh", "-c", command], b"", 5.0))
        channel.sendall(struct.pack("<I", len(request)) + request)
        assert b"1000\ncontained\n" in channel.recv(1 << 16)
    finally:
        mine.close()
        theirs.close()
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def test_the_doctor_says_what_is_here():
    assert {*local.layers_here().values()} == {""}


def test_the_benchmark_counts_what_is_left():
    told = benchmark.run(repeats=15, executions=20)
    assert told["milliseconds"].keys() == {"bare", "warm", "new", "cold"}
    assert max(told["leaked"].values()) <= 0
