"""The live view of a run, drawn in the terminal.

run folder ─▶ reader (polls) ─▶ RunNow ─▶ panels (pure) ─▶ page ─▶ screen (draws, listens to keys)
"""
