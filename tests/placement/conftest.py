"""A policy that knows the rules, for tests of what is played."""

import pytest


@pytest.fixture(scope="session")
def legal(tiny):
    """Makes the rollout fragment of a recipe, with a policy that was taught random legal moves."""
    from earl.engine.model import make
    from earl.engine.samplers import make_sampler
    from earl.placement.embedded import embedded_pipeline
    from earl.placement.fragment import RolloutFragment
    from earl.placement.peers import Peers

    lesson = {"steps": 20, "teacher": "random", "noise": 0.0, "episodes": 32, "learning_rate": 1e-2}
    taught = embedded_pipeline(tiny(warm_start=lesson), Peers())
    for step in range(1, lesson["steps"] + 1):
        rows = taught.demonstrations(step)
        taught.imitate(taught.dispatch_taught(rows, step), rows.num_turns, step)
    weights = {name: tensor.clone() for name, tensor in taught.learner.weights().items()}

    def fragment(config):
        policy = make(config.model, config.run.seed)
        policy.model.load_state_dict(weights)
        return RolloutFragment(config, policy.tokenizer, make_sampler(config, policy))

    return fragment
