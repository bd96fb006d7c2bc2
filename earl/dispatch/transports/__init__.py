"""How messages get from process to process.

base.py         what all of them promise
peers.py        torch.distributed: gloo, NCCL
rounds.py       in which pieces and in which order messages go; permutations.py, steps.py
shared.py       memory that processes of one host share, over another transport for the rest
objects.py      Ray: references to objects, one for each producer and destination host
controller.py   gather and scatter through one process: the baseline
roll.py         who does not answer, when something failed
estimate.py     what each should take, from a plan; probe.py: what has to be known of links
pace.py         which is fastest, from what they took
"""
