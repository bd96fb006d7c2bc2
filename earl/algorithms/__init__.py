"""Algorithms: one file each, with advantage and loss as pure functions, and a registry of their names."""
