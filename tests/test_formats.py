import math

from earl.formats import duration, percent, percent_digits, short, size, three_digits


def test_percents_never_round_to_certainty() -> None:
    shares = {
        0: "0 %",
        1: "100 %",
        1e-5: "<0.01 %",
        0.003: "0.30 %",
        0.888: "88.8 %",
        0.9999: "99.99 %",
        0.99999: ">99.99 %",
    }
    for share, words in shares.items():
        assert percent(share) == words
    assert percent_digits(1 - 1e-15) == "100"  # a sum of exact probabilities
    assert percent(math.nan) == "-"


def test_a_duration_has_the_unit_that_its_rounded_value_has() -> None:
    told = {
        0: "0 s",
        3e-8: "0.03 µs",
        1.73e-5: "17.3 µs",
        0.0042: "4.2 ms",
        0.09996: "100 ms",
        0.9996: "1 s",
        3.21: "3.21 s",
        99.96: "100 s",
        599.6: "10 min 0 s",
        754: "12 min 34 s",
        5999.6: "1 h 40 min",
        7300: "2 h 1 min",
        86399.6: "1 d 0 h",
        200_000: "2 d 7 h",
    }
    assert {seconds: duration(seconds) for seconds in told} == told
    assert duration(math.inf) == "-"


def test_short_numbers_have_three_digits() -> None:
    told = {
        0.25: "0.25",
        72: "72",
        999: "999",
        1500: "1.5K",
        422_342: "422K",
        999_999: "1M",
        1_291_715: "1.29M",
        -2e9: "-2G",
    }
    assert {value: short(value) for value in told} == told
    assert short(math.nan) == "-"


def test_sizes() -> None:
    assert [size(count) for count in (0, 1023, 1536, 3 << 30)] == ["0 bytes", "1023 bytes", "1.5 KiB", "3.0 GiB"]


def test_three_digits() -> None:
    assert [three_digits(value) for value in (0.0123, 12.345, 99.9, 99.96, 1234.5)] == [
        "0.0123",
        "12.3",
        "99.9",
        "100",
        "1,234",
    ]
