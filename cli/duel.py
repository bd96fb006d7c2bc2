"""`earl play` against a trained model: a person plays a game with it, or watches it solve a task."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from earl.agents.parser import Reply, Unreadable, parse, parser
from earl.agents.scripted import perfect
from earl.agents.scripted import registry as scripted
from earl.agents.scripted.base import ScriptedPlayer
from earl.cli.text import CLOSED, clean, keyboard
from earl.envs import registry
from earl.envs.adapters.base import Adapted
from earl.envs.base import ForeignEnv, Info, TextEnv
from earl.envs.games.base import Game
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError, Interrupted
from earl.league import League
from earl.rollout.drivers import Greedy, play
from earl.rollout.episode import Episode
from earl.rollout.tasks import EVALUATION
from earl.seeds import derive
from earl.trajectory import Author, Completion, Outcome, Prompt, StopReason, Task, Trajectory

if TYPE_CHECKING:
    from earl.placement.embedded import EvalPolicy


def typed() -> str:
    return input("your move: ")


def ask(
    rule: Callable[[str], str | None], hint: Callable[[], str] | None = None, read: Callable[[], str] = typed
) -> str:
    """Read an action until it breaks no rule. Raises Interrupted at the end of input, TakenBack where that is asked."""
    while True:
        try:
            text = read().strip()
        except EOFError:
            raise Interrupted from None
        if hint and text == "hint":
            click.echo(clean(hint()))
            continue
        if hint and text == "back":
            raise TakenBack
        broken = rule(text)
        if broken is None:
            return text
        click.echo(clean(broken))


def board(game: Game, state: Any, seat: int) -> str:
    """The board with blanks between its cells, and the moves or the letters and numbers of which they consist. Where
    there is no board, what a seat is told."""
    if not all(game.size):
        return game.seen(state, seat)
    rows = game.render(state).splitlines()
    if len(game.actions) == game.size[1]:
        rows.append("".join(game.actions))
    elif game.actions[0] == "a1":
        rows = [*(f"{row}{number}" for number, row in enumerate(rows, 1)), "abcdefghi"[: game.size[1]]]
    return "\n".join(" ".join(row) for row in rows)


ARROWS = {"\x1b[A": (-1, 0), "\x1b[B": (1, 0), "\x1b[C": (0, 1), "\x1b[D": (0, -1)}
"""The keys that a terminal sends, as rows and columns."""
ERASE = ("\x7f", "\b")
KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)


def pointed(game: Game, state: Any, seat: int) -> str:
    """What a person points at with the arrow keys, on the board again, or types; Enter ends it. Raises EOFError."""
    lines = board(game, state, seat).splitlines()
    places = {game.actions[move]: _place(game, move, len(lines)) for move in game.legal(state)}
    at, text = next(iter(places)), ""
    click.echo("\n" * len(lines))
    with keyboard() as wait:
        while True:
            _point(lines, places[at], text or at)
            for key in KEY.findall(wait(None)):  # several, where they are pressed fast
                if key == CLOSED:
                    raise EOFError
                if key in ("\r", "\n"):
                    click.echo()
                    return text or at
                if key in ARROWS:
                    at, text = _beside(places, at, ARROWS[key]), ""
                else:
                    text = text[:-1] if key in ERASE else text + key * key.isprintable()


def _place(game: Game, move: int, below: int) -> tuple[int, int]:
    """Line and column of a move on a drawn board: its cell, or the number of its column; to pass is below the board."""
    rows, columns = game.size
    if len(game.actions) == columns:
        return rows, move
    return divmod(move, columns) if move < rows * columns else (below, 0)


def _point(lines: Sequence[str], place: tuple[int, int], text: str) -> None:
    """Draw the board over itself, with a place of it in reverse."""
    row, at = place[0], 2 * place[1]
    drawn = [*lines]
    if row < len(lines):
        drawn[row] = lines[row][:at] + click.style(lines[row][at], reverse=True) + lines[row][at + 1 :]
    click.echo(f"\x1b[{len(lines)}F" + "\n".join([*drawn, f"\x1b[2Kyour move: {text}"]), nl=False)


def _beside(places: dict[str, tuple[int, int]], at: str, way: tuple[int, int]) -> str:
    """The nearest legal move that way, straight on before aside; the same one where there is none."""
    (row, column), found = places[at], {}
    for action, place in places.items():
        on = (place[0] - row) * way[0] + (place[1] - column) * way[1]
        aside = abs((place[0] - row) * way[1]) + abs((place[1] - column) * way[0])
        if on > 0:
            found[action] = (on + 2 * aside, aside)
    return min(found, key=lambda action: found[action], default=at)


class TakenBack(Interrupted):
    """The person wants the last move undone."""


def hint(game: Game, state: Any) -> str:
    """What the best player that knows the game would do."""
    for name in ("perfect", "alphabeta:4"):
        with suppress(EarlError):
            player = scripted.player(name, game.name)
            getattr(player, "check", lambda _: None)(game)
            likely = [(game.actions[move], share) for move, share in player.distribution(game, state)]
            return f"{name} plays {', '.join(f'{move} ({share:.0%})' for move, share in likely)}"
    return f"nobody knows better in {game.name}"


class Person:
    """The opponent of an environment whose moves are typed. `other` names the person's own opponent; `before`: the
    moves of a game whose last one was taken back, which is played again up to there."""

    def __init__(self, other: str, before: Sequence[int] = ()) -> None:
        self._other = other
        self._left: Any = None
        self._seat = 0
        self._again, self.made = [*before], list[int]()

    def move(self, game: Game, state: Any, rng: Random) -> int:
        self._seat = state.player
        if self._again:
            move = self._again.pop(0)
        else:
            self.show(game, state)
            click.echo(clean(f"You are {game.marks[state.player]} against {self._other}."))
            terminal = sys.stdin.isatty() and sys.stdout.isatty() and all(game.size)
            read = partial(pointed, game, state, self._seat) if terminal else typed
            move = game.actions.index(ask(partial(_rule, game, state), partial(hint, game, state), read))
        self.made.append(move)
        self._left = game.play(state, move)
        return move

    def act(self, env: Adapted, rng: Random) -> str:
        click.echo(clean(env.observation()))
        return ask(env.rule)

    def show(self, game: Game, state: Any) -> None:
        before = self._left or game.deals[0][0]
        # What is seen of cards tells the moves.
        for move in (move for move in game.legal(before) if game.play(before, move) == state and not game.dealt):
            click.echo(clean(f"{self._other} plays {game.actions[move]}"))
        click.echo(board(game, state, self._seat))


def solve(env: TextEnv, seed: int) -> None:
    """Let a person act in a task."""
    observation, _ = env.reset(seed=seed)
    click.echo(clean(f"{env.instructions}\n\n{observation}"))
    terminated = truncated = False
    while not (terminated or truncated):
        observation, _, terminated, truncated, info = env.step(ask(env.rule))
        click.echo(clean(observation))
    if terminated and isinstance(env, ForeignEnv):  # whose last words may not tell
        click.echo(clean(info["outcome"]))
    if truncated:
        click.echo(f"no more turns: {env.max_turns} were allowed")


def _rule(game: Game, state: Any, text: str) -> str | None:
    legal = game.legal_actions(state)
    return None if text in legal else f"illegal: choose one of {' '.join(legal)}"


RESULTS = {Outcome.WIN: "you lose", Outcome.DRAW: "draw", Outcome.LOSS: "you win"}
"""The outcome of the environment's agent from the person's view."""
SHOWN = (Author.ENVIRONMENT, Author.TOOL)


def play_scripted(name: str, game: str, seat: int, seed: int) -> None:
    """Play against a scripted player at `seat`."""
    player = scripted.player(name, game)
    if not isinstance(player, ScriptedPlayer):  # a game without a board of earl: the person has the environment's seat
        return solve(registry.make(game, seat=1 - seat, opponent=player), seed)
    return _with_take_back(name, lambda person: _play_scripted(player, person, game, seat, seed))


def _with_take_back(name: str, game: Callable[[Person], None]) -> None:
    """Play a game, from its beginning again without the last move of the person where that is taken back: the other
    player then moves as before."""
    person = Person(name)
    while True:
        try:
            return game(person)
        except TakenBack:
            person = Person(name, person.made[:-1])


def _play_scripted(player: ScriptedPlayer, person: Person, game: str, seat: int, seed: int) -> None:
    env = registry.make(game, seat=seat, opponent=person)
    assert isinstance(env, BoardGameEnv)
    player.check(env.game)
    env.reset(seed=seed)
    rng, terminated, info = Random(f"opponent {seed}"), False, Info()
    while not terminated:
        _, _, terminated, _, info = env.step(player.act(env, rng))
    person.show(env.game, env.state)
    click.echo(RESULTS[Outcome(info["outcome"])])


def play_model(judge: "EvalPolicy", name: str, seat: int, seed: int) -> None:
    """Play against a model at `seat`. The person is the environment's opponent: the model plays as in evaluations."""
    _with_take_back(name, lambda person: _play_model(judge, person, name, seat, seed))


