"""How many tokens a second a layout is expected to make: rooflines, fitted to published measurements.

Precision ─┐
Engine ────┼─▶ KV room ─▶ how many responses run at once, in how many waves ─┐
Workload ──┘                                                                 ├─▶ step time ─▶ Rollout
coefficients (fitted by `earl bench calibration`, see benchmarks/published) ┘
"""
