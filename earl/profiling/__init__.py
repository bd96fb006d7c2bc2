"""Profiling: layouts measured before a run, and the cache of these measurements."""
