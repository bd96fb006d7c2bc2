"""What there is to run on: addresses that lead nowhere are told apart within seconds."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from earl.errors import EarlError
from earl.parallel.hardware import GIB
from earl.placement.ray.inventory import Node, here, installed, inventory, of_nodes


def test_this_machine() -> None:
    found = here(8 * GIB)
    assert (found.hosts, found.cpus, found.memory_bytes) == (1, os.cpu_count(), 8 * GIB)


def test_nodes_add_up() -> None:
    head = Node(8, 0, 32 * GIB, "")
    workers = [Node(64, 8, 512 * GIB, "H100"), Node(64, 4, 256 * GIB, "H100")]
    found = of_nodes("a cluster", [head, *workers])
    assert (found.hosts, found.cpus, found.gpus, found.gpus_per_host) == (2, 136, 12, 8)
    assert found.device.kind == "H100"
    assert of_nodes("a cluster", [*workers, Node(8, 1, GIB, "A100-40G")]).device.kind == "A100-40"
    assert of_nodes("a cluster", [*workers, Node(8, 1, GIB, "Unheard-Of")]).device is None
    assert of_nodes("a cluster", [head, head]).hosts == 2


def test_a_library_that_is_not_there() -> None:
    assert installed("torch")
    assert not installed("torch_that_nobody_has")


@pytest.mark.parametrize("address", ["", "somewhere", "10.0.0.1", ":6379", "10.0.0.1:port", "10.0.0.1:0", "h:70000"])
def test_an_address_of_another_form(address: str) -> None:
    with pytest.raises(EarlError, match="is not HOST:PORT; give one such as"):
        inventory(address)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port where somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(EarlError, match=r"no Ray cluster answers there \(Connection refused\); check host and port"):
        inventory(address)


def test_a_host_that_there_is_not() -> None:
    with pytest.raises(EarlError, match="no Ray cluster answers there"):
        inventory("nobody.invalid:6379")


def test_a_port_of_something_else() -> None:
    def web(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(web) as address, pytest.raises(EarlError, match="what answers there is not Ray"):
        inventory(address)


def test_a_port_that_says_nothing() -> None:
    with listening(lambda _: time.sleep(5)) as address, pytest.raises(EarlError, match="no answer within 3 s"):
        inventory(address)


@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
def test_a_machine_that_is_part_of_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray notes the cluster that it started here
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(EarlError, match="this machine is part of no Ray cluster; start one with `ray start --head`"):
        inventory("auto")
