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
import time
from pathlib import Path

import pytest

from earl.actions.pool import ActionPool
from earl.benchmarks import sandbox as benchmark
from earl.config import SandboxConfig
from earl.errors import EarlError
from earl.sandbox import inside, local
from earl.sandbox.base import SESSION
from earl.sandbox.local import LocalSandbox


def session(sandbox, program, **limits):
    return sandbox.exec(SESSION, program.encode(), **limits)


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


def test_a_session_keeps_its_variables_between_other_commands(sandbox):
    assert session(sandbox, "x = [1]; import threading").text == ""
    assert sandbox.exec(["python", "-c", "open('a.txt', 'w').write('two'); x"]).code == 1  # it has none of them
    told = session(sandbox, "x.append(open('a.txt').read())\nprint(x, __name__)")
    assert (told.text, told.how, told.code) == ("[1, 'two'] __main__", "exit", 0)
    assert session(sandbox, "1/0").text.splitlines()[1:] == [
        '  File "<session>", line 1, in <module>',
        "ZeroDivisionError: division by zero",
        "[exit code 1]",
    ]
    assert session(sandbox, "print(len(x))").text == "2"
    sandbox.terminate()
    assert session(sandbox, "print('x' in vars())").text == "False"


@pytest.mark.parametrize(
    ("last", "how"),
    [
        ("while True: pass", "timeout"),
        ("print('x' * 10_000_000)", "output"),
        ("import os; os._exit(3)", "exit"),
        ("exit(4)", "exit"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "signal"),
        ("import os; os.close(3)", "exit"),
        ("a = []\nwhile True: a.append(bytes(1 << 20))", "exit"),  # MemoryError, and it goes on
    ],
)
def test_a_session_that_ends_is_told_and_the_next_says_that_it_is_new(sandbox, last, how):
    session(sandbox, "x = 1")
    assert session(sandbox, last, seconds=1.0).how == how
    after = session(sandbox, "print(vars().get('x'))")
    if "MemoryError" in last or last.startswith("a ="):
        assert after.text == "1"
    else:
        assert after.text == "None\n[a new session: variables of the former one are gone]"
        assert session(sandbox, "print(2)").text == "2"


def test_a_session_that_forges_its_end_deceives_itself_alone(sandbox):
    assert session(sandbox, "import os\nfor code in (7, 8, 9): os.write(3, bytes([code]))").code == 7
    session(sandbox, "print('may be told with the program after it')")
    assert sandbox.exec(["python", "-c", "print(1)"]).text == "1"
    sandbox.terminate()
    assert session(sandbox, "print('whole')").text == "whole"


