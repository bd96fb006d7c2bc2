from earl.parallel.layout import fits, verdict


def test_a_margin_is_left() -> None:
    # 3 % of 100 GiB stay free.
    assert fits(97 << 30, 100 << 30)
    assert not fits((97 << 30) + (1 << 28), 100 << 30)


def test_how_much_is_missing_in_words() -> None:
    assert verdict(83 << 30, 80 << 30) == "83.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 5.4 GiB too much"
    assert verdict(70 << 30, 80 << 30) == "70.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 7.6 GiB to spare"
