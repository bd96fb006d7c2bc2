"""Where processes find each other: a torch.distributed store that listens at one address, not at all of them.

Any client that reaches the port can read the store, delete entries and write some; entries written without the secret,
which only Ray's calls carry, are refused. Torch lists all keys to any client, so hiding keys would not help.
"""

import hmac
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store, TCPStore

SEAL_BYTES = 32
TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    address: str  # at which the first process listens
    port: int = 0  # 0: any free one, known once it is opened
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)


class Sealed(Store):
    """A store whose values carry an HMAC-SHA256 of key and value. Counters carry none: they only count arrivals. Torch
    keeps only the C++ half alive: hold a reference to this object for as long as groups are made. `plain` is the store
    without seals, for NCCL, whose own threads read it."""

    def __init__(self, plain: TCPStore, place: Rendezvous) -> None:
        super().__init__()
        self.plain, self.place = plain, place

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.plain.set(key, self._seal(key, data) + data)  # type: ignore[arg-type]  # takes bytes too

    def get(self, key: str) -> bytes:
        """Read, once it is written. Raises RuntimeError, as torch does, when the writer did not know the secret."""
        sealed = bytes(self.plain.get(key))
        seal, data = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(key, data)):
            raise RuntimeError(
                f"entry {key!r} at {self.place.address} was written by a process without the run's secret"
            )
        return data

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self.plain.wait([*keys], *([timeout] if timeout else []))

    def check(self, keys: Sequence[str]) -> bool:
        return self.plain.check([*keys])

    def add(self, key: str, amount: int) -> int:
        return self.plain.add(key, amount)

    def delete_key(self, key: str) -> bool:
        return self.plain.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self.plain.set_timeout(timeout)

    def _seal(self, key: str, data: bytes) -> bytes:
        return hmac.digest(self.place.secret.encode(), key.encode() + b"\0" + data, "sha256")


def backend_for(device: torch.device) -> str:
    """The torch.distributed backend of processes whose tensors lie on `device`. Beside NCCL there is gloo, for tensors
    in host memory: shards of an offloaded reference are gathered too."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def open_store(place: Rendezvous, seconds: float = TIMEOUT_SECONDS) -> Sealed:
    """Listen at the rendezvous's address alone; the result knows the port."""
    with socket.create_server((place.address, place.port)) as listener:
        port = listener.getsockname()[1]
        # Torch itself would listen at every address of this machine. It takes ownership of the listener.
        store = TCPStore(place.address, port, is_master=True, master_listen_fd=listener.detach(), **_patience(seconds))
    return Sealed(store, Rendezvous(place.address, port, place.secret))


def join_store(place: Rendezvous, seconds: float = TIMEOUT_SECONDS) -> Sealed:
    """Connect to a rendezvous that another process has opened, or soon will."""
    return Sealed(TCPStore(place.address, place.port, is_master=False, **_patience(seconds)), place)


def _patience(seconds: float) -> dict[str, Any]:
    return {"wait_for_workers": False, "timeout": timedelta(seconds=seconds)}
