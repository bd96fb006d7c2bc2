"""How messages get from process to process.

base.py         the `Transport` protocol, messages as bytes, and `execute`, which carries a plan out
peers.py        torch.distributed: gloo, NCCL; finds which process failed
schedule.py     in which pieces and in which order messages go
shared.py       shared memory inside a host, another transport for the rest
objects.py      Ray: references to objects, one per producer and destination host
controller.py   gather and scatter through one process: the baseline
rendezvous.py   the store where processes find each other
"""
