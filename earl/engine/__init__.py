"""Engines: the model, the sampler that decodes with it, and the learner that trains it."""
