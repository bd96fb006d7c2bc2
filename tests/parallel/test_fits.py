from earl.parallel.layout import usable, verdict


def test_a_margin_is_left() -> None:
    # 3 % of 100 GiB stay free.
    assert usable(100 << 30) == 97 << 30


def test_how_much_is_missing_in_words() -> None:
    assert verdict(83 << 30, 80 << 30) == "83.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 5.4 GiB too much"
    assert verdict(70 << 30, 80 << 30) == "70.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 7.6 GiB to spare"
