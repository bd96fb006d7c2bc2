"""What is remembered of a cluster, and how a driver finds its way in."""

import stat
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.rehearsal import plan
from earl.rehearsal.plan import RehearsedCluster


def a_cluster(name: str, subnet: int) -> RehearsedCluster:
    return RehearsedCluster(
        name, hosts=2, rate="500mbit", cpus=4, memory_mib=128, subnet=subnet, port=6379, folder="/tmp/none"
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


def test_what_is_remembered_comes_back_until_it_is_forgotten() -> None:
    cluster = a_cluster("one", 3)
    plan.remember(cluster)
    assert plan.load("one") == cluster
    assert plan.known() == [cluster]
    plan.forget(cluster)
    assert plan.known() == []
    with pytest.raises(EarlError, match="no cluster 'one' is up; start it with: earl cluster up --name one"):
        plan.load("one")


def test_the_token_is_the_owners_alone_and_every_cluster_has_its_own() -> None:
    tokens = set()
    for name in ("one", "two"):
        plan.remember(a_cluster(name, 3))
        token = plan.folder(name) / "token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        tokens.add(token.read_text())
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)


def test_a_driver_is_told_where_the_token_lies_and_not_what_it_is() -> None:
    plan.remember(a_cluster("one", 3))
    token = (plan.folder("one") / "token").read_text()
    variables = plan.attach("10.201.3.1:6379")
    assert variables["RAY_ADDRESS"] == "10.201.3.1:6379"
    assert variables["RAY_AUTH_MODE"] == "token"
    assert Path(variables["RAY_AUTH_TOKEN_PATH"]).read_text() == token
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "one0"
    assert variables["VLLM_HOST_IP"] == "10.201.3.1"
    assert token not in variables.values()


def test_auto_is_the_only_cluster_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.attach("auto") == {}
    plan.remember(a_cluster("one", 3))
    assert plan.attach("auto")["RAY_ADDRESS"] == "10.201.3.1:6379"
    plan.remember(a_cluster("two", 4))
    with pytest.raises(EarlError, match=r"name 10\.201\.3\.1:6379 or 10\.201\.4\.1:6379"):
        plan.attach("auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.201.4.1:6379")
    assert plan.attach("auto")["GLOO_SOCKET_IFNAME"] == "two0"
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    assert plan.attach("auto") == {}


def test_another_clusters_address_is_none_of_ours() -> None:
    plan.remember(a_cluster("one", 3))
    assert plan.attach("192.0.2.1:6379") == {}


def test_a_spoiled_file_is_named(home: Path) -> None:
    plan.remember(a_cluster("one", 3))
    for text in ("{", "[]", '{"name": "one"}'):
        (home / "earl/clusters/one/cluster.json").write_text(text)
        with pytest.raises(EarlError, match="is not what earl wrote"):
            plan.load("one")
