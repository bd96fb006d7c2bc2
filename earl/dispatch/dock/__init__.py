"""The transfer dock: rows come from producers and go to consumers at any time, group by group.

After MindSpeed RL (arXiv 2507.19017): what is known of a row apart from the row itself, which stays with its maker.

    producer   open ─▶ begin ─▶ Store.put ─▶ ready     consumer   take ─▶ a plan, executed ─▶ done
                 │ numbers │ who         │ where it lies            │ a hand-out                │
                 ▼         ▼             ▼                          ▲                           ▼
               Dock ═ Ledger: numbers, lengths, places, who has what; never a row's content

table.py     records by number: what a ledger consists of
groups.py    groups: their rows, who makes them, and what each is to every consumer
places.py    rows: their lengths, and where each column lies
handout.py   who reads what, and what it is given at once
ledger.py    which rows there are, what of them is ready, who gets which next: pure
store.py     the rows that one process made
dock.py      a ledger that threads wait at

Rollout ahead of the learner (`earl.placement.ahead`) is a ledger with room for (max_staleness + 1) x prompts groups and
a learner that reads `in_order`, `prompts` groups at once, and is `done` when its new weights are with the samplers: a
group then is opened exactly when it may start. What is in it lies with the rollout worker (`earl.placement.holdings`).
"""
