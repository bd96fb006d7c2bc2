"""The live view of a run in the terminal.

run folder ─▶ reader (polls) ─▶ RunNow ─▶ panels (pure) ─▶ page ─▶ screen (draws, reads keys)
"""
