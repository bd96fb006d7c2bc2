"""What `earl bench dispatch` tells, with small transfers."""

import numpy as np
import pytest

from earl.benchmarks import dispatch
from earl.benchmarks.dispatch import EVERYTHING, LOGPROBS, TransferCase
from earl.dispatch.plan import volume
from earl.errors import EarlError
from earl.rehearsal.plan import check_network

KEYS = {"hosts", "rate_mbit", "payload_bytes", "centralised_s", "direct_s", "ideal_direct_s", "ratio"}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(dispatch, "PAPER_RATE", 1e12)
    monkeypatch.setattr(dispatch, "SMALL_TOKENS", (16,))
    monkeypatch.setattr(dispatch, "SMALL_REPEATS", 2)


def refused():
    raise EarlError("not permitted")


def checked(result, shaped):
    rows = result["rows"]
    assert [row["kind"] for row in rows] == ["paper"] * 4 + ["ragged", "small", "replicas"]
    for row in rows:
        assert row.keys() >= KEYS and row["same"] and row["shaped"] == shaped
        assert row["ratio"] == row["centralised_s"] / row["direct_s"] > 0
        assert row["arms"].keys() >= {"controller", "overlapped", "all_to_all", "peers"}
    replicas = rows[-1]
    # tp 8 on each of two hosts: half of all rows cross, once, and would eight times.
    assert replicas["processes"] == 16
    assert replicas["planned_bytes"] == replicas["payload_bytes"] * 8
    assert replicas["copies_bytes"] == replicas["planned_bytes"] * 8
    return rows


@pytest.mark.exhaustive
@pytest.mark.slow
def test_transfers_between_hosts(small):
    try:
        check_network()
    except EarlError as error:
        pytest.skip(str(error))
    rows = checked(dispatch.run(2, "200mbit", repeats=2), shaped=True)
    for row in rows:
        # 200 Mbit/s are 25 MB/s; with the kernel's counters: headers, answers and agreements come on top.
        assert row["ideal_direct_s"] * 25e6 <= row["planned_bytes"] <= row["crossed_bytes"]
        assert row["crossed_bytes"] < 1.15 * row["planned_bytes"] + 500_000


@pytest.mark.slow
def test_transfers_on_loopback_where_hosts_are_not_permitted(small, monkeypatch):
    monkeypatch.setattr(dispatch, "check_network", refused)
    result = dispatch.run(2, "200mbit", repeats=1)
    checked(result, shaped=False)
    assert result["note"] == "on loopback, where no link is shaped: not permitted"


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_the_same_through_ray(small, monkeypatch):
    monkeypatch.setattr(dispatch, "check_network", refused)  # on Ray of this machine
    rows = dispatch.run(2, "200mbit", repeats=1, ray=True)["rows"]
    assert [row["kind"] for row in rows] == ["paper", "paper", "ragged"]
    assert all(row["same"] and row["arms"]["objects"]["median"] > 0 for row in rows)


def test_every_process_gives_and_gets_its_payload():
    # 4 processes with 8 rows of 10 tokens of 4 bytes each: a quarter stays, the rest goes to each of three others.
    case = TransferCase("paper", LOGPROBS, 10, 8, 1)
    moved = volume(case.plan(range(4)))
    assert case.payload_bytes == 320
    assert moved.sent.tolist() == moved.received.tolist() == [240] * 4 == [moved.bound] * 4


def test_ragged_rows_are_dealt_by_their_tokens():
    made = TransferCase("ragged", EVERYTHING, 1000, 40, 1, ragged=True).plan(range(4))
    tokens = np.bincount(made.target.parts, weights=made.lengths)
    assert tokens.max() / tokens.mean() < 1.02


def test_the_share_of_dispatch_is_smaller_without_a_controller():
    shares = dispatch.shares()
    for share in shares:
        assert 0 <= share["direct_s"] <= share["controller_s"]
        assert share["direct_share"] <= share["controller_share"] < 1
    # 187 MiB of each of 8 GPUs over a link of 25 GB/s: 0.063 s; of 128 GPUs, in and out, 2.01 s
    assert (shares[1]["direct_s"], shares[1]["controller_s"]) == pytest.approx((0.0627, 2.008), rel=1e-3)
    assert shares[1]["direct_share"] == pytest.approx(0.0627 / (0.0627 + shares[1]["other_stages_s"]), rel=1e-3)
