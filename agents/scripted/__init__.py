"""Scripted players and teachers: opponents by name, without a model."""
