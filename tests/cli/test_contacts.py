"""Whom earl contacts: nobody in a dry run, and no other host that a recipe alone names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from earl import preflight
from earl.cli.recipes import elsewhere
from earl.engine.model import make
from earl.errors import EarlError
from earl.recipe import build, load_toml
from earl.rehearsal import plan
from earl.rehearsal.plan import RehearsedCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ELSEWHERE = "nobody.invalid:6379"

# Runs command lines in a process where Python itself reports every name looked up, connection made and process begun.
WATCHED = """
import json, sys
contacts = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "subprocess.Popen"):
        contacts.append([event, repr(arguments[1 if event == "socket.connect" else 0])])
from earl.cli.main import run
sys.addaudithook(watch)
said = []
for line in json.loads(sys.argv[1]):
    contacts.clear()
    # What is started on this machine uses no network: the query for GPUs, and Python that renders a chat template.
    local = ("nvidia-smi", sys.executable)
    said.append([run(line), [one for one in contacts if not any(name in one[1] for name in local)]])
print(json.dumps(said))
"""


@pytest.fixture
def watched(tiny: Path, tmp_path: Path):
    """The exit code and the contacts of each command line, and what was said on standard error."""

    def call(*lines: list[object], config: Path = tiny, **more: str):
        begin = ["train", "tictactoe", "--config", str(config), "--runs", str(tmp_path / "runs")]
        written = json.dumps([[*(begin if line[:1] != ["train"] else []), *map(str, line)] for line in lines])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
        command = [sys.executable, "-c", WATCHED, written]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr

    return call


def names(config: Path, address: str) -> Path:
    """A recipe that names a cluster."""
    recipe = config.with_name("foreign.toml")
    recipe.write_text(f'{config.read_text()}\n[placement]\nkind = "colocated"\naddress = "{address}"\n')
    return recipe


def test_a_dry_run_contacts_nobody(watched, tiny: Path, tmp_path: Path) -> None:
    make(build(load_toml(tiny)).model, 1).save(tmp_path / "model")
    lines = [
        ["--address", ELSEWHERE],
        ["--address", "auto"],
        ["--address", ELSEWHERE, "--gpus", "2xH100"],
        ["--placement", "colocated"],
        ["--model", "nobody/unknown"],
        ["--model", "Qwen2.5-0.5B", "--set", "context.limit=600", "--set", "learner.micro_batch_tokens=600"],
        ["--model", tmp_path / "model"],
        ["--set", 'track.to=["tensorboard"]'],
    ]
    said, text = watched(*([*line, "--dry-run"] for line in lines), HF_HUB_CACHE=str(tmp_path / "hub"))
    assert [contacts for _, contacts in said] == [[]] * len(lines)
    assert [code for code, _ in said] == [0, 0, 0, 0, 2, 0, 0, 0], text
    assert f"the Ray cluster at {ELSEWHERE}, which was not asked what it has" in text
    assert "model 'nobody/unknown' is not on this machine, and is not fetched by a dry run" in text


def test_a_recipe_alone_has_no_other_host_contacted(watched, tiny: Path, tmp_path: Path) -> None:
    addresses = [ELSEWHERE, "198.51.100.7:6379", "[2001:db8::1]:6379", "ray://nobody.invalid:10001"]
    lines = []
    for number, address in enumerate(addresses):
        recipe = names(tiny, address).rename(tmp_path / f"{number}.toml")
        begin = ["train", "tictactoe", "--config", recipe, "--runs", tmp_path / "runs"]
        lines += [begin, [*begin, "--dry-run"], [*begin, "--steps", "3"]]
    said, text = watched(*lines)
    assert said == [[2, []]] * len(lines)
    for address in addresses:
        told = f"placement.address = {address!r} is in the recipe alone: earl would contact that host; permit that"
        assert text.count(told) == 3


def test_an_address_on_the_command_line_permits_it(watched, tiny: Path, tmp_path: Path) -> None:
    given = [["--address", ELSEWHERE], ["--set", f"placement.address={ELSEWHERE}"]]
    bare = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", *given[0]]
    said, text = watched(*given, bare, config=names(tiny, ELSEWHERE))
    assert said == [[2, [["socket.getaddrinfo", "'nobody.invalid'"]]]] * 3
    assert text.count("no Ray cluster answers there") == 3


def test_a_run_of_somebody_else_has_no_other_host_contacted_when_it_is_resumed(
    watched, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "runs" / "gift")
    for path in (tmp_path / "runs" / "gift").glob("run.db*"):
        path.unlink()
    recipe = tmp_path / "runs" / "gift" / "config.toml"
    recipe.write_text(recipe.read_text().replace("[placement]", f'[placement]\naddress = "{ELSEWHERE}"'))
    recipe.write_text(recipe.read_text().replace('kind = "embedded"', 'kind = "colocated"'))
    resume = ["train", "--resume", "gift", "--runs", str(tmp_path / "runs")]
    said, text = watched(resume, [*resume, "--dry-run"], [*resume, "--address", ELSEWHERE])
    assert said == [[2, []], [2, []], [2, [["socket.getaddrinfo", "'nobody.invalid'"]]]]
    assert f"permit that with --address {ELSEWHERE}" in text


def test_this_machine_needs_no_permission(tiny: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan.remember(RehearsedCluster("one", 2, "500mbit", 4, 128, subnet=3, port=6379, folder="/tmp/none"))
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "10.201.3.1:6379", "auto"):
        preflight.check_address(build(load_toml(names(tiny, address))), given=False)
    with pytest.raises(EarlError, match=r"10\.201\.3\.9:6379' is in the recipe alone"):
        preflight.check_address(build(load_toml(names(tiny, "10.201.3.9:6379"))), given=False)


def test_the_stored_address_given_once_more_moves_nothing() -> None:
    stored = {"kind": "colocated", "address": ELSEWHERE, "dp": 4, "samplers": 2}
    tree = {"env": {"name": "tictactoe"}, "placement": {**stored}}
    config = elsewhere(tree, {"placement.address": ELSEWHERE}, [])
    assert config.placement.model_dump(include=set(stored)) == stored
