"""Which layout each stage of a step runs in, and why: a state machine without side effects, and what it remembers."""
