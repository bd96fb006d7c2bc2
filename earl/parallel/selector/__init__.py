"""The Parallelism Selector: chooses the layout of each stage by a pure decision, and remembers what that depends on."""
