"""How good a choice of TP is that follows predictions, judged by what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from earl.parallel.calibration.tables import Measured

NEAR = 0.03
"""Of the best: as good as right."""


def choices(guessed: Mapping[Measured, float]) -> dict[str, Any]:
    """Over the cells in which several TP were measured: tokens per GPU lost by taking the one that is predicted best.

    Returns:
        `cells`; `right`: share in which the best was taken; `near`: share in which it, or one within 3 % of it, was;
        `mean_regret`, `worst_regret`: share of the best's tokens that were lost
    """
    cells: dict[object, list[Measured]] = {}
    for row in guessed:
        cells.setdefault(row.cell, []).append(row)
    lost = [_regret(cell, guessed) for cell in cells.values() if len(cell) > 1]
    return {
        "cells": len(lost),
        "right": sum(regret == 0 for regret in lost) / len(lost),
        "near": sum(regret <= NEAR for regret in lost) / len(lost),
        "mean_regret": sum(lost) / len(lost),
        "worst_regret": max(lost),
    }


def _regret(cell: Sequence[Measured], guessed: Mapping[Measured, float]) -> float:
    taken = max(cell, key=lambda row: guessed[row] / row.tp)
    return 1 - taken.tokens_per_second / taken.tp / max(row.tokens_per_second / row.tp for row in cell)
