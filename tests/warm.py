"""Python processes of the tests, forked from one that has imported torch and transformers: a tenth of a second, not 8.

    python -I -S warm.py SOCKET WATCHED ARGUMENTS …   what is started in place of python: asks, waits, passes signals on
    python warm.py SOCKET WATCHED                     the server; the first who asks starts it, it ends with WATCHED

A process whose limits or settings of Python are not the server's starts as usual. What `multiprocessing` spawns for an
engine of vLLM asks a second server, which has imported vLLM too.
"""

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing.spawn
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

HEAVY = (
    "earl.audit",
    "earl.cli.training",
    "earl.engine.learner",
    "earl.engine.local",
    "earl.reports",
    "earl.trainer",
    "transformers.models.qwen3.modeling_qwen3",
)
VLLM = ("vllm.v1.engine.llm_engine", "vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker")
ROOT = Path(__file__).parents[1]
COLD = str(Path(sys.prefix, "bin", "python"))
"""Starts a process as usual; `sys.executable` of a fork does not."""
WORKER = "default_worker.py"  # Ray's
SPAWNED = "--multiprocessing-fork"  # what `multiprocessing` spawns: it is given descriptors, and named their numbers
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SPACES = {"net": 0x40000000, "mnt": 0x00020000}  # namespaces that a fork can enter, and the words of setns(2)
LIMITS = [limit for name, limit in vars(resource).items() if name.startswith("RLIMIT_")]
Wish = dict[str, list[str]]


def shared_executable() -> Path:
    """A program to start in place of python: one for this process and all that it starts, and one server behind it.

    The workers of every Ray started from here are warm too.
    """
    if "EARL_TESTS_PYTHON" in os.environ:
        return Path(os.environ["EARL_TESTS_PYTHON"])
    folder = Path(tempfile.mkdtemp(prefix="earl-tests-"))
    path = folder / "python"
    command = " ".join([COLD, "-I", "-S", __file__, str(folder / "warm"), str(os.getpid())])
    os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps({"runtime_env": {"py_executable": command}})
    os.environ["EARL_TESTS_PYTHON"] = str(path)
    # Not from /proc later: the title that pytest-xdist gives its processes is written over their environment.
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    (folder / "ray").symlink_to(Path(COLD).with_name("ray"))  # looked for beside python
    return path


def connected(place: str, watched: str) -> socket.socket:
    """A connection to the server, which is started where none answers."""
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(place)
        except OSError:
            Path(place).unlink(missing_ok=True)
            log = Path(f"{place}.log")
            with (
                log.open("w") as errors,
                subprocess.Popen(
                    [sys.executable, __file__, place, watched],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    env={**environment_of(place), "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"},
                    cwd=ROOT,
                ) as server,
            ):
                assert server.stdout.readline() == b"ready\n", log.read_text()
                server.stdout.close()
                server.returncode = 0  # nobody waits for it
            link.connect(place)
    return link


