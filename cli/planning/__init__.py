"""`earl plan`: what a user names becomes questions, what the planner answers becomes tables.

options ─▶ asking (files, names) ─▶ earl.planner ─▶ tables (terminal), JSON, earl.report.planning (HTML)
"""
