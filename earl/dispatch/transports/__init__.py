"""How messages get from process to process.

base.py         the `Transport` protocol, messages as bytes, and `execute`, which carries a plan out
peers.py        torch.distributed: gloo, NCCL
schedule.py     in which pieces and in which order messages go
rendezvous.py   the store where processes find each other
"""
