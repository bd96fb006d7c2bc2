"""Scripted players and teachers: opponents by name, without any model."""
