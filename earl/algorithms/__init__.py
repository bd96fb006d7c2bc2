"""Algorithms: one file each, advantage and loss as pure functions, and the registry that names them."""
