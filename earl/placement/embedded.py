"""The embedded placement: rollout, experience preparation and update in the same few processes, without Ray."""

import io
import json
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from earl.actions.pool import open_pool, own_cores, part_of
from earl.agents.parser import parser
from earl.agents.scripted import equilibrium
from earl.batch import Rows
from earl.config import Config
from earl.engine.learner import make_learner
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, load, make, shape_of
from earl.engine.ranks import Ranks
from earl.engine.samplers import make_sampler
from earl.envs import registry
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError
from earl.evaluation import Match
from earl.matches import MatchResult
from earl.placement.fragment import RolloutFragment, episode_factory, with_opponents
from earl.placement.peers import Peers, WorkerLost
from earl.placement.pipeline import Players, StepPipeline, in_order, share
from earl.rollout.drivers import BatchSampler, Greedy
from earl.rollout.pack import OrderedRows, joined, pack, trajectories_of
from earl.rollout.tasks import Draw, EpisodeFactory
from earl.runs.trajectories import from_bytes, matches_from_bytes, matches_to_bytes, to_bytes
from earl.trajectory import Group, PlayedGroups, Task


def groups_to_bytes(groups: Mapping[int, Group]) -> bytes:
    """Groups in the format of a run's folder, behind a header with their numbers and the labels of each episode."""
    labels = [[[*one.labels.items()] for one in own.trajectories] for own in groups.values()]
    head = json.dumps([[*groups], labels]).encode()
    return len(head).to_bytes(4, "little") + head + to_bytes([*groups.values()])


def groups_from_bytes(data: bytes) -> dict[int, Group]:
    begin = 4 + int.from_bytes(data[:4], "little")
    (numbers, labels), groups = json.loads(data[4:begin]), from_bytes(data[begin:])
    found = {}
    for number, group, own in zip(numbers, groups, labels, strict=True):
        pairs = zip(group.trajectories, own, strict=True)
        found[number] = Group(tuple(replace(one, labels=dict(pair)) for one, pair in pairs))
    return found


def rows_to_bytes(share: OrderedRows) -> bytes:
    """Rows as an archive of numpy, without pickle."""
    buffer, (rows, order) = io.BytesIO(), share
    np.savez(buffer, order=order, **{field.name: getattr(rows, field.name) for field in fields(Rows)})
    return buffer.getvalue()


def rows_from_bytes(data: bytes) -> OrderedRows:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Rows(**{field.name: arrays[field.name] for field in fields(Rows)}), arrays["order"]


class PeerPlayers(Players):
    """One fragment in each of the processes of an embedded run; every process gets all groups."""

    def __init__(self, fragment: RolloutFragment, peers: Peers) -> None:
        self.fragment, self._peers, self._place = fragment, peers, (peers.rank, peers.size)
        self.costs: Mapping[str, float] = {}

    def play(self, draw: Draw) -> list[Group]:
        own = self.fragment.play(draw.step, share(draw.slots, *self._place), draw.seed, draw.labelled)
        self.costs = self.fragment.costs
        played = ChainMap(*self._peers.share(own, groups_to_bytes, groups_from_bytes))
        return [played[number] for number in sorted(played)]

    def rows(self, groups: PlayedGroups) -> Rows:
        return pack(trajectories_of(self.whole(groups)))

    def whole(self, groups: PlayedGroups) -> list[Group]:
        return [group for group in groups if isinstance(group, Group)]

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> Rows:
        own = self.fragment.demonstrate(share(tasks, *self._place), seed, limit)
        return joined(self._peers.share(own, rows_to_bytes, rows_from_bytes))[0]

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        own = self.fragment.evaluate([*share(matches, *self._place).values()])
        return in_order(chain.from_iterable(self._peers.share(own, matches_to_bytes, matches_from_bytes)))

    def limit(self, tokens: int) -> None:
        self.fragment.limit(tokens)

    def load(self, weights: Any, version: int) -> Mapping[str, float]:
        self.fragment.sampler.load(weights, version)
        return {}


# The policy of `earl eval` and `earl play` is greedy, and runs in this process only.

SMALL_PARAMETERS = 10_000_000
"""Up to this size the matrices are so small that threads cost more than they gain."""


@dataclass(frozen=True, slots=True)
class EvalPolicy:
    world: EpisodeFactory
    sampler: BatchSampler
    policy: Policy | None = None  # where it is in this process
    temperature: float = 1.0  # of its rollout

    def hidden_game(self) -> BoardGameEnv | None:
        """The game, where its seats do not see the same."""
        env = registry.make(self.world.env, **self.world.options)
        return env if isinstance(env, BoardGameEnv) and env.game.sees else None

    def exploitability(self, env: BoardGameEnv) -> float:
        """The exploitability of the policy as it is sampled in rollout, without illegal replies. Raises EarlError where
        its moves do not follow from what a seat is told."""
        rules, chat, policy = self.world.rules, self.world.chat, self.policy
        if rules.history != "board_only" or rules.thinking or policy is None:
            raise EarlError(
                f"exploitability in {env.game.name} is that of a run or a model that answers without thinking to what "
                f"it is told last; agent.history = {rules.history!r}, agent.thinking = {str(rules.thinking).lower()}: "
                "train with 'board_only' and false"
            )
        instructions = env.instructions if rules.instructions else ""

        @torch.no_grad()
        def chances(seen: str, legal: tuple[str, ...]) -> Sequence[float]:
            prompt, likely = chat.opening(instructions, seen).tokens, []
            for action in legal:
                reply = chat.written(parser(rules.parser).phrased(action, thinking=False))
                tokens = torch.tensor([[*prompt, *reply]])
                logits = policy.model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
                logprobs = torch.log_softmax(logits.double() / self.temperature, dim=-1)
                likely.append(float(logprobs.gather(1, tokens[0, len(prompt) :, None]).sum().exp()))
            return [one / sum(likely) for one in likely]

        return equilibrium.exploitability(env.game, chances)


def greedy_policy(config: Config, policy: Policy, limit: int | None = None) -> EvalPolicy:
    """A greedy sampler of a policy. limit: the context limit that its training reached."""
    if sum(parameter.numel() for parameter in policy.model.parameters()) <= SMALL_PARAMETERS:
        torch.set_num_threads(1)
    world, sampler = episode_factory(config, policy.tokenizer, limit), Greedy(with_opponents(LocalSampler(policy)))
    return EvalPolicy(world, sampler, policy, config.rollout.temperature)


def embedded_pipeline(config: Config, peers: Peers, policy: Policy | None = None) -> StepPipeline:
    torch.set_num_threads(1)  # processes share the cores; more threads would slow all down
    policy = policy or make(config.model, config.run.seed)
    open_pool(part_of(own_cores(), peers.rank, peers.size), config.tools, peers.size)
    fragment = RolloutFragment(config, policy.tokenizer, make_sampler(config, policy))
    learner = make_learner(config, policy, Ranks(peers))
    world = episode_factory(config, policy.tokenizer)
    return StepPipeline(config, world, shape_of(policy.model), learner, PeerPlayers(fragment, peers))


@dataclass(frozen=True, slots=True)
class EmbeddedBackend:
    config: Config
    peers: Peers

    def open(self, saved: Path | None) -> StepPipeline:
        return embedded_pipeline(self.config, self.peers, load(saved) if saved else None)

    def mend(self, lost: WorkerLost) -> None:
        """Raises `lost`: the other processes wait for the lost one, so it cannot be replaced."""
        raise lost

    def notes(self) -> Iterable[tuple[str, str]]:
        return ()