def ask(place: str, watched: str, arguments: list[str]) -> None:
    """Be the worker that the server forks: its signals, and how it ends."""
    # Asked before the server is: it is never to be started by a limited process, for it could not raise its limits.
    if unlike(place, watched, arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    spawned = SPAWNED in arguments
    kept, engine = inherited() if spawned else [0, 1, 2], spawned and "VLLM_WORKER_MULTIPROC_METHOD" in os.environ
    link = connected(place + ".vllm" * engine, watched)
    wish = {
        "arguments": arguments[arguments[0] == "-B" :],
        "environment": [f"{k}={v}" for k, v in os.environ.items()],
        "folder": [str(Path.cwd())],
        "ignored": [str(number) for number in map(int, SIGNALS) if signal.getsignal(number) is signal.SIG_IGN],
        "descriptors": [str(descriptor) for descriptor in kept],
    }
    body = json.dumps(wish).encode()
    link.sendmsg([struct.pack("i", len(body))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", kept))])
    link.sendall(body)
    (worker,) = struct.unpack("i", link.recv(4, socket.MSG_WAITALL))
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(worker, number))
    (code,) = struct.unpack("i", link.recv(4, socket.MSG_WAITALL))
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def unlike(place: str, watched: str, arguments: list[str]) -> str:
    """What a fork of a server that WATCHED could have started cannot give this process; empty: nothing."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in {"-B", "-c", "-m", "-u"}):
        return "options"
    if os.geteuid() != 0 and any(_space(watched, kind) != _space("self", kind) for kind in SPACES):
        return "namespace"
    if any(WORKER in word for word in arguments):
        return ""
    if SPAWNED not in arguments and any(held > 2 for held in inherited()):
        return "descriptors"
    if any(resource.prlimit(int(watched), limit) != resource.getrlimit(limit) for limit in LIMITS):
        return "limits"
    of = environment_of(place)
    for name in {*of, *os.environ}:
        # No LD_…: vLLM adds to them, and so all that a process of tests started would be cold.
        fixed = name.startswith(("LC_", "LANG", "OMP_", "HF_", "PYTHON")) and name != "PYTHONPATH"
        fixed |= SPAWNED in arguments and name.startswith("MALLOC_")  # its memory is measured
        if fixed and of.get(name) != os.environ.get(name):
            return name
    folders = [Path.cwd(), *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return "another earl" if any((path / "earl").is_dir() and path.resolve() != ROOT for path in folders) else ""


def environment_of(place: str) -> dict[str, str]:
    """What WATCHED began with, and the server begins with."""
    environment: dict[str, str] = json.loads(Path(place).with_name("environment.json").read_text())
    return environment


def children_of(place: str) -> Path:
    """A folder with a file for each process that asked the server: it has the number of the fork in its place."""
    return Path(f"{place}.children")


def peer(link: socket.socket) -> int:
    """The number of the process at the other end."""
    number, *_ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(number)


def _space(process: object, kind: str) -> Path:
    return Path(f"/proc/{process}/ns/{kind}").readlink()


def inherited() -> list[int]:
    """What is open in a process that has opened nothing itself."""
    return [held for held in sorted(int(path.name) for path in Path("/proc/self/fd").iterdir()) if _open(held)]


def _open(descriptor: int) -> bool:
    try:
        return bool(os.fstat(descriptor))
    except OSError:  # the listing's own
        return False


def serve(place: str, watched: int) -> Wish:
    """Fork a worker for whoever asks, while the process `watched` lives; in the worker: what was asked for."""
    enter(watched)  # who starts it may be on a host of its own
    for name in (*HEAVY, *VLLM) if place.endswith(".vllm") else HEAVY:
        importlib.import_module(name)
    gc.freeze()  # forks share what was imported: their collector must not write to it
    server = socket.socket(socket.AF_UNIX)
    children = children_of(place)
    children.mkdir(exist_ok=True)
    server.bind(place)
    server.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    ready = selectors.DefaultSelector()
    ready.register(server, selectors.EVENT_READ)
    while Path(f"/proc/{watched}").exists():
        for key, _ in ready.select(5):
            if key.fileobj is server:
                link, _ = server.accept()
                worker = os.fork()
                if not worker:
                    for other in [*ready.get_map().values()]:
                        os.close(other.fd)
                    ready.close()
                    server.detach()
                    return received(link)
                with contextlib.suppress(OSError):
                    (children / str(peer(link))).write_text(str(worker))
                    link.sendall(struct.pack("i", worker))
                handle = os.pidfd_open(worker)
                ready.register(link, selectors.EVENT_READ, handle)
                ready.register(handle, selectors.EVENT_READ, (link, worker))
            elif isinstance(key.fileobj, int):  # a worker has ended
                link, worker = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
                with contextlib.suppress(OSError):
                    link.sendall(struct.pack("i", code))
                with contextlib.suppress(KeyError):
                    ready.unregister(link)
                ready.unregister(key.fd)
                link.close()
                os.close(key.fd)
            elif key.fileobj.fileno() >= 0 and gone(key.fileobj):  # who asked was killed
                signal.pidfd_send_signal(key.data, signal.SIGKILL)
                ready.unregister(key.fileobj)
    os._exit(0)


def gone(link: socket.socket) -> bool:
    try:
        return not link.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:  # the worker has taken what it was sent
        return False
    except ConnectionResetError:
        return True


def enter(process: int) -> None:
    """Enter a process's namespaces."""
    for kind, word in SPACES.items():
        if _space(process, kind) != _space("self", kind):
            with Path(f"/proc/{process}/ns/{kind}").open("rb") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), word):
                    raise OSError(ctypes.get_errno(), f"setns into the {kind} namespace of {process}")


def received(link: socket.socket) -> Wish:
    head, given = b"", []
    with contextlib.suppress(ConnectionResetError):
        head, given, *_ = link.recvmsg(4, socket.CMSG_SPACE(1 << 10))
    if not head:  # it had to start as usual
        os._exit(0)
    ((_, _, passed),) = given
    body = link.recv(*struct.unpack("i", head), socket.MSG_WAITALL)
    asker = peer(link)
    link.close()
    enter(asker)
    wish: Wish = json.loads(body)
    targets = [*map(int, wish["descriptors"])]
    held = []  # above all targets, so that none is overwritten before its turn
    for descriptor in array.array("i", passed):
        held.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1))
        os.close(descriptor)
    for target, descriptor in zip(targets, held, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    return wish


def become(wish: Wish) -> None:
    """Run what was asked for in this process, as Python does."""
    os.setsid()
    for number in map(int, SIGNALS):  # as this process would have them, not whichever started the server
        plain = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if str(number) in wish["ignored"] else plain)
    os.environ.clear()
    os.environ.update(entry.split("=", 1) for entry in wish["environment"])
    os.chdir(wish["folder"][0])
    for name in ("stdout", "stderr"):
        live = name == "stderr" or os.isatty(1)
        raw = io.FileIO(1 if name == "stdout" else 2, "w", closefd=False)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(raw), "utf-8", "backslashreplace" if live else None, line_buffering=live
            ),
        )
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    arguments = wish["arguments"]
    if arguments[0] == "-u":
        arguments = arguments[1:]
        sys.stdout.reconfigure(write_through=True)
    script, *rest = arguments
    warm = str(Path(sys.argv[1]).with_name("python"))  # whom it starts is warm as well
    multiprocessing.spawn.set_executable(warm)
    if WORKER not in script:
        sys.executable = warm
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:1] = ["" if script in {"-c", "-m"} else str(Path(script).parent), *paths]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")  # of this PYTHONPATH, not of the server's
    if script == "-m":
        sys.argv = rest
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = ["-c", *rest[1:]] if script == "-c" else arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if script != "-c":
        main.__file__ = script
    source = rest[0] if script == "-c" else Path(script).read_text()
    exec(compile(source, "<string>" if script == "-c" else script, "exec"), main.__dict__)


def finish(wish: Wish) -> None:
    """End as Python does, but leave the memory to the kernel."""
    code, interrupted = 1, False
    try:
        become(wish)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        interrupted = sys.exc_info()[0] is KeyboardInterrupt
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        ask(*sys.argv[1:3], sys.argv[3:])
    else:
        finish(serve(sys.argv[1], int(sys.argv[2])))
