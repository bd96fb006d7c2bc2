"""docs/cluster.md and its files: whatever of them can be checked without sixteen machines."""

import json
import re
import shlex
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from earl.cli.main import cli
from earl.config import Config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/cluster.md").read_text()
FOLDER = ROOT / "docs/cluster"
KUBERAY: dict[str, Any] = {
    document["kind"]: document for document in yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
}
LAUNCHER = yaml.safe_load((FOLDER / "launcher.yaml").read_text())
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def earl_lines() -> list[list[str]]:
    """Every command line of earl on the page and in its files, as words."""
    lines = [line for line in PAGE.splitlines() if line.startswith("    ")]
    lines += [KUBERAY["RayJob"]["spec"]["entrypoint"], *re.findall(r"`(earl [a-z]+ --?[^`]+)`", PAGE)]
    found = [re.search(r"(?:^\s*|/|-- )(earl [a-z][^'#]*)", line) for line in lines]
    return [shlex.split(match[1])[1:] for match in found if match]


def test_the_page_and_its_files_name_command_lines() -> None:
    assert len(earl_lines()) >= 12


@pytest.mark.parametrize("words", earl_lines(), ids=" ".join)
def test_command_lines_are_what_earl_takes(words: list[str]) -> None:
    command, rest = cli, words
    while isinstance(command, click.Group):
        command, rest = command.get_command(click.Context(command, **command.context_settings), rest[0]), rest[1:]
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word for word in rest if word.startswith("--")}
    assert given <= known
    for assignment in [word for before, word in pairwise(rest) if before == "--set"]:
        section, key = assignment.split("=")[0].split(".")
        assert key in Config.model_fields[section].annotation.model_fields


def test_what_is_installed_is_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [
        name
        for text in (PAGE, DOCKERFILE)
        for found in re.findall(r"earl\[([\w,-]+)\]", text)
        for name in found.split(",")
    ]
    assert named
    assert set(named) <= set(extras)


def test_settings_on_the_page_exist() -> None:
    named = re.findall(r"`(placement|sampler|learner)\.(\w+)", PAGE)
    assert named
    assert not [
        (section, key) for section, key in named if key not in Config.model_fields[section].annotation.model_fields
    ]


def containers() -> list[dict[str, Any]]:
    spec = KUBERAY["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def test_the_image_and_its_ray_are_the_same_everywhere() -> None:
    [image] = {container["image"] for container in containers()}
    assert f"-t {image} " in DOCKERFILE
    version = KUBERAY["RayCluster"]["spec"]["rayVersion"]
    assert f"FROM rayproject/ray:{version}-" in DOCKERFILE


def test_the_cluster_asks_for_a_token_and_has_rays_ports() -> None:
    spec = KUBERAY["RayCluster"]["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert {port["containerPort"] for port in containers()[0]["ports"]} == {6379, 8265, 10001}
    assert all("RAY_AUTH_MODE=token" in LAUNCHER[f"{role}_start_ray_commands"][1] for role in ("head", "worker"))


def test_every_volume_is_there_and_every_node_shares_the_runs() -> None:
    claim = KUBERAY["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    spec = KUBERAY["RayCluster"]["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        [container] = pod["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert volumes[mounts["/shared"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert set(mounts.values()) <= set(volumes)


def test_the_job_finds_its_cluster_and_uses_all_of_its_gpus() -> None:
    job, cluster = KUBERAY["RayJob"]["spec"], KUBERAY["RayCluster"]
    assert job["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    [group] = cluster["spec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    gpus = group["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    settings = dict(re.findall(r"--set (\w+\.\w+)=(\d+)", job["entrypoint"]))
    dp, tp = int(settings["placement.dp"]), int(settings["placement.tp"])
    # 8 x 8 ranks and 16 samplers of 4 -> 64 + 64 = 128 = 16 nodes of 8
    assert dp * tp + int(settings["placement.samplers"]) * int(settings["sampler.tp"]) == gpus == 128


def test_the_launcher_file_is_one_that_ray_accepts() -> None:
    ray = find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("Ray, which brings the schema, is not installed")
    from jsonschema import validate

    validate(LAUNCHER, json.loads((Path(ray.origin).parent / "autoscaler/ray-schema.json").read_text()))
    assert len({LAUNCHER["provider"]["head_ip"], *LAUNCHER["provider"]["worker_ips"]}) == 16