def _play_model(judge: "EvalPolicy", person: Person, name: str, seat: int, seed: int) -> None:
    task = Task(judge.world.env, derive(EVALUATION, seed), seat, "person")
    episode, played = play_episode(judge, task, person, name)
    if isinstance(episode.env, BoardGameEnv):
        person.show(episode.env.game, episode.env.state)
    else:
        click.echo(clean(episode.observation))
    if played.stop is not StopReason.FINISHED:
        last = played.turns[-1]
        reply = _text(judge, played.tokens[last.action_start : last.end])
        click.echo(clean(f"{name} replied {reply!r}, which is no legal move in time ({played.stop})"))
    click.echo(RESULTS[played.outcome])


def watch(judge: "EvalPolicy", seed: int) -> None:
    _, played = play_episode(judge, Task(judge.world.env, derive(EVALUATION, seed, "", 0, 0)))
    for turn in played.turns:
        asked = slice(turn.prompt_start, turn.action_start)
        shown = played.tokens[asked][np.isin(played.authors[asked], SHOWN)]
        click.echo(clean(f"task   {_text(judge, shown)}"))
        click.echo(clean(f"model  {_text(judge, played.tokens[turn.action_start : turn.end])}"))
    solved = played.outcome is Outcome.WIN
    click.echo("solved" if solved else f"not solved ({played.stop})")


