"""A real run on a Ray of its own: whatever it opens, nobody outside this machine can reach."""

import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from earl.placement.ray.inventory import installed

RUN = ["--steps", "1", "--placement", "disaggregated", "--set", "placement.dp=2", "--set", "placement.samplers=1"]
SPLIT = ["--set", "sampler.tp=2"]


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
def test_all_that_a_local_run_listens_at_is_loopback(start, tiny: Path, tmp_path: Path, listening) -> None:
    seen: set[tuple[str, int]] = set()
    with start("train", "tictactoe", "--config", tiny, "--runs", tmp_path, *RUN, *SPLIT) as process:
        while process.poll() is None:
            seen |= listening(process.pid)
            time.sleep(1)
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert len(seen) > 10  # Ray's own processes, two ranks, two of a sampler, and the places where they meet
    assert [place for place in sorted(seen) if not ip_address(place[0]).is_loopback] == []
