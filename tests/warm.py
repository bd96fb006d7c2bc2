"""Ray's workers of the tests, forked from one process that has imported torch and transformers: 1 second, not 8.

    python -I -S warm.py SOCKET WATCHED worker.py …   what Ray starts in place of python: asks, waits, passes signals on
    python warm.py SOCKET WATCHED                     the server; the first who asks starts it, it ends with WATCHED

A worker in another network namespace than the server's is started as Ray would.
"""

import array
import contextlib
import fcntl
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

PATIENCE_SECONDS = 120
HEAVY = ("earl.engine.learner", "earl.engine.local", "transformers.models.qwen3.modeling_qwen3")


def setting(folder: Path) -> str:
    """What RAY_JOB_CONFIG_JSON_ENV_VAR has to be, so that the workers of every Ray started from here are warm."""
    command = [sys.executable, "-I", "-S", __file__, str(folder / "warm"), str(os.getpid())]
    return json.dumps({"runtime_env": {"py_executable": " ".join(command)}})


def namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


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
                ) as server,
            ):
                assert server.stdout.readline() == b"ready\n", log.read_text()
                server.stdout.close()
                server.returncode = 0  # nobody waits for it
            link.connect(place)
    return link


def ask(place: str, watched: str, arguments: list[str]) -> None:
    """Be the worker that the server forks: its signals, and its exit code."""
    link = connected(place, watched)
    wish = {"arguments": arguments, "environment": {**os.environ}, "folder": str(Path.cwd()), "namespace": namespace()}
    body = json.dumps(wish).encode()
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
    link.sendmsg([len(body).to_bytes(4, "little")], [streams])
    link.sendall(body)
    worker = int.from_bytes(link.recv(4), "little")
    if not worker:
        os.execv(sys.executable, [sys.executable, *arguments])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(worker, number))
    os._exit((link.recv(1) or b"\1")[0])


def serve(place: str, watched: int) -> None:
    """Fork a worker for whoever asks, while the process `watched` lives."""
    for name in HEAVY:
        __import__(name)
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    server.listen(64)
    server.settimeout(5)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while Path(f"/proc/{watched}").exists():
        try:
            link, _ = server.accept()
        except TimeoutError:
            continue
        if not os.fork():
            server.close()
            work(link)
        link.close()


def work(link: socket.socket) -> None:
    """Become the worker that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, [(_, _, streams)], _, _ = link.recvmsg(4, socket.CMSG_SPACE(12))
    with link.makefile("rb") as source:
        wish = json.loads(source.read(int.from_bytes(head, "little")))
    if wish["namespace"] != namespace():
        link.sendall(bytes(4))
        os._exit(0)
    for target, descriptor in enumerate(array.array("i", streams)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.setsid()
    os.environ.clear()
    os.environ.update(wish["environment"])
    os.chdir(wish["folder"])
    script, *rest = [word for word in wish["arguments"] if word != "-u"]
    sys.argv = [script, *rest]
    sys.path[:1] = [str(Path(script).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")  # of this PYTHONPATH, not of the server's
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    link.sendall(os.getpid().to_bytes(4, "little"))
    code = 1
    try:
        exec(compile(Path(script).read_text(), script, "exec"), main.__dict__)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        link.sendall(bytes([code & 0xFF]))
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        ask(*sys.argv[1:3], sys.argv[3:])
    else:
        serve(sys.argv[1], int(sys.argv[2]))
