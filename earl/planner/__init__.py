"""Planning a cluster that is not here: which layouts fit, how fast they are, what a step and its episodes take.

    question ─▶ cells (stage × context × layout) ─▶ choices, map ─▶ step ─▶ cost

All of it is predicted from shapes, published numbers of GPUs and the calibrated model of `earl.parallel`; no torch, no
network. Pure: what a user named is read elsewhere.
"""
