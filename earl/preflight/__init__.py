"""Preflight: checks a recipe before anything is written, and returns the plan of its run.

    recipe ─▶ environment (players) ─▶ hardware (does it fit) ─▶ prompts (can the model say it) ─▶ RunPlan

Broken rules are refused with the value, the rule and the cure; nothing is corrected silently.
"""

from earl.preflight.placement import check_address
from earl.preflight.plan import RunPlan, check_player, preflight
from earl.preflight.prompts import risks

__all__ = ["RunPlan", "check_address", "check_player", "preflight", "risks"]
