"""Kinds of GPUs and clusters: what is written, what drivers say, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import EarlError
from earl.parallel.hardware import GIB, device_of, devices, of_gpus, own_devices


def test_every_kind_has_plausible_numbers() -> None:
    assert {"A100-40", "A100-80", "H100", "H200", "B200", "L40S", "RTX4090", "MI300X"} == set(devices())
    for device in devices().values():
        assert 23 * GIB < device.memory_bytes < 192 * GIB
        assert 100e12 < device.bf16_flops < 3000e12
        assert device.link_bandwidth < device.memory_bandwidth < 10e12


@given(st.integers(1, 2000), st.integers(1, 16), st.sampled_from(sorted(devices())))
def test_hosts_and_gpus(hosts: int, each: int, kind: str) -> None:
    cluster = of_gpus(f"{hosts}x{each}x{kind.lower()}")
    assert (cluster.hosts, cluster.gpus_per_host, cluster.gpus) == (hosts, each, hosts * each)
    assert cluster.device is devices()[kind]


def test_one_host_needs_no_number() -> None:
    assert (of_gpus("8xH100").hosts, of_gpus("8xH100").gpus) == (1, 8)
    assert of_gpus("8xA100-80").device.kind == "A100-80"


@pytest.mark.parametrize("text", ["", "H100", "8", "axH100", "-8xH100", "8 x H100", "٣xH100"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(EarlError, match="is not of the form HOSTSxGPUSxKIND"):
        of_gpus(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0xH100", "has no GPUs; name one at least, such as 1x1xH100"),
        ("0x8xH100", "has no hosts; name one at least, such as 1x8xH100"),
        ("8x0xH100", "has no GPUs; name one at least, such as 8x1xH100"),
    ],
)
def test_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(EarlError, match=words):
        of_gpus(text)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("A100", "A100-80"),
        ("A100-40GB", "A100-40"),
        ("a100-80gb", "A100-80"),
        ("H100-80GB", "H100"),
        ("L40S-48GB", "L40S"),
    ],
)
def test_kinds_with_their_memory_as_tables_name_them(said: str, kind: str) -> None:
    assert of_gpus(f"8x{said}").device == devices()[kind]


@pytest.mark.parametrize("text", ["8xH100-160GB", "8xH100-SXM", "8xA100-60"])
def test_a_memory_that_no_such_kind_has_is_refused(text: str) -> None:
    with pytest.raises(EarlError, match="unknown kind of GPU"):
        of_gpus(text)


OWN = """kind,memory_gib,bf16_tflops,memory_gb_per_second,link_gb_per_second,fewest_bits
GB200,186,2500,8000,900,4
H100,94,835,3938,300,8
"""


def test_own_kinds_stand_beside_the_listed_ones_and_before_them() -> None:
    kinds = own_devices(OWN, "mine.csv")
    assert set(kinds) == {*devices(), "GB200"}
    assert of_gpus("2x4xgb200", kinds).device.memory_bytes == 186 * GIB
    assert of_gpus("8xH100", kinds).device.memory_bandwidth == 3938e9  # the user's own word
    assert of_gpus("8xH100").device.memory_bandwidth == 3350e9


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_gib,", "memory,", "mine.csv has no column 'memory_gib'; its first line has to be kind,memory_gib"),
        ("GB200", "200", "mine.csv, line 2: '200' is no name for a kind of GPU"),
        (",186,", ",lots,", "line 2: memory_gib = 'lots' is not a number above 0"),
        (",300,8\n", "\n", "line 3: link_gb_per_second = None is not a number above 0"),
        ("2500", "nan", "bf16_tflops = 'nan' is not a number above 0"),
        ("2500", "0", "bf16_tflops = '0' is not a number above 0"),
    ],
)
def test_a_table_of_own_kinds_that_is_none(old: str, new: str, words: str) -> None:
    with pytest.raises(EarlError, match=words):
        own_devices(OWN.replace(old, new, 1), "mine.csv")


def test_another_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(EarlError, match="unknown kind of GPU 'H1000'; did you mean 'H100'"):
        of_gpus("8xH1000")


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100"),
        ("NVIDIA H200", 140.4, "H200"),
        ("NVIDIA A100-SXM4-40GB", 40, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100-80"),
        ("NVIDIA A100 80GB PCIe", 80, "A100-80"),
        ("A100-40G", None, "A100-40"),
        ("A100", 40, "A100-40"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090"),
        ("AMD-Instinct-MI300X-OAM", None, "MI300X"),
        ("NVIDIA L40S", 45, "L40S"),
    ],
)
def test_kinds_as_drivers_and_ray_call_them(name: str, gib: float | None, kind: str) -> None:
    assert device_of(name, int(gib * GIB) if gib else None).kind == kind


def test_a_kind_that_is_not_listed() -> None:
    assert device_of("Tesla T4", 15 * GIB) is None
