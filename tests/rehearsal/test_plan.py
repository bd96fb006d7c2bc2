"""The commands that build a cluster's network, and what it is called."""

import pytest

from earl.errors import EarlError
from earl.rehearsal.plan import RehearsedCluster, bits_per_second, build, checked_name, link

TWO = RehearsedCluster(
    "earl", hosts=2, rate="500mbit", cpus=4, memory_mib=128, subnet=7, port=6379, folder="/tmp/earl-x"
)


def test_every_link_is_shaped_on_both_ends() -> None:
    buckets = [command for command in build(TWO) if command[0] == "tc"]
    # The driver's link and two hosts' links, two ends each.
    assert len(buckets) == 3 * 2
    assert len({(command[:3], command[command.index("dev") + 1]) for command in buckets}) == 6
    # 500 Mbit/s are 62,500,000 bytes/s, so 4 ms of it are 250,000 bytes.
    assert all(
        command[-7:] == ("tbf", "rate", "500mbit", "burst", "250000b", "latency", "100ms") for command in buckets
    )


def test_a_slow_rate_still_lets_whole_packets_through() -> None:
    slow = RehearsedCluster("earl", hosts=1, rate="1mbit", cpus=1, memory_mib=128, subnet=0, port=1, folder="")
    assert all("32768b" in command for command in build(slow) if command[0] == "tc")


def test_addresses_and_names() -> None:
    assert TWO.address == "10.201.7.1:6379"
    assert [TWO.ip(host) for host in TWO.workers] == ["10.201.7.2", "10.201.7.3"]
    assert [TWO.namespace(host) for host in TWO.workers] == ["earl-1", "earl-2"]
    # What Linux allows an interface's name: 15 bytes.
    assert len(RehearsedCluster(checked_name("a" * 8), 1, "1mbit", 1, 128, 0, 1, "").interface) <= 15
    assert link(TWO, 2, up=False) == ("ip", "-n", "earl-2", "link", "set", "earl0", "down")


@pytest.mark.parametrize(("rate", "bits"), [("1kbit", 1_000), ("500mbit", 500_000_000), ("25gbit", 25_000_000_000)])
def test_rates(rate: str, bits: int) -> None:
    assert bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["", "500", "0mbit", "1.5gbit", "500 mbit", "500mbit; reboot", "-1mbit", "500MBIT"])
def test_what_is_no_rate(rate: str) -> None:
    with pytest.raises(EarlError, match="such as 500mbit"):
        bits_per_second(rate)


@pytest.mark.parametrize("name", ["", "Earl", "earl-1", "../x", "123", "overninechars", "-n"])
def test_what_a_cluster_cannot_be_called(name: str) -> None:
    with pytest.raises(EarlError, match="such as 'earl'"):
        checked_name(name)
