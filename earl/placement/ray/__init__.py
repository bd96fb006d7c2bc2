"""The placements on a Ray cluster: one driver that runs the step, actors that do the work.

earl/trainer.py ─▶ StepPipeline ─┬─▶ LearnerGroup ═══▶ LearnerActor × dp·cp·tp   one model, joined by torch.distributed
                               └─▶ RolloutWorkers ═▶ RolloutActor × samplers   one rollout fragment each

A sampler may be split over sampler.tp actors. With separate environments, samplers are SamplerActors, and every
EnvironmentActor calls all of them. `coordinator` starts the actors on their devices, `actor_group` supervises them.
"""
