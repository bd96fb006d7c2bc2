"""Signed runs as a user meets them: `earl key`, then train, eval, audit and report."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.runs.checkpoint import STATE
from earl.runs.folder import RunFolder
from earl.runs.signing import DEMAND, FILE


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "earl"


@pytest.fixture
def signed(earl: Callable, tiny: Path, tmp_path: Path) -> RunFolder:
    """A finished run of a user with a key."""
    assert earl("key", "--name", "anna").code == 0
    assert earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "ours").code == 0
    return RunFolder(tmp_path / "ours")


def page(folder: RunFolder) -> str:
    return folder.report.read_text()


def test_a_key_is_made_once_and_its_public_line_is_printed(earl: Callable, home: Path) -> None:
    made = earl("key", "--name", "anna\x1b[31m\nroot")
    assert made.code == 0 and made.out.startswith("ed25519 ") and made.out.endswith(" anna root\n")
    assert (home / "trusted_keys").read_text() == made.out
    assert "runs are signed with it from now on" in made.err
    again = earl("key")
    assert again.code == 2 and "exists already, its public line is in" in again.err


def test_a_signed_run_is_said_to_be_signed_everywhere(
    earl: Callable, signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEMAND, "1")
    assert "signed by anna" in page(signed)
    said = earl("eval", "ours", "--runs", signed.path.parent, "--opponent", "random", "--episodes", 2)
    assert said.code == 0 and "signed by anna" in said.err
    said = earl("audit", "ours", "--runs", signed.path.parent, "--json")
    assert said.code == 0
    assert {check["check"]: check["state"] for check in said.json["checks"]}["signatures"] == "passed"


def test_weights_changed_and_sealed_anew_are_found_by_all(earl: Callable, signed: RunFolder) -> None:
    for path in signed.checkpoints.iterdir():
        weights = bytearray((path / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (path / "model.safetensors").write_bytes(weights)
        document = json.loads((path / STATE).read_text())
        kept = {name: document.pop(name) for name in ("sha256", "signature")}
        document["files"]["model.safetensors"]["sha256"] = hashlib.sha256(weights).hexdigest()
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        (path / STATE).write_text(json.dumps({**kept, "sha256": digest, **document}))
    root = ("--runs", signed.path.parent)
    said = earl("eval", "ours", *root, "--opponent", "random", "--episodes", 2)
    assert said.code == 2 and "BAD signature" in said.err
    said = earl("audit", "ours", *root)
    assert said.code == 1 and "bad signature: run: BAD signature" in said.out
    assert earl("report", "ours", *root).code == 0
    assert "BAD signature" in page(signed)


def test_a_stripped_run_is_unsigned_and_fails_where_signatures_are_demanded(
    earl: Callable, signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed.path / FILE).unlink()
    for path in signed.checkpoints.glob(f"*/{STATE}"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "signature": None}))
    root = ("--runs", signed.path.parent)
    said = earl("audit", "ours", *root, "--json")
    assert said.code == 0
    assert {check["check"]: check["state"] for check in said.json["checks"]}["signatures"] == "not checked"
    assert earl("report", "ours", *root).code == 0
    assert "unsigned" in page(signed)
    monkeypatch.setenv(DEMAND, "1")
    said = earl("eval", "ours", *root, "--opponent", "random", "--episodes", 2)
    assert said.code == 2 and "is unsigned, and EARL_REQUIRE_SIGNED is set" in said.err
    assert earl("audit", "ours", *root).code == 1


def test_a_key_that_others_can_read_stops_a_run_before_it_begins(
    earl: Callable, signed: RunFolder, tiny: Path, home: Path
) -> None:
    (home / "signing_key").chmod(0o644)
    said = earl("train", "tictactoe", "--config", tiny, "--runs", signed.path.parent, "--name", "theirs")
    assert said.code == 2 and "others can read" in said.err


def test_a_key_without_a_name_is_refused(earl: Callable, home: Path) -> None:
    refused = earl("key", "--name", " ")
    assert refused.code == 2 and "says nothing of the key" in refused.err
    assert not home.exists()
