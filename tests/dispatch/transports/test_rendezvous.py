"""Where processes meet: at one address, and nothing counts there that was written without the secret."""

import os
from dataclasses import replace

import pytest
from torch._C._distributed_c10d import TCPStore

from earl.dispatch.transports.rendezvous import Rendezvous, join_store, open_store


@pytest.fixture
def store():
    return open_store(Rendezvous("127.0.0.1"), seconds=20)


def outsider(store):
    """Somebody who reaches the port, and was told nothing."""
    return TCPStore(store.place.address, store.place.port, is_master=False, wait_for_workers=False)


def test_who_knows_the_secret_reads_and_writes(store):
    other = join_store(store.place, seconds=20)
    other.set("door-1", b"10.0.0.7")
    assert store.get("door-1") == b"10.0.0.7"
    store.set("door-0", "text")
    other.wait(["door-0"])
    assert other.get("door-0") == b"text"
    assert (store.check(["door-0"]), store.check(["door-2"])) == (True, False)
    assert [one.add("arrived", 1) for one in (store, other)] == [1, 2]
    assert store.delete_key("door-0")
    assert not store.check(["door-0"])


def test_it_listens_at_its_own_address_alone(listening):
    before = listening(os.getpid())
    stores = [open_store(Rendezvous(address)) for address in ("127.0.0.1", "127.0.0.2")]
    places = {(own.place.address, own.place.port) for own in stores}
    assert listening(os.getpid()) - before == places  # not 0.0.0.0, not ::


def test_an_entry_of_somebody_without_the_secret_is_refused(store):
    outsider(store).set("door-0", "192.0.2.66:6666")
    with pytest.raises(RuntimeError, match=r"'door-0' at 127.* by a process without the run's secret"):
        store.get("door-0")


def test_an_entry_that_somebody_replaced_is_refused(store):
    store.set("door-0", "10.0.0.7:40123")
    outsider(store).set("door-0", "192.0.2.66:6666")
    with pytest.raises(RuntimeError, match="without the run's secret"):
        store.get("door-0")


def test_an_entry_copied_to_another_key_is_refused(store):
    store.set("door-0", "10.0.0.7:40123")
    foreign = outsider(store)
    foreign.set("door-1", foreign.get("door-0"))
    with pytest.raises(RuntimeError, match="without the run's secret"):
        store.get("door-1")


def test_another_secret_is_none(store):
    stranger = join_store(replace(store.place, secret=Rendezvous("127.0.0.1").secret), seconds=20)
    stranger.set("door-0", "10.0.0.7")
    with pytest.raises(RuntimeError, match="without the run's secret"):
        store.get("door-0")


def test_the_secret_is_not_shown_and_each_meeting_has_its_own():
    first, second = Rendezvous("127.0.0.1"), Rendezvous("127.0.0.1")
    assert first.secret != second.secret and len(bytes.fromhex(first.secret)) == 32
    assert first.secret not in repr(first)
