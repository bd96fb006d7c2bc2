import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.runs import signing, trajectories
from earl.runs.checkpoint import STATE, fall_back, load, save
from earl.runs.folder import RunFolder, create, lock
from earl.runs.signing import FILE, SignatureError, new_key, signed_run, trusted_path
from earl.runs.store import Store
from tests.runs.conftest import make_groups


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of its own, without a key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(signing.DEMAND, raising=False)
    return tmp_path / "config" / "earl"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Be another user, with keys and trust of their own."""
    return lambda name: monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))


def weights(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_text(text) and None


def run(root: Path, name: str = "anna-1") -> RunFolder:
    """A small run with two checkpoints, written as training does it."""
    folder = create(root, name, "[run]\nseed = 1\n")
    with lock(folder), signed_run(folder):
        with Store(folder.database) as store:
            store.record_step(1, {"loss": 0.5}, {"rollout": 1.0})
        trajectories.write(trajectories.path_of(folder.trajectories, 1), trajectories.to_table(make_groups(), 1))
        for step in (1, 2):
            save(folder.checkpoints, step, weights(f"weights of {name} at {step}"), {"loss": 0.5})
    return folder


def reseal(path: Path) -> None:
    """What an attacker does after changing a file: make every checksum fit again."""
    document = json.loads((path / STATE).read_text())
    kept = {"signature": document.pop("signature"), "sha256": document.pop("sha256")}
    for name in document["files"]:
        data = (path / name).read_bytes()
        document["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    (path / STATE).write_text(json.dumps({**kept, "sha256": digest, **document}))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    """Change the signature in a checkpoint's state.json, which its checksum does not cover."""
    document = json.loads((path / STATE).read_text())
    change(document)
    (path / STATE).write_text(json.dumps(document))


def first(folder: RunFolder) -> Path:
    return folder.checkpoints / "step-000001"


def test_without_a_key_everything_is_unsigned(tmp_path: Path) -> None:
    folder = run(tmp_path)
    assert load(first(folder)).signed == signing.signer(folder) == signing.UNSIGNED
    assert not list(tmp_path.rglob(FILE))


