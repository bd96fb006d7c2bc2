"""Rollout: many episodes against one sampler."""
