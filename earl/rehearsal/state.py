"""The stored record of a cluster while it is up: a folder with its plan and its access token.

    $XDG_STATE_HOME/earl/clusters/NAME/  cluster.json  owner.json  token (readable by its owner alone)

The folder is made first and removed last, so that anything that exists of a cluster can be removed by its name.
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.rehearsal.owner import Owner
from earl.rehearsal.plan import RehearsedCluster


def attach(address: str) -> Mapping[str, str]:
    """The environment variables with which a driver joins the cluster at `address`; none if it is not a rehearsal.

    `auto` is the rehearsal that is up, unless `RAY_ADDRESS` names another cluster. Ray reads the variables when it is
    imported, so set them before. Raises EarlError if `auto` is ambiguous.
    """
    clusters = {cluster.address: cluster for cluster in known() if cluster.port}
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and len(clusters) > 1:
            raise EarlError(f"--address auto could be any of {len(clusters)} rehearsals; name {' or '.join(clusters)}")
        address = address or next(iter(clusters), "")
    cluster = clusters.get(address)
    return {"RAY_ADDRESS": address, **environment(cluster, 0)} if cluster else {}


def environment(cluster: RehearsedCluster, host: int) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_free_objects_batch_size": "1",  # delete at once
        "RAY_AUTH_TOKEN_PATH": str(folder(cluster.name) / "token"),
        "GLOO_SOCKET_IFNAME": cluster.interface,
        "NCCL_SOCKET_IFNAME": cluster.interface,
        "VLLM_HOST_IP": cluster.ip(host),
    }


def root() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "earl" / "clusters"


def folder(name: str) -> Path:
    return root() / name


def known() -> list[RehearsedCluster]:
    return [load(path.parent.name) for path in sorted(root().glob("[a-z]*/cluster.json"))]


def load(name: str) -> RehearsedCluster:
    """Load a cluster that is up. Raises EarlError if there is none of that name."""
    file = folder(name) / "cluster.json"
    if not file.is_file():
        raise EarlError(f"no cluster {name!r} is up; start it with: earl cluster up --name {name}")
    try:
        return TypeAdapter(RehearsedCluster).validate_python(parse_json_object(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise EarlError(f"{file} is not what earl wrote ({error}); remove the folder {file.parent}") from error


def remember(cluster: RehearsedCluster) -> None:
    """Write plan, owner (this process) and a fresh token, all or nothing."""
    root().mkdir(parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(prefix=".", dir=root()))  # readable by its owner alone
    descriptor = os.open(begun / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    Owner.this().write(begun)
    (begun / "cluster.json").write_text(json.dumps(asdict(cluster), indent=2), encoding="utf-8")
    begun.rename(folder(cluster.name))


def disown(cluster: RehearsedCluster) -> None:
    """Let a cluster outlive this process."""
    replace(Owner.this(), process=0).write(folder(cluster.name))


def forget(cluster: RehearsedCluster) -> None:
    shutil.rmtree(folder(cluster.name))
