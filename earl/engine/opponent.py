"""A model in the other seat: the opponent "model:FOLDER", which may also be the hub id of one that is here already.

In each of its turns it is told what the player to move sees, in one conversation for each episode. A reply that is no
legal action is replaced by a random one, and so the games go on.
"""

from functools import cached_property
from random import Random
from threading import Lock
from weakref import WeakKeyDictionary

from earl.agents.chat import Chat
from earl.agents.parser import parse, parser
from earl.engine.local import LocalSampler
from earl.engine.model import load, read_tokenizer, shape_of
from earl.engine.source import fetching, folder_of
from earl.envs.adapters.base import Adapted
from earl.envs.games.base import Game, State
from earl.trajectory import Prompt

REPLY_TOKENS = 64
ACTION = parser("last_line")


class ModelOpponent:
    """Samples at temperature 1 on this process's processors. The weights are loaded with the first move."""

    def __init__(self, path: str) -> None:
        with fetching(False):  # a recipe that names it may be a stranger's
            self._folder, self._lock = folder_of(path), Lock()
        self._chat = Chat(read_tokenizer(path, self._folder))
        # An episode has one generator for its opponent.
        self._conversations: WeakKeyDictionary[Random, list[int]] = WeakKeyDictionary()

    def move(self, game: Game, state: State, rng: Random) -> int:
        action = self._reply(game.instructions, game.seen(state, state.player), rng)
        legal, shown = game.legal(state), game.shown_actions(state)
        return legal[shown.index(action)] if action in shown else rng.choice(legal)

    def act(self, env: Adapted, rng: Random) -> str:
        action = self._reply(env.instructions, env.observation(), rng)
        return action if env.rule(action) is None else env.random_action(rng)

    @cached_property
    def _sampler(self) -> LocalSampler:
        policy = load(self._folder)
        self._positions = shape_of(policy.model).max_positions
        return LocalSampler(policy)

    def _reply(self, instructions: str, observation: str, rng: Random) -> str:
        with self._lock:
            sampler, past = self._sampler, self._conversations.get(rng)
            if past is not None:
                past = [*past, *self._chat.reply("user", observation, past[-1] == self._chat.end).tokens]
            if past is None or len(past) + REPLY_TOKENS > self._positions:
                past = [*self._chat.opening(instructions, observation).tokens]
            [said] = sampler.generate([Prompt(0, past, rng.getrandbits(62), REPLY_TOKENS)])
            sampler.release([0])
        self._conversations[rng] = [*past, *said.tokens]
        text = self._chat.decode(tuple(said.tokens))
        return ACTION.action(parse(text, thinking=True, opened=self._chat.opens_thinking).action)
