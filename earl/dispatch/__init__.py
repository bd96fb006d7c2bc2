"""The Data Dispatcher: rows go straight from the processes that made them to those that need them.

columns.py   what a row consists of
spread.py    where rows lie: which rank of a layout holds which tokens of which row
balance.py   which consumer gets which row
routes.py    who gives what to whom, once into each host: pure, for rows and weights alike
plan.py      which process sends which tokens to which other one: pure, from lengths alone
volume.py    what a plan moves over which link, and what it has to move at least
shard.py     the rows of one process
execute.py   a plan carried out in one process, over any transport
dock/        rows that come and go at any time, group by group

and weights, from a learner's layout to a sampler's:

copies.py    tensors, and which box of each lies where
weights.py   which process sends which box to which other one, in which bucket
buckets.py   how much is on its way at once
peak.py      how much memory that takes, stated before
carry.py     such a plan carried out in one process
tensors.py   where the tensors lie: torch's, on any device

and what all this would take, said beforehand:

explain.py   where a plan's bytes go
cost.py      seconds, from bytes and links
job.py       a step's transfer on a cluster that is not here
outlook.py   the same by context and by number of GPUs
"""