def test_nothing_but_the_interpreter_stays_of_a_session(sandbox):
    # A child, a child in a session of its own, and a thread, which goes on only while the session runs.
    session(sandbox, "import os, time, threading\nn = 0\n[os.fork() or (os.setsid(), time.sleep(99)) for _ in '12']")
    session(sandbox, "def count():\n  global n\n  while True: n += 1; time.sleep(0.001)")
    session(sandbox, "threading.Thread(target=count, daemon=True).start()")
    before = int(session(sandbox, "print(n)").text)
    time.sleep(1)
    assert int(session(sandbox, "print(n)").text) - before < 500
    bomb = sandbox.exec(
        ["python", "-c", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"], seconds=0.5
    )
    assert bomb.how == "timeout"
    # Of 64 processes all but the session, and its ended children, can be started again.
    assert sandbox.exec(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 9 & done; echo done"]).stdout == b"done\n"
    assert int(session(sandbox, "print(n)").text) >= before


def test_a_process_whose_first_thread_has_ended_is_ended_too(sandbox):
    code = "import ctypes, os, threading, time\n"
    code += "def go():\n  while True: open('alive', 'a').write('x'); time.sleep(0.001)\n"
    code += "if not os.fork():\n  threading.Thread(target=go).start()\n  ctypes.CDLL(None).syscall(60, 0)\n"
    session(sandbox, f"{code}time.sleep(0.2)")
    first = sandbox.exec(["cat", "alive"]).text
    session(sandbox, "os.kill(-1, 18); time.sleep(0.2)")  # SIGCONT
    assert sandbox.exec(["cat", "alive"]).text == first != ""


def test_a_session_whose_first_thread_has_ended_is_one_until_its_last(sandbox):
    session(sandbox, "import ctypes, os, threading, time\nx, go = 1, threading.Event()")
    session(sandbox, "threading.Thread(target=lambda: (go.wait(), time.sleep(0.2), os._exit(3))).start()")
    assert session(sandbox, "go.set(); ctypes.CDLL(None).syscall(60, 0)").code == 3
    assert session(sandbox, "print(vars().get('x'))").text.startswith("None")


def test_a_file_is_not_written_by_a_module_that_a_program_left(sandbox):
    sandbox.exec(["sh", "-c", "echo 'import os; os._exit(0)' | tee pathlib.py > os.py"])
    assert sandbox.write_file("a/b", b"written").ok
    assert sandbox.exec(["cat", "a/b"]).text == "written"


def test_memory_counts_what_is_swapped_out_and_not_what_is_mapped_of_files(tmp_path, monkeypatch):
    # A fork of 10 MiB; a process of 300 - 100 of files + 50 swapped out; one that has ended, but for a thread of 90.
    for process, resident, files, swapped in (("1", 15, 5, 0), ("7", 300, 100, 50), ("8/task/9", 90, 0, 0)):
        (tmp_path / process).mkdir(parents=True)
        lines = {"VmRSS": resident, "RssFile": files, "VmSwap": swapped}
        status = "".join(f"\n{name}:\t{mib << 10} kB" for name, mib in lines.items())
        (tmp_path / process / "status").write_text(f"Name:\tVmRSS: 1{status}\n")
    (tmp_path / "8" / "status").write_text("Name:\tpython\nState:\tZ (zombie)\n")
    monkeypatch.setattr(inside, "PROC", os.open(tmp_path, os.O_RDONLY))
    assert inside.memory_bytes() == (300 - 100 + 50 - 10 + 90 - 10) << 20
    os.close(inside.PROC)


def test_the_server_imports_little():
    # Each of these takes longer than a layer of the sandbox.
    program = local._program("serve")
    listed = "print({'os', 'ctypes', 'struct', 'resource', 're'} & {*sys.modules})"
    program[-1] = program[-1].replace("inside.serve()", listed)
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_missing_layer_is_refused(monkeypatch):
    # A machine without Landlock and cgroups: the server of this test says so.
    program = local._program("serve")
    without = "inside.layers_here = lambda: ['seccomp']; inside.make_cgroup = lambda limits: []; inside.serve()"
    program[-1] = program[-1].replace("inside.serve()", without)
    monkeypatch.setattr(local, "_program", lambda function: program)
    local.stop_server()
    try:
        with pytest.raises(EarlError, match="no sandbox can be made here: missing: landlock; see earl doctor"):
            LocalSandbox().exec(["true"])
        with pytest.raises(EarlError, match="missing: cgroup;"):
            LocalSandbox(SandboxConfig(require=["cgroup"])).exec(["true"])
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


def test_a_program_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        EarlError, match=r"sandbox.kind = 'nsjail' needs the program nsjail, which is not in PATH; inst"
    ):
        LocalSandbox(SandboxConfig(kind="nsjail")).exec(["true"])


def test_a_container_is_closed_and_bounded(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    config = SandboxConfig(kind="docker", runtime="runsc", image="mine", memory_mb=100, scratch_mb=10, read=["/data"])
    words = local.limits_of(config)["argv"]
    assert words[:2] == ["/bin/docker", "run"] and words[words.index("mine") + 1] == "python3"
    # 100 MiB of commands, 10 of files and 64 of its own; 64 processes and 8 of its own.
    assert {"--memory=174m", "--memory-swap=174m", "--pids-limit=72", "--runtime=runsc"} <= {*words}
    assert {"--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= {*words}
    assert [word for word in words if word.startswith("--volume")] == ["--volume=/data:/data:ro"]


def test_an_ended_sandbox_is_a_result(sandbox):
    sandbox.exec(["true"])
    signal.pidfd_send_signal(sandbox._process, signal.SIGKILL)
    assert sandbox.exec(["true"]).text == "[ended: its sandbox ended]"
    assert sandbox.exec(["echo", "again"]).text == "again"


def kill_server():
    server = local._server().process
    server.kill()
    server.wait()  # its sandboxes are told when it has ended


def test_a_server_that_ends_takes_its_sandboxes_along(sandbox):
    sandbox.exec(["true"])
    kill_server()
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


def cgroup_folders(sandbox):
    sandbox.exec(["true"])
    if "cgroup" not in sandbox.layers:
        pytest.skip("this machine has no cgroup that this user may write")
    parents, server = inside.cgroup_parents(), local._server().process.pid
    return [path for parent in parents for path in Path(parent).glob(f"earl-{server}-*")]


def test_a_cgroup_bounds_a_sandbox_and_ends_with_it(sandbox):
    made = cgroup_folders(sandbox)
    found = [int((folder / name).read_text()) for folder in made for name in LIMITS if (folder / name).exists()]
    assert sorted(found) == [72, 640 << 20]  # 64 processes + 8 of its own; 512 MiB + 64 of files + 64 of its own
    sandbox.terminate()
    until = time.monotonic() + 5
    while any(folder.exists() for folder in made):  # until its server has seen that it ended
        assert time.monotonic() < until


def test_the_kernel_ends_what_the_first_process_does_not_see(sandbox):
    made = cgroup_folders(sandbox)
    [limit] = [folder / name for folder in made for name in LIMITS[1:] if (folder / name).exists()]
    limit.write_text(str(100 << 20))  # under the limit that the first process watches
    assert sandbox.exec(["python", "-c", "held = b'x' * (400 << 20)"]).text == "[ended: it took too much memory]"
    assert sandbox.exec(["echo", "again"]).text == "again"


def test_a_cgroup_of_a_killed_server_is_removed_by_the_next(sandbox):
    made = cgroup_folders(sandbox)
    kill_server()
    assert sandbox.exec(["true"]).how == "lost"
    sandbox.exec(["true"])
    assert not any(folder.exists() for folder in made)


LIMITS = ("pids.max", "memory.max", "memory.limit_in_bytes")
PYTHON = "/usr/bin/python3"


@pytest.mark.parametrize("kind", ["local", "bubblewrap", "nsjail"])
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason=f"needs root and {PYTHON}, to be another user"
)
def test_an_ordinary_user_has_sandboxes_too(monkeypatch, kind):
    if kind != "local" and not shutil.which(local.PROGRAMS[kind]):
        pytest.skip(f"there is no {local.PROGRAMS[kind]}")
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(sys, "_base_executable", PYTHON)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
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
        socket.send_fds(mine, [marshal.dumps(local.limits_of(SandboxConfig(kind=kind)))], [other.fileno()])
        assert mine.recv(4096) == b"made"
        command = "id -u; cat /etc/passwd || kill -9 1 || touch /usr/x || unshare -U true || echo contained"
        request = marshal.dumps((["sh", "-c", command], b"", 5.0, ()))
        channel.settimeout(30)
        assert channel.recv(1 << 16) == b"ok seccomp landlock\n"  # and no cgroup, which this user may not make
        channel.sendall(struct.pack("<I", len(request)) + request)
        assert b"1000\ncontained\n" in channel.recv(1 << 16)
    finally:
        mine.close()
        theirs.close()
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def test_the_doctor_says_what_is_here():
    found = local.layers_here()
    assert found.keys() >= {"cgroup", *(f"kind {kind}" for kind in local.PROGRAMS)}
    assert {fault for name, fault in found.items() if name != "cgroup" and name[5:] not in local.PROGRAMS} == {""}
    assert all(kind in found[f"kind {kind}"] for kind in local.PROGRAMS if not shutil.which(local.PROGRAMS[kind]))


def test_the_benchmark_counts_what_is_left():
    told = benchmark.run(repeats=15, executions=20)
    assert told["milliseconds"].keys() == {"bare", "warm", "new", "cold"}
    assert max(told["leaked"].values()) <= 0


def test_many_sandboxes_at_once_keep_their_descriptors():
    # The server holds a descriptor of each, and those of a new sandbox's first process once met in the sixties.
    boxes = [LocalSandbox() for _ in range(70)]
    late = "import time; time.sleep(0.05); print(1)"  # longer than a look at the memory
    assert {
        box.exec(["python", "-c", late if number > 50 else "print(1)"]).stdout for number, box in enumerate(boxes)
    } == {b"1\n"}
    for box in boxes:
        box.terminate()


def test_a_command_has_the_cores_of_its_action(sandbox):
    program = "import os; print(sorted(os.sched_getaffinity(0)))"
    cores = sorted(os.sched_getaffinity(0))
    own = ActionPool(cores[-1:])
    session(sandbox, "import os, threading, time\ndef go():\n  while True: time.sleep(0.001)")
    session(sandbox, "thread = threading.Thread(target=go, daemon=True); thread.start()")
    with own.action("python", (1,)):
        assert sandbox.exec(["python", "-c", program]).text == str(cores[-1:])
        of_thread = "print(sorted(os.sched_getaffinity(thread.native_id)))"  # not only the first one of a session
        assert session(sandbox, of_thread).text == str(cores[-1:])
    assert sandbox.exec(["python", "-c", program]).text == str(cores)


IGNORING = """
import signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT): signal.signal(number, signal.SIG_IGN)
from earl.sandbox.local import LocalSandbox
asked = "import signal; print([signal.getsignal(number) == signal.SIG_IGN for number in (1, 2, 3)])"
shell = "trap - QUIT; kill -QUIT $$; echo survived"  # a shell cannot trap what was ignored when it began
sandbox = LocalSandbox()
print(sandbox.exec(["python", "-c", asked]).text, sandbox.exec(["sh", "-c", shell]).how)
"""


def test_signals_are_not_ignored_where_they_were_as_earl_began():
    """As with nohup, and in the background of a script."""
    told = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, check=True)
    assert told.stdout == "[False, False, False] signal\n"
