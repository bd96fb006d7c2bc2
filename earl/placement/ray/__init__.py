"""The placements on a Ray cluster: one driver that runs the step, actors that do the work.

    earl/train.py ─▶ Stages ─┬─▶ Ranks ═══▶ RankActor × dp·tp     one model, joined by torch.distributed
                             └─▶ Workers ═▶ WorkerActor × samplers   one rollout fragment each, or sampler.tp of them

With environments apart, WorkerActors are SamplerActors, and EnvironmentActors × environments ask every one of them.

`policies` says which fragment runs where, `session` makes it so, `crew` watches over the actors.
"""
