"""A Ray cluster rehearsed on one machine: every host is a network namespace with its own Ray node.

plan.py      names, the commands that build the network, checks of the machine, the stored record of a cluster
owner.py     which process owns a resource, so that leftovers of dead processes can be removed
cluster.py   host processes and Ray nodes: up, down, status, and faults of a host
"""
