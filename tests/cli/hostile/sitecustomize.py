"""Python imports this file when it starts: every process of a run that has this folder on its path knows `hostile`."""

from earl.envs.registry import register

register("hostile", "hostile:Hostile")
