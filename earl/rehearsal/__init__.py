"""A Ray cluster rehearsed on one machine: every host a network namespace with a Ray node of its own.

plan.py      what a cluster is called, and the commands that build its network: pure
network.py   that network laid and removed, with or without Ray
needs.py     what the machine must allow
owner.py     who made it, so that what a dead process left can be removed
state.py     what is remembered of a cluster, and `attach`: how a driver joins it
processes.py the processes of a host: found by its namespace, killed, frozen, thawed
nodes.py     one Ray node per host, by the program `ray`
cluster.py   up, down, status
faults.py    what may happen to a host
"""
