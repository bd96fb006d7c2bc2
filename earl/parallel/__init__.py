"""Which layout a stage runs in, and what it costs: pure functions of a model's shape and the load."""
