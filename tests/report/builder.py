"""Runs made by code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from earl.matches import MatchResult
from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder, create
from earl.runs.store import RecordedDecision, Store
from earl.trajectory import Group, Trajectory
from tests.report.played import board_games, byte_tokenizer, episode, experience, long_games, project_tokenizer
from tests.report.recorded import STEPS, WARM, matches, record

RECIPE = f"""
[env]
name = "tictactoe"
[env.opponents]
random = 1
perfect = 1
[context]
limit = 120
[warm_start]
steps = {WARM}
teacher = "perfect"
[evaluate]
opponents = ["random", "perfect"]
[run]
steps = {STEPS - WARM}
"""

LONGEST_NAME = 1000
"""Characters of a name that a run may hold; a longer one is refused on reading."""


@dataclass
class Builder:
    """Makes runs in a folder of the test."""

    root: Path

    def empty(self, name: str = "demo", recipe: str = RECIPE) -> RunFolder:
        """A run that has only its recipe."""
        return create(self.root, name, recipe)

    def run(
        self, *, until: int = STEPS, final: bool = True, exact: bool = False, name: str = "demo", limit: int = 120
    ) -> RunFolder:
        """A run that recorded the steps 0 … until, with a checkpoint and a step's trajectories."""
        folder = self.empty(name, RECIPE.replace("limit = 120", f"limit = {limit}"))
        with Store(folder.database) as store:
            for step in range(until + 1):
                record(store, step, exact)
            store.event(min(until, 30), "limit", "raised the limit from 120 to 150")
            if final:
                store.record_step(until, {}, {}, matches(0.9, exact), "final")
                store.event(until, "finished", "all steps done")
        self.checkpoint(folder, until)
        if until > WARM:
            self.episodes(folder, until, board_games())
        return folder

    def checkpoint(self, folder: RunFolder, step: int, tokenizer: Any = None) -> None:
        """A checkpoint of a model of 4 × 6 + 6 = 30 parameters."""

        def write(path: Path) -> None:
            save_file(
                {"embed": np.zeros((4, 6), np.float32), "norm": np.zeros(6, np.float32)}, path / "model.safetensors"
            )
            (path / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 6}')
            if tokenizer is None:
                project_tokenizer().save_pretrained(path)
            else:
                tokenizer.save(str(path / "tokenizer.json"))

        checkpoint.save(folder.checkpoints, step, write, {"step": step, "best_step": step})

    def episodes(self, folder: RunFolder, step: int, played: Sequence[Trajectory], learned: bool = True) -> None:
        """Keep trajectories of a step, and what was learned from them."""
        path = trajectories.path_of(folder.trajectories, step)
        experiences = [experience(trajectory) for trajectory in played] if learned else None
        trajectories.write(path, trajectories.to_table([Group(tuple(played))], step, experiences))

    def long(self, name: str = "long", steps: int = 500) -> RunFolder:
        """A run of many steps, with ten of its steps' episodes: 400 games of up to 8 turns with thinking."""
        folder = self.empty(name, RECIPE.replace(f"steps = {STEPS - WARM}", f"steps = {steps - WARM}"))
        with Store(folder.database) as store:
            for step in range(steps + 1):
                record(store, step, exact=False)
            store.record_step(steps, {}, {}, matches(0.9, exact=False), "final")
        self.checkpoint(folder, steps)
        for step in range(steps // 10, steps + 1, steps // 10):
            self.episodes(folder, step, long_games(step))
        return folder

    def hostile(self, texts: Sequence[str], name: str = "hostile") -> RunFolder:
        """A run whose opponents, events, metrics and stages are named by `texts`, as far as names may be long."""
        folder = self.empty(name)
        with Store(folder.database) as store:
            for number, text in enumerate(texts):
                name = text[:LONGEST_NAME]
                result = MatchResult("tictactoe", name, 0, False, 40, 0.5, 0.25, 0.25, 0.0, 0.0)
                store.record_step(number, {name: 1.0, "reward": 0.5}, {name: 0.1}, [result], "train")
                store.event(number, name, text)
                store.decision(RecordedDecision(number, "update", name, "dp4 tp1", name, text, text))
        self.checkpoint(folder, 1, byte_tokenizer())
        numbers = np.random.default_rng(0)  # a long reply whose log-probs are all equal is refused as a bomb
        played = [
            episode(lambda t: byte_tokenizer().encode(t).ids, [(text, text)], opponent=text[:LONGEST_NAME], error=text)
            for text in texts
        ]
        self.episodes(folder, 1, [_varied(game, numbers) for game in played])
        return folder


def _varied(game: Trajectory, numbers: np.random.Generator) -> Trajectory:
    logprobs = np.where(game.sampled, -numbers.random(len(game.tokens)), 0).astype(np.float32)
    return replace(game, logprobs=logprobs)
