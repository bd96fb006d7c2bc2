"""The processes of a namespace are found and nobody else's are."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.rehearsal import cluster
from earl.rehearsal.plan import check

pytestmark = pytest.mark.cold


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Path]:
    """A namespace for host names, without any process."""
    try:
        check()
    except EarlError as error:
        pytest.skip(str(error))
    file = tmp_path / "namespace"
    file.touch()
    subprocess.run(["unshare", f"--uts={file}", "true"], check=True)
    yield file
    subprocess.run(["umount", file], check=True)


def test_members_are_found_frozen_and_killed(namespace: Path) -> None:
    assert cluster.inside(namespace) == []
    # The shell starts a second process, which leaves its session: it is still found.
    shell = subprocess.Popen(["nsenter", f"--uts={namespace}", "sh", "-c", "setsid sleep 60 & sleep 60"])
    outside = subprocess.Popen(["sleep", "60"])
    while len(cluster.inside(namespace)) < 3:  # the shell and two sleeps
        time.sleep(0.01)
    members = cluster.inside(namespace)
    assert outside.pid not in members
    cluster.send(namespace, signal.SIGSTOP)
    while not all(map(cluster.stopped, members)):
        time.sleep(0.01)
    assert not cluster.stopped(outside.pid)
    cluster.kill(namespace)
    assert cluster.inside(namespace) == []
    assert shell.wait() == -signal.SIGKILL
    assert outside.poll() is None
    outside.kill()
    outside.wait()


def test_a_file_that_is_no_namespace_has_no_members(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cluster.inside(tmp_path / "file") == []
    assert cluster.inside(tmp_path / "nothing") == []


def test_the_own_namespace_is_never_touched() -> None:
    with pytest.raises(AssertionError, match="this very process"):
        cluster.inside(Path(f"/proc/{os.getpid()}/ns/net"))
