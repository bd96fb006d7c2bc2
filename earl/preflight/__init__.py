"""Preflight: what a recipe asks for is checked before anything is written, and said as a plan.

    recipe ─▶ world (who plays what) ─▶ machine (does it fit) ─▶ speech (can the model say it) ─▶ Plan

Whatever breaks a rule is refused with its value, the rule and the cure; nothing is mended in silence.
"""

from earl.preflight.cluster import check_address
from earl.preflight.plan import RunPlan, check_player, preflight, settled

__all__ = ["RunPlan", "check_address", "check_player", "preflight", "settled"]
