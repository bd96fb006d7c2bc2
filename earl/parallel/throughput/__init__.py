"""Expected tokens per second of a layout: rooflines, fitted to published measurements.

Precision ─┐
Engine ────┼─▶ KV cache ─▶ how many responses run at once, in how many waves ┐
Workload ──┘                                                                 ├─▶ step time ─▶ Rollout
coefficients (fitted by `earl bench calibration`, see benchmarks/published) ┘
"""
