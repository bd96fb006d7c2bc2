"""The fitted coefficients as a file: beside the model that reads them."""

from pathlib import Path

import tomli_w

import earl.parallel.throughput
from earl.parallel.throughput.coefficients import FILE, PRIORS, Coefficients

PATH = Path(earl.parallel.throughput.__file__).with_name(FILE)
DIGITS = 6


def text(coefficients: Coefficients, rows: int) -> str:
    """As TOML, rounded to six digits."""
    content = {
        "rows": rows,
        "spread": _rounded(coefficients.spread),
        "values": {name: _rounded(coefficients.values[name]) for name in PRIORS},
        "covariance": [[_rounded(float(value)) for value in line] for line in coefficients.covariance],
    }
    head = "# Made by `earl bench calibration --write`: the covariance is of logarithms, in the order of the values.\n"
    return head + tomli_w.dumps(content)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
