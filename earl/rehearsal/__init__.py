"""A Ray cluster rehearsed on one machine: every host is a network namespace with its own Ray node.

plan.py      the cluster's names, the commands that build its network, and what the machine must allow
nodes.py     network, host processes and Ray nodes: start, signal, stop
owner.py     which process owns a resource, so that leftovers of dead processes can be removed
state.py     the stored record of a cluster, and `attach`: how a driver joins it
cluster.py   up, down, status, and faults of a host
"""
