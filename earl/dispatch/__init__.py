"""The Data Dispatcher: rows go straight from the processes that made them to those that need them.

columns.py   what a row consists of
spread.py    where rows lie: which rank of a layout holds which tokens of which row
balance.py   which consumer gets which row
routes.py    who gives what to whom, once into each host: pure, for rows and weights alike
plan.py      which process sends which tokens to which other one: pure, from lengths alone
volume.py    what a plan moves over which link, and what it has to move at least
shard.py     the rows of one process
execute.py   a plan carried out in one process, over any transport
"""
