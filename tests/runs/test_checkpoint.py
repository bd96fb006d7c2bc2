import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.runs.checkpoint import JSON, Damaged, all_steps, fall_back, latest, load, newest_whole, prune, save


def weights(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights.safetensors").write_text(text)
        (folder / "optimizer.safetensors").write_bytes(bytes(range(256)))

    return write


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    state: dict[str, JSON] = {
        "seed": 2**127,
        "lr": 0.1 + 0.2,
        "best": None,
        "nested": {"a": [1, 2.5, "x", True]},
    }
    path = save(tmp_path / "checkpoints", 10, weights("abc"), state)
    assert path == tmp_path / "checkpoints" / "step-000010"
    assert latest(tmp_path / "checkpoints") == path
    checkpoint = load(path)
    assert (checkpoint.step, checkpoint.state, checkpoint.path) == (10, state, path)
    assert (path / "model" / "weights.safetensors").read_text() == "abc"
    document = json.loads((path / "state.json").read_text())
    assert sorted(document["files"]) == ["model/weights.safetensors", "optimizer.safetensors"]
    assert document["files"]["optimizer.safetensors"]["bytes"] == 256


def test_files_that_their_writers_hashed_are_not_hashed_again(tmp_path: Path) -> None:
    def write(folder: Path) -> dict[str, dict[str, str | int]]:
        weights("abc")(folder)
        return {"model/weights.safetensors": {"sha256": "of its writer", "bytes": 3}}

    path = save(tmp_path, 10, write, {})
    files = json.loads((path / "state.json").read_text())["files"]
    assert files["model/weights.safetensors"] == {"sha256": "of its writer", "bytes": 3}
    assert len(files["optimizer.safetensors"]["sha256"]) == 64
    with pytest.raises(Damaged, match=r"weights.safetensors has changed"):  # what is read has to have the writer's hash
        load(path)


@pytest.mark.parametrize(("name", "said"), [("optimizer.safetensors", "has 256 bytes here"), ("else", "has 0 bytes")])
def test_a_folder_that_another_host_does_not_share_is_no_checkpoint(tmp_path: Path, name: str, said: str) -> None:
    def write(folder: Path) -> dict[str, dict[str, str | int]]:
        weights("abc")(folder)
        return {name: {"sha256": "of its writer", "bytes": 257}}

    with pytest.raises(EarlError, match=f"{name} {said}.*, and 257 where it was written: .* all its hosts share"):
        save(tmp_path, 10, write, {})
    assert all_steps(tmp_path) == hidden(tmp_path) == []


def test_the_latest_is_the_highest_step(tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for step in (10, 9, 1000000, 11):
        save(tmp_path, step, weights(""), {})
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-2000000").write_text("a file")
    assert latest(tmp_path) == tmp_path / "step-1000000"
    assert all_steps(tmp_path) == [9, 10, 11, 1000000]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda p: (p / "model" / "weights.safetensors").write_text("abd"),
            "weights.safetensors has changed",
        ),
        (lambda p: (p / "model" / "weights.safetensors").write_text("ab"), "has 2 bytes, 3 were saved"),
        (lambda p: (p / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
        (lambda p: (p / "extra.bin").write_text(""), "extra.bin was not saved with it"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "state.json").write_text(""), "state.json is not JSON"),
        (lambda p: (p / "state.json").write_bytes(b"\xff\xfe"), "state.json is not JSON"),
        (lambda p: (p / "state.json").write_text("[]"), "state.json is not a JSON object"),
        (lambda p: (p / "state.json").write_text('{"format": 2}'), "has format 2, this earl reads 1"),
        (lambda p: (p / "state.json").write_text('{"format": 1}'), "state.json has changed"),
        (
            lambda p: (p / "state.json").write_text((p / "state.json").read_text().replace('"lr": 5', '"lr": 6')),
            "state.json has changed",
        ),
    ],
)
def test_damage_is_told_with_its_file_and_the_cure(tmp_path: Path, damage: Callable[[Path], object], told: str) -> None:
    save(tmp_path, 5, weights("abc"), {"lr": 5})
    path = save(tmp_path, 10, weights("abc"), {"lr": 5})
    damage(path)
    with pytest.raises(EarlError, match=told) as caught:
        load(path)
    assert str(path) in str(caught.value)
    if "format 2" in told:  # of another earl, not damaged: nothing older is taken instead
        assert not isinstance(caught.value, Damaged)
        with pytest.raises(EarlError, match=told):
            newest_whole(tmp_path)
        return
    whole, damaged = newest_whole(tmp_path)
    assert whole is not None
    assert (whole.step, [error.path for error in damaged]) == (5, [path])
    aside = f"kept aside as {tmp_path}/damaged-step-000010, the run goes on from step 5"
    assert fall_back(tmp_path) == (whole, [f"{caught.value}; {aside}"])
    assert all_steps(tmp_path) == [5]
    assert fall_back(tmp_path) == (whole, [])


