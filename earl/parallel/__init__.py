"""Layouts of the stages and their cost: pure functions of a model's shape and the load."""
