"""Placements: where the fragments of a step run."""