def _text(judge: "EvalPolicy", tokens: NDArray[np.int32]) -> str:
    return judge.world.chat.decode(tuple(tokens.tolist()))


def play_episode(
    judge: "EvalPolicy", task: Task, opponent: object = None, name: str = ""
) -> tuple[Episode, Trajectory]:
    """Play one episode, and tell what a model of that name thinks. Raises EarlError if the environment fails."""
    episode = judge.world.episode(task, task.seed, 0, opponent)
    sampler = judge.sampler
    [played] = play([episode], ThinksAloud(name, sampler, episode) if name and isinstance(sampler, Greedy) else sampler)
    if played.error:
        raise EarlError(f"environment {task.env!r} fails: {played.error}; check it with `earl envs check`")
    return episode, played


SAMPLES = 32
VALUES = {1: "wins", 0: "draws", -1: "loses"}


class ThinksAloud:
    """Shows what a model wrote before its move, and how likely it makes each move, by the replies that it gives when
    it samples, beside what the move comes to where a solver knows."""

    def __init__(self, name: str, sampler: Greedy, episode: Episode) -> None:
        self._name, self._sampler, self._episode = name, sampler, episode

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        completions = self._sampler.generate(prompts)
        for prompt, completion in zip(prompts, completions, strict=True):
            if thought := self._read(completion).thinking:
                click.echo(clean(f"{self._name} thinks: {thought}"))
            if board := self._episode.board:
                self._show(board, [replace(prompt, seed=derive("odds", n), session=~n) for n in range(SAMPLES)])
        return completions

    def release(self, sessions: Sequence[int]) -> None:
        self._sampler.release(sessions)

    def _show(self, board: BoardGameEnv, prompts: Sequence[Prompt]) -> None:
        drawn = Counter(self._action(reply) for reply in self._sampler.sampler.generate(prompts))
        self._sampler.sampler.release([prompt.session for prompt in prompts])
        game, ends = board.game, dict[int, perfect.Solution]()
        if game.name in perfect.SOLVERS:
            ends = perfect.solved(game, board.state)
        values = {game.actions[move]: f" {VALUES[end.value]}" for move, end in ends.items()}
        names = zip(board.legal, board.shown_actions, strict=True)
        shares = {action: drawn[shown] / SAMPLES for action, shown in names}
        odds = [f"{action} {share:.0%}{values.get(action, '')}" for action, share in shares.items()]
        other = 1 - sum(shares.values())
        click.echo(clean(f"{self._name} weighs: {', '.join(odds)}" + f", no legal move {other:.0%}" * (other > 0)))

    def _read(self, completion: Completion) -> Reply:
        chat, thinking = self._episode.chat, self._episode.rules.thinking
        text = chat.decode(tuple(completion.tokens))
        return parse(text, thinking=thinking, opened=thinking and chat.opens_thinking)

    def _action(self, completion: Completion) -> str:
        try:
            return parser(self._episode.rules.parser).action(self._read(completion).action)
        except Unreadable:
            return ""


class ShownBoard(BoardGameEnv):
    """A board that shows every move of the two that meet on it."""

    def __init__(self, board: BoardGameEnv, names: Sequence[str]) -> None:
        super().__init__(board.game)
        self._names = names

    def move(self, action: str) -> None:
        seat = self.player
        super().move(action)
        click.echo(clean(f"{self._names[seat]} plays {action}"))
        click.echo(board(self.game, self.state, seat))


def watch_game(league: League, pair: tuple[str, str], seed: int) -> None:
    """Let two players of a league meet once."""
    result = league.show(pair, seed, lambda board: ShownBoard(board, pair))
    how = " by forfeit" if result.forfeit else ""
    click.echo(clean("draw" if result.points == 0.5 else f"{pair[0 if result.points else 1]} wins{how}"))
