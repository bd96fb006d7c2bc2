"""A small learner, the same in every process."""

import torch

from earl.benchmarks.footprint import model
from earl.benchmarks.layouts import policy
from earl.config import LearnerConfig
from earl.engine.learner import Learner

SHAPE = model(hidden_size=64, num_hidden_layers=2, num_key_value_heads=2, intermediate_size=96, vocab_size=106)


def learner_of(ranks, values=False, shape=SHAPE, **settings):
    torch.manual_seed(0)
    settings = {"micro_batch_tokens": 80, **settings}
    return Learner(policy(shape), LearnerConfig(**settings), 1.0, ranks, values)
