"""Plans a cluster that is not here: which layouts fit, their speed, and the cost of a step and its episodes.

    question ─▶ cells (stage × context × layout) ─▶ choices, map ─▶ step ─▶ cost

Predicted from shapes, published numbers of GPUs and the calibrated model of `earl.parallel`; no torch, no network.
"""
