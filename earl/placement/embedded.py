"""The embedded placement: rollout, experience preparation and update in the same few processes, without Ray."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from earl.agents.chat import Chat
from earl.agents.scripted.registry import agent
from earl.algorithms.imitation import Imitation
from earl.algorithms.registry import algorithm
from earl.batch import Batch, Rows
from earl.config import Config
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, make, read_weights, shape_of
from earl.engine.schedule import entropy_weight, learning_rate, ramp
from earl.placement.exchange import joined, rows_from_bytes, rows_to_bytes
from earl.placement.peers import Peers
from earl.rollout.episode import Rules
from earl.rollout.experience import charged, experiences, learned, unlearned
from earl.rollout.lockstep import play
from earl.rollout.pack import complete, num_rows, pack, trajectories_of, turn_values
from earl.rollout.tasks import World, draw_tasks, group_episodes
from earl.rollout.teacher import demonstrate
from earl.runs.trajectories import from_bytes, to_bytes
from earl.seeds import derive
from earl.trajectory import Experience, Group

LEARNER = "learner"
"""The folder of the learner's state: inference engines read every safetensors file beside config.json as weights."""

REFERENCE = "reference"
"""The folder in a checkpoint that holds the reference model, once there is one."""


class Embedded:
    """The fragments of a step, where they run, and how they are joined: here, all in each process's own memory."""

    def __init__(self, config: Config, peers: Peers, policy: Policy | None = None) -> None:
        torch.set_num_threads(1)  # processes share the cores; threads on top of them slow each other down
        self.config, self.peers = config, peers
        self.policy = policy or make(config.model, config.run.seed)
        self.shape = shape_of(self.policy.model)
        self.world = world_of(config, self.policy)
        self.algorithm = algorithm(config.algorithm.name)
        self.learner = Learner(
            self.policy.model,
            config.algorithm,
            config.learner,
            config.rollout.temperature,
            peers,
            self.algorithm.needs_values,
        )
        self.sampler = LocalSampler(self.policy, config.rollout.temperature)
        self.judge = LocalSampler(self.policy, greedy=True)
        self.reference: Any = None

    def demonstrations(self, step: int, limit: int | None = None) -> Rows:
        """New episodes of the teacher, all processes' together; `limit` replaces the context limit that now holds."""
        world = self._limited(limit or self.world.rules.context_limit)
        warm, seed = self.config.warm_start, self._seed("demonstrate", step)
        tasks = draw_tasks(self.world.env, warm.opponents or self.config.env.opponents, warm.episodes, seed)
        mine = range(len(tasks))[self.peers.rank :: self.peers.size]
        episodes = [world.episode(tasks[i], derive(seed, "episode", i), i) for i in mine]
        teacher, noisy = agent(warm.teacher, self.world.env), agent("random", self.world.env)
        played, labels = demonstrate(episodes, teacher, noisy, warm.noise)
        order = np.repeat(np.array(mine, np.int64), [num_rows(trajectory) for trajectory in played])
        parts = self.peers.gather(rows_to_bytes(pack(played, labels), order))
        return joined([rows_from_bytes(data) for data in parts])

    def imitate(self, rows: Rows, step: int) -> dict[str, float]:
        """Learn the teacher's labels."""
        warm = self.config.warm_start
        turns = int(rows.turns.max()) + 1
        batch = complete(rows, np.ones(turns, np.float32), np.zeros(turns, np.float32), None)
        rate = ramp(step, warm.steps, warm.learning_rate, warm.final_learning_rate, 0.0, "linear")
        update = Update(rate, 0.0, 0.0, warm.minibatches, warm.epochs, self._seed("order", step))
        return self.learner.update(batch, Imitation(), update) | {"learning_rate": rate}

    def rollout(self, step: int) -> list[Group]:
        """The step's groups, all processes' together."""
        rollout, seed = self.config.rollout, self._seed("rollout", step)
        tasks = draw_tasks(self.world.env, self.config.env.opponents, rollout.prompts, seed)
        mine = {i: tasks[i] for i in range(len(tasks))[self.peers.rank :: self.peers.size]}
        played = play(group_episodes(self.world, mine, rollout.group_size, seed), self.sampler)
        size = rollout.group_size
        groups = [Group(tuple(played[start : start + size])) for start in range(0, len(played), size)]
        parts = [from_bytes(data)[1] for data in self.peers.gather(to_bytes(groups, step))]
        return [parts[i % self.peers.size][i // self.peers.size] for i in range(len(tasks))]

    def prepare(self, groups: Sequence[Group]) -> Batch:
        """Experience preparation: rows, values, advantages, log-probs of the reference."""
        kept = charged(self.learned(groups), self.config.context.length_penalty)
        rows = pack(trajectories_of(kept))
        turns = sum(len(trajectory.turns) for trajectory in trajectories_of(kept))
        values = np.zeros(turns, np.float32)
        if self.algorithm.needs_values:
            values = turn_values(rows, self.learner.values(rows), turns)
        advantages = self.algorithm.advantages(kept, values, self.config.algorithm)
        reference = self.learner.logprobs(self._reference(), rows) if self.config.algorithm.kl else None
        return complete(rows, advantages.turns, advantages.returns, reference)

    def learned(self, groups: Sequence[Group]) -> list[Group]:
        """The groups as far as the recipe learns from them."""
        return learned(groups, self.config.context.learn_truncated)

    def experiences(self, groups: Sequence[Group], batch: Batch | None) -> list[Experience]:
        """What was made of every trajectory, after the update; without a batch: nothing of any."""
        if batch is None:
            return unlearned(groups)
        return experiences(groups, self.learned(groups), batch, self.learner.logprobs(self.policy.model, batch))

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self.world = self._limited(tokens)

    def _limited(self, tokens: int) -> World:
        return replace(self.world, rules=replace(self.world.rules, context_limit=tokens))

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Learn from a batch; `step` counts the steps of reinforcement learning from 1."""
        config, steps = self.config, self.config.run.steps
        update = Update(
            learning_rate=learning_rate(config.learner, step, steps),
            entropy=entropy_weight(config.algorithm, config.learner, step, steps),
            kl=config.algorithm.kl,
            minibatches=config.learner.minibatches,
            epochs=config.learner.epochs,
            seed=self._seed("order", "rl", step),
        )
        stats = self.learner.update(batch, self.algorithm, update)
        return stats | {"learning_rate": update.learning_rate, "entropy_weight": update.entropy}

    def sync(self, version: int) -> None:
        """Give the learner's weights to the samplers."""
        for sampler in (self.sampler, self.judge):
            sampler.load(self.learner.weights(), version)

    def save(self, folder: Path) -> None:
        """Write all that a run continues from: the model as a Hugging Face folder, and the learner's state."""
        self.policy.save(folder)
        (folder / LEARNER).mkdir()
        save_file(self.learner.state(), folder / LEARNER / "state.safetensors")
        if self.reference is not None:
            self.reference.save_pretrained(folder / REFERENCE)

    def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        self.learner.restore(read_weights(folder), load_file(folder / LEARNER / "state.safetensors"))
        if (folder / REFERENCE).exists():
            self._reference().load_state_dict(read_weights(folder / REFERENCE))

    def _reference(self) -> Any:
        """The model as it was when reinforcement learning began."""
        if self.reference is None:
            self.reference = copy.deepcopy(self.policy.model).eval().requires_grad_(False)
        return self.reference

    def _seed(self, *purpose: int | str) -> int:
        return derive(self.config.run.seed, *purpose)


def world_of(config: Config, policy: Policy, limit: int | None = None) -> World:
    """The episodes of a recipe, for a policy; `limit` replaces the recipe's first context limit."""
    agent_config = config.agent
    rules = Rules(
        history=agent_config.history,
        retries=agent_config.retries,
        thinking=agent_config.thinking,
        instructions=agent_config.instructions,
        max_turns=agent_config.max_turns,
        max_turn_tokens=agent_config.max_turn_tokens,
        summary_tokens=agent_config.summary_tokens or Rules().summary_tokens,
        context_limit=limit or config.context.first_limit,
        forfeit_reward=agent_config.forfeit_reward,
    )
    return World(config.env.name, config.env.options, Chat(policy.tokenizer), rules)