def test_run_and_checkpoints_are_signed_by_name(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    assert load(first(folder)).signed == signing.signer(folder) == signing.Signer("signed by anna", True)


def test_changed_weights_with_seals_made_anew_are_refused(tmp_path: Path) -> None:
    new_key("anna")
    path = first(run(tmp_path))
    (path / "model.safetensors").write_text("other weights")
    reseal(path)
    with pytest.raises(SignatureError, match=r"BAD signature.*state\.json has changed since"):
        load(path)


def test_resealed_weights_signed_with_another_key_are_not_the_owners(
    tmp_path: Path, become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = new_key("anna")
    path = first(run(tmp_path))
    become("mallory")
    key = new_key("anna")  # the name is only what each user calls a key
    shutil.rmtree(path)
    save(path.parent, 1, weights("other weights"), {})
    become("reader")
    trusted_path().parent.mkdir(parents=True)
    trusted_path().write_text(f"# colleagues\n\n{line} of our group\n")
    assert load(path).signed == signing.Signer(f"signed by an unknown key {key.split()[1][:12]}…", False)
    assert load(path.with_name("step-000002")).signed.said == "signed by anna of our group"
    monkeypatch.setenv(signing.DEMAND, "1")
    with pytest.raises(SignatureError, match="unknown key"):
        load(path)


def test_another_public_key_in_the_signature_is_refused(tmp_path: Path, become: Callable[[str], None]) -> None:
    new_key("anna")
    path = first(run(tmp_path))
    become("mallory")
    key = new_key("mallory").split()[1]
    edit(path, lambda document: document["signature"].update(key=key))
    with pytest.raises(SignatureError, match="not made with the key"):
        load(path)


def test_a_checkpoint_passed_off_as_another_step_is_refused(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    shutil.rmtree(folder.checkpoints / "step-000002")
    first(folder).rename(folder.checkpoints / "step-000002")
    for read in (lambda: load(folder.checkpoints / "step-000002"), lambda: fall_back(folder.checkpoints)):
        with pytest.raises(SignatureError, match="step was '1', is '2'"):
            read()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000002"]  # refused, not put aside


def test_signatures_swapped_between_steps_are_refused(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    other = json.loads((folder.checkpoints / "step-000002" / STATE).read_text())["signature"]
    edit(first(folder), lambda document: document.update(signature=other))
    with pytest.raises(SignatureError, match="BAD signature"):
        load(first(folder))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    new_key("anna")
    ours, weak = run(tmp_path, "ours"), run(tmp_path, "weak")
    shutil.rmtree(first(ours))
    shutil.copytree(first(weak), first(ours))
    with pytest.raises(SignatureError, match="run was 'weak', is 'ours'"):
        load(first(ours))


def test_a_runs_signature_does_not_pass_for_a_checkpoints(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    other = json.loads((folder.path / FILE).read_text())
    edit(first(folder), lambda document: document.update(signature=other))
    with pytest.raises(SignatureError, match="BAD signature"):
        load(first(folder))


def test_a_stripped_signature_is_unsigned_and_refused_where_one_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key("anna")
    folder = run(tmp_path)
    edit(first(folder), lambda document: document.pop("signature"))
    (folder.path / FILE).unlink()
    assert load(first(folder)).signed == signing.signer(folder) == signing.UNSIGNED
    monkeypatch.setenv(signing.DEMAND, "1")
    with pytest.raises(SignatureError, match="is unsigned, and EARL_REQUIRE_SIGNED is set"):
        load(first(folder))
    with pytest.raises(SignatureError, match="is unsigned"):
        signing.signer(folder)
    assert load(folder.checkpoints / "step-000002").signed.trusted


ZERO, F = "0" * 64, "f" * 64
GARBAGE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"x"',
    b'{"signed": {"step": 1}, "key": "", "proof": ""}',
    b'{"signed": [], "key": 1, "proof": 2}',
    b'{"signed": {}, "key": "%b", "proof": "zz"}' % ZERO.encode(),
    b'{"signed": {}, "key": "%b", "proof": ""}' % F.encode(),
    b'{"signed": {}, "key": "%b", "proof": "%b"}' % (ZERO.encode(), 2 * ZERO.encode()),
    b'{"signed": {}, "key": "%b", "proof": "", "more": 1}' % ZERO.encode(),
]


@pytest.mark.parametrize("garbage", [*GARBAGE, b"[" * 200_000, b'{"signed":' * 100_000])
def test_a_garbage_signature_of_a_run_is_refused(tmp_path: Path, garbage: bytes) -> None:
    new_key("anna")
    folder = run(tmp_path)
    (folder.path / FILE).write_bytes(garbage)
    with pytest.raises(SignatureError, match="BAD signature"):
        signing.signer(folder)


@pytest.mark.parametrize("garbage", GARBAGE[3:])
def test_a_garbage_signature_of_a_checkpoint_is_refused(tmp_path: Path, garbage: bytes) -> None:
    new_key("anna")
    path = first(run(tmp_path))
    edit(path, lambda document: document.update(signature=json.loads(garbage)))
    with pytest.raises(SignatureError, match="BAD signature"):
        load(path)


def test_a_signature_that_is_no_small_file_is_refused_at_once(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    path = folder.path / FILE
    path.rename(tmp_path / "elsewhere")
    for plant in (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(tmp_path / "elsewhere"),
        lambda: (path.touch(), os.truncate(path, 1 << 40)),
        path.mkdir,
    ):
        path.unlink(missing_ok=True)
        plant()
        with pytest.raises(SignatureError, match="BAD signature"):
            signing.signer(folder)


def test_reading_a_run_leaves_its_signature_as_it_is(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    with Store(folder.database, read_only=True) as reader, lock(folder), signed_run(folder):
        assert reader.metrics()
        change_numbers(folder)
    assert signing.signer(folder).trusted
    with closing(sqlite3.connect(folder.database)) as writer:
        assert writer.execute("SELECT count(*) FROM metrics").fetchone() == (1,)
    assert signing.signer(folder).trusted


def change_numbers(folder: RunFolder) -> None:
    with Store(folder.database) as store:
        store.record_step(1, {"loss": 0.1}, {})


def change_numbers_in_log(folder: RunFolder) -> None:
    """As a process that was killed leaves it: the database's file is as it was, the log overrides it."""
    aside = folder.path.with_name("aside")
    shutil.copytree(folder.path, aside)
    with Store(aside / "run.db") as store:
        store.record_step(1, {"loss": 0.1}, {})
        shutil.copy(aside / "run.db-wal", folder.database.with_name("run.db-wal"))
    shutil.rmtree(aside)


CHANGES: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "recipe": (lambda run: run.config.write_text("[run]\nseed = 2\n"), "config.toml has changed"),
    "numbers": (change_numbers, "run.db has changed"),
    "numbers in the write-ahead log": (change_numbers_in_log, "run.db-wal was not signed"),
    "episodes": (
        lambda run: trajectories.write(
            trajectories.path_of(run.trajectories, 1), trajectories.to_table(make_groups(1), 1)
        ),
        "step-000001.parquet has changed",
    ),
    "episodes added": (
        lambda run: shutil.copy(run.trajectories / "step-000001.parquet", run.trajectories / "step-000003.parquet"),
        "step-000003.parquet was not signed",
    ),
    "episodes removed": (lambda run: (run.trajectories / "step-000001.parquet").unlink(), "parquet has gone"),
    "checkpoint resealed": (lambda run: (weights("x")(first(run)), reseal(first(run))), "state.json has changed"),
    "checkpoint added": (
        lambda run: shutil.copytree(first(run), run.checkpoints / "step-000009"),
        "step-000009/state.json was not signed",
    ),
    "checkpoint removed": (lambda run: shutil.rmtree(first(run)), "state.json has gone"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_signed_run_is_named(tmp_path: Path, name: str) -> None:
    new_key("anna")
    folder = run(tmp_path)
    change, told = CHANGES[name]
    change(folder)
    with pytest.raises(SignatureError, match=told):
        signing.signer(folder)


def test_a_signed_run_under_another_name_is_refused(tmp_path: Path) -> None:
    new_key("anna")
    folder = RunFolder(run(tmp_path).path.rename(tmp_path / "best-ever"))
    with pytest.raises(SignatureError, match="run was 'anna-1', is 'best-ever'"):
        signing.signer(folder)


def test_a_link_in_place_of_episodes_is_not_followed(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    path = folder.trajectories / "step-000001.parquet"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SignatureError, match="not a regular file"):
        signing.signer(folder)


def test_a_resumed_run_is_unsigned_while_it_goes_on_and_signed_again_afterwards(tmp_path: Path) -> None:
    new_key("anna")
    folder = run(tmp_path)
    with lock(folder), signed_run(folder):
        save(folder.checkpoints, 3, weights("more"), {})
        assert load(folder.checkpoints / "step-000003").signed.trusted
        assert signing.signer(folder) == signing.UNSIGNED
        change_numbers(folder)
    assert signing.signer(folder).trusted
    with pytest.raises(RuntimeError), lock(folder), signed_run(folder):
        raise RuntimeError("a failure")
    assert signing.signer(folder) == signing.UNSIGNED


def test_a_key_that_others_can_read_is_refused_before_the_run(tmp_path: Path, home: Path) -> None:
    new_key("anna")
    assert (home / "signing_key").stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604, 0o620):
        (home / "signing_key").chmod(mode)
        folder = create(tmp_path, f"run-{mode}")
        with pytest.raises(EarlError, match="others can read"), signed_run(folder):
            raise AssertionError("it must not begin")
        with pytest.raises(EarlError, match="others can read"):
            save(folder.checkpoints, 1, weights(""), {})
        assert not list(folder.checkpoints.iterdir())


@pytest.mark.parametrize(
    "secret", [b"", b"hunter2", b"-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"]
)
def test_a_file_that_is_no_key_is_refused_and_not_quoted(tmp_path: Path, home: Path, secret: bytes) -> None:
    new_key("anna")
    (home / "signing_key").write_bytes(secret)
    with pytest.raises(EarlError, match="is no ed25519 key") as told:
        save(tmp_path, 1, weights(""), {})
    assert "hunter2" not in str(told.value)


def test_a_key_behind_a_link_or_a_fifo_is_refused(tmp_path: Path, home: Path) -> None:
    new_key("anna")
    path = home / "signing_key"
    path.rename(home / "elsewhere")
    path.symlink_to(home / "elsewhere")
    with pytest.raises(EarlError, match="cannot be opened"):
        save(tmp_path, 1, weights(""), {})
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(EarlError, match="not a regular file"):
        save(tmp_path, 1, weights(""), {})


def test_a_second_key_does_not_replace_the_first(home: Path) -> None:
    new_key("anna")
    before = (home / "signing_key").read_bytes()
    with pytest.raises(EarlError, match="exists already"):
        new_key("anna")
    assert (home / "signing_key").read_bytes() == before


def test_a_bad_line_among_the_trusted_keys_is_named(tmp_path: Path) -> None:
    new_key("anna")
    path = first(run(tmp_path))
    with trusted_path().open("a") as file:
        file.write("ed25519 12 bob\n")
    with pytest.raises(EarlError, match="trusted_keys, line 2"):
        load(path)


def test_the_private_key_is_nowhere_in_a_run(tmp_path: Path, home: Path) -> None:
    new_key("anna")
    folder = run(tmp_path / "runs")
    secret = (home / "signing_key").read_text().splitlines()[1].encode()
    assert not [path for path in folder.path.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_without_the_library_a_signature_is_not_checked_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key("anna")
    path = first(run(tmp_path))
    for name in ("exceptions", "hazmat.primitives.asymmetric.ed25519"):
        monkeypatch.setitem(__import__("sys").modules, f"cryptography.{name}", None)
    assert load(path).signed == signing.Signer("signed, but not checked (that needs pip install 'earl[sign]')", False)
    with pytest.raises(EarlError, match="needs the library cryptography"):
        save(tmp_path, 9, weights(""), {})
