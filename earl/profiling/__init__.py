"""Layouts tried before a run: which, what they took, and where that is kept for the runs to come."""
