"""Preflight: what a recipe asks for is checked before anything is written, and said as a plan.

    recipe ─▶ world (who plays what) ─▶ machine (does it fit) ─▶ speech (can the model say it) ─▶ Plan

Whatever breaks a rule is refused with its value, the rule and the cure; nothing is mended in silence.
"""

from earl.preflight.plan import Plan, check_player, preflight, settled
from earl.preflight.site import check_address

__all__ = ["Plan", "check_address", "check_player", "preflight", "settled"]
