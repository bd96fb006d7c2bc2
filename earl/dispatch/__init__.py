"""The Data Dispatcher: rows and weights go directly from the processes that hold them to those that need them.

rows.py             columns, where rows lie (spread), which consumer gets which row (balance), the rows of one process
plan.py             which process sends which tokens to which other one: pure, from lengths alone
weights.py          which learner rank gives which part of a tensor, in which bucket
predicted_cost.py   where a plan's bytes go, and seconds, also for a cluster that does not exist yet
transports/         how messages get from process to process
"""
