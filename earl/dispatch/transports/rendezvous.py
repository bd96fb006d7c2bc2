"""Where processes find each other: a store of torch.distributed that listens at one address, and not at all of them.

Whoever reaches that port can read the store, delete entries and write some. What was written without the secret of the
meeting, which goes by Ray's calls alone, is refused. Torch lists all keys to anybody, so hiding them would not do.
"""

import hmac
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore

SEAL_BYTES = 32
PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A place to meet.

    Example:
        Rendezvous("10.0.0.7", 40123, secret="5f0c…")
    """

    address: str
    """The one at which the first process listens."""
    port: int
    secret: str = field(repr=False)
    """Known to those who may meet."""


def fresh(address: str, port: int = 0) -> Rendezvous:
    """A place that nobody knows yet; port 0: any that is free, once it is opened."""
    return Rendezvous(address, port, secrets.token_hex(32))


class Sealed(Store):
    """A store whose values carry a seal (HMAC-SHA256 of key and value). Counters carry none: they only count arrivals.

    Torch keeps its C++ half alone: who hands it over keeps this one for as long as groups are made.

    Attributes:
        place: where it is.
        plain: the same without seals, for NCCL, whose own threads ask it.
    """

    def __init__(self, plain: TCPStore, place: Rendezvous) -> None:
        super().__init__()
        self.plain, self.place = plain, place

    def set(self, key: str, value: str | bytes) -> None:
        """Write."""
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
        """Until all are written."""
        self.plain.wait([*keys], *([timeout] if timeout else []))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are written."""
        return self.plain.check([*keys])

    def add(self, key: str, amount: int) -> int:
        """Count up."""
        return self.plain.add(key, amount)

    def delete_key(self, key: str) -> bool:
        """Remove."""
        return self.plain.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long reading waits."""
        super().set_timeout(timeout)
        self.plain.set_timeout(timeout)

    def _seal(self, key: str, data: bytes) -> bytes:
        return hmac.digest(self.place.secret.encode(), key.encode() + b"\0" + data, "sha256")


def opened(place: Rendezvous, seconds: float = PATIENCE_SECONDS) -> Sealed:
    """Listen at a place, at its address alone; the result knows the port. Others may come from now on."""
    with socket.create_server((place.address, place.port)) as listener:
        port = listener.getsockname()[1]
        # Torch itself would listen at every address of this machine. It closes what it is given.
        store = TCPStore(place.address, port, is_master=True, master_listen_fd=listener.detach(), **_patience(seconds))
    return Sealed(store, Rendezvous(place.address, port, place.secret))


def reached(place: Rendezvous, seconds: float = PATIENCE_SECONDS) -> Sealed:
    """Come to a place that another process has opened, or soon will."""
    return Sealed(TCPStore(place.address, place.port, is_master=False, **_patience(seconds)), place)


def _patience(seconds: float) -> dict[str, Any]:
    return {"wait_for_workers": False, "timeout": timedelta(seconds=seconds)}