def test_damage_of_the_only_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, 10, weights("abc"), {})
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(EarlError, match=r"no other checkpoint is whole: .* or start a new run"):
        fall_back(tmp_path)
    assert all_steps(tmp_path) == [10]
    assert fall_back(tmp_path / "nowhere") == (None, [])


def test_a_checkpoint_damaged_twice_is_kept_twice(tmp_path: Path) -> None:
    for _ in range(2):
        save(tmp_path, 5, weights("abc"), {})
        path = save(tmp_path, 10, weights("abc"), {})
        (path / "optimizer.safetensors").unlink()
        fall_back(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "damaged-step-000010",
        "damaged-step-000010-again",
        "step-000005",
    ]


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="no checkpoint at"):
        load(tmp_path / "step-000001")


def test_every_byte_is_vouched_for(tmp_path: Path) -> None:
    path = save(tmp_path, 10, weights("abc"), {"a": 1, "b": "text"})
    for file in [path / "state.json", path / "optimizer.safetensors"]:
        whole = file.read_bytes()
        for place in range(len(whole)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            if file.name == "state.json" and _same_json(file.read_bytes(), whole):
                continue  # white space
            with pytest.raises(EarlError):
                load(path)
        file.write_bytes(whole)
    load(path)


def _same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 10, write, {})
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_is_no_json_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save(tmp_path, 10, weights("a"), {"set": {1, 2}})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_a_save_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".step-000010.tmp").mkdir()
    (tmp_path / ".step-000010.tmp" / "half").write_text("half")
    (tmp_path / ".step-000005.removed.tmp").mkdir()
    assert latest(tmp_path) is None
    save(tmp_path, 10, weights("abc"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010"]
    load(tmp_path / "step-000010")


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 10, weights("old"), {"n": 1})
    path = save(tmp_path, 10, weights("new"), {"n": 2})
    assert load(path).state == {"n": 2}
    assert (path / "model" / "weights.safetensors").read_text() == "new"
    assert hidden(tmp_path) == []


def test_pruning_keeps_the_last_and_the_chosen(tmp_path: Path) -> None:
    for step in range(6):
        save(tmp_path, step, weights(""), {})
    prune(tmp_path, keep=2, also={1, 99})
    assert all_steps(tmp_path) == [1, 4, 5]
    assert hidden(tmp_path) == []
    prune(tmp_path, keep=9, also=set())
    assert all_steps(tmp_path) == [1, 4, 5]


def test_pruning_keeps_what_a_kept_one_calls_the_best(tmp_path: Path) -> None:
    for step, best in ((0, 0), (1, 1), (2, 1), (3, 3)):
        save(tmp_path, step, weights(""), {"best_step": best})
    prune(tmp_path, keep=2, also={3})
    assert all_steps(tmp_path) == [1, 2, 3]  # should 3 be damaged, the run goes on from 2, whose best is 1
    (tmp_path / "step-000002" / "state.json").unlink()
    prune(tmp_path, keep=2, also={3})
    assert all_steps(tmp_path) == [2, 3]


DEADLY = ("mkdir", "open", "fsync", "rename", "unlink", "rmdir")
"""The calls that change the disk or make a change lasting."""


def killed_at(call: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked process that gets SIGKILL before its n-th call to the disk; whether it did."""
    child = os.fork()
    if child == 0:
        countdown = iter(range(call, -1, -1))

        def deadly(function: Callable[..., object]) -> Callable[..., object]:
            def counting(*args: object, **kwargs: object) -> object:
                if next(countdown) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return counting

        for name in DEADLY:
            setattr(os, name, deadly(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_killed_before_any_call_to_the_disk_the_latest_is_whole(tmp_path: Path, again: bool) -> None:
    step = 10 if again else 11  # the same step is replaced, or a new one is added
    save(tmp_path, 5, weights("first"), {})
    outcomes = set()
    for call in range(1000):
        save(tmp_path, 10, weights("old"), {"n": "old"})
        if not killed_at(call, lambda: save(tmp_path, step, weights("new"), {"n": "new"})):
            break
        path = latest(tmp_path)
        assert path is not None
        outcomes.add(load(path).state.get("n", "first"))
        for other in all_steps(tmp_path):
            load(tmp_path / f"step-{other:06d}")
        shutil.rmtree(tmp_path / "step-000011", ignore_errors=True)
    assert call > 15  # so it really was killed in many places
    # A step that is replaced is away for a moment, and the one before it is the latest then.
    assert outcomes == ({"old", "first", "new"} if again else {"old", "new"})


@pytest.mark.slow
def test_killed_while_pruning_every_visible_checkpoint_is_whole(tmp_path: Path) -> None:
    for call in range(1000):
        for step in range(3):
            save(tmp_path, step, weights("abc"), {})
        done = not killed_at(call, lambda: prune(tmp_path, 1, set()))
        steps = all_steps(tmp_path)
        assert steps[-1] == 2
        for step in steps:
            load(tmp_path / f"step-{step:06d}")
        if done:
            break
    assert steps == [2]
    assert call > 10
