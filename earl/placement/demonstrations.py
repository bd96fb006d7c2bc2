"""`warm_start.data`: episodes of another run, or chats, in place of those of a scripted teacher.

    chats.jsonl          a line for each, {"messages": [{"role": "user", "content": …}, {"role": "assistant", …}, …]}
    step-000010.parquet  what a run kept of a step in its folder `trajectories`; a folder: all of its files

Of a run's episodes the won and drawn ones are learned from, and of these the replies that were legal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.agents.chat import Chat
from earl.agents.parser import Unreadable, parse, parser
from earl.batch import Rows
from earl.errors import EarlError
from earl.rollout.episode import Rules, TokenLog
from earl.rollout.pack import Labels, contexts, pack
from earl.rollout.prompt import Completion
from earl.runs import trajectories
from earl.runs.storage import storage
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory, Turn

FORM = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


@dataclass(frozen=True, slots=True)
class Demonstrations:
    episodes: Sequence[tuple[Trajectory, Labels]]

    def rows(self, numbers: Sequence[int]) -> tuple[Rows, list[int]]:
        """The rows of episodes by any numbers, taken modulo how many there are, and how many rows each has."""
        chosen = [self.episodes[number % len(self.episodes)] for number in numbers]
        rows = pack([trajectory for trajectory, _ in chosen], [labels for _, labels in chosen])
        return rows, [len(contexts(trajectory)) for trajectory, _ in chosen]


def demonstrations(path: Path, chat: Chat, rules: Rules) -> Demonstrations:
    """Those of a file, in a tokenizer's tokens.
    Raises EarlError for a file that is missing, has nothing to learn from, or has a reply that the rules cut off."""
    if not path.exists():
        raise EarlError(f"warm_start.data = {str(path)!r} is not here; name a file that every node has")
    found = []
    with storage(path):
        for place, episode, labels in (_chats if path.suffix == ".jsonl" else _kept)(path, chat, rules):
            _check_room(place, episode, labels, rules)
            found.append((episode, labels))
    if not found:
        raise EarlError(f"warm_start.data = {str(path)!r} has nothing to learn from; name chats, or won episodes")
    return Demonstrations(found)


def _check_room(place: str, episode: Trajectory, labels: Labels, rules: Rules) -> None:
    longest = max(turns[-1][1].end - turns[-1][1].context_start for turns in contexts(episode))
    said = max(map(len, labels.values()), default=0)
    for key, size, limit in (
        ("context.limit", longest, rules.context_limit),
        ("agent.max_turn_tokens", said, rules.max_turn_tokens),
    ):
        if size > limit:
            raise EarlError(f"{place} takes {size} tokens, more than {key} = {limit}; set {key} to at least {size}")


Found = Iterator[tuple[str, Trajectory, Labels]]


def _kept(path: Path, chat: Chat, rules: Rules) -> Found:
    for file in trajectories.files(path) if path.is_dir() else [path]:
        _, groups = trajectories.read(file)
        for number, episode in enumerate(one for group in groups for one in group.trajectories):
            if episode.outcome is not Outcome.LOSS:
                yield f"episode {number} of {file}", episode, _legal(episode, chat, rules)


def _legal(episode: Trajectory, chat: Chat, rules: Rules) -> Labels:
    """The legal replies of an episode. Raises EarlError where they do not read as the actions that they were."""
    opened, labels = rules.thinking and chat.opens_thinking, {}
    for number, turn in enumerate(episode.turns):
        tokens = episode.tokens[turn.action_start : turn.end].tolist()
        if turn.action is None:
            continue
        try:
            reply = parse(chat.decode(tuple(tokens)), thinking=rules.thinking, opened=opened)
            read = parser(rules.parser).action(reply.action)
        except Unreadable:
            read = None
        if read != turn.action:
            raise EarlError(
                f"the action {turn.action!r} of warm_start.data reads as {read!r}: another tokenizer or agent.parser "
                "wrote it; name episodes of the same model and parser"
            )
        labels[number] = tokens
    return labels


def _chats(path: Path, chat: Chat, rules: Rules) -> Found:
    del rules
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            place = f"line {number} of {path}"
            yield place, *_conversation(_messages(line, place), chat)


def _messages(line: str, place: str) -> list[dict[str, str]]:
    """The messages of a line, a system message first. Raises EarlError unless user and assistant take turns."""
    try:
        told: Any = json.loads(line)["messages"]
        messages: list[Any] = [{"role": one["role"], "content": one["content"]} for one in told]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EarlError(f"{place} is no chat ({type(error).__name__}: {error}); write {FORM}") from None
    if any(not isinstance(value, str) for message in messages for value in message.values()):
        raise EarlError(f"{place} has a role or a content that is no text; write {FORM}")
    roles = [message["role"] for message in messages]
    if roles[:1] != ["system"]:
        messages, roles = [{"role": "system", "content": ""}, *messages], ["system", *roles]
    asked, answered = roles[1::2], roles[2::2]
    known = {*asked} <= {"user", "tool"} and {*answered} == {"assistant"}
    if not known or asked[0] != "user" or len(asked) != len(answered):
        told = ", ".join(roles)[:200]
        raise EarlError(f"{place} has the roles {told}; let a user (later also a tool) and the assistant take turns")
    return messages


def _conversation(messages: Sequence[Mapping[str, str]], chat: Chat) -> tuple[Trajectory, Labels]:
    """A chat as an episode whose replies are all learned."""
    said = [message["content"] for message in messages]
    token_log, turns, labels = TokenLog(), [], {}
    for number, (content, reply) in enumerate(zip(said[1::2], said[2::2], strict=True)):
        start, tokens = len(token_log), chat.written(reply)
        role = messages[2 * number + 1]["role"]
        token_log.give(chat.reply(role, content, True) if number else chat.opening(said[0], content))
        begun, many = len(token_log), len(tokens)
        token_log.write(Completion(tokens, [0.0] * many, [0] * many, True), bytes([Author.ACTION]) * many)
        turns.append(Turn(0, start, begun, len(token_log), reply, 0.0, 0.0))
        labels[number] = tokens
    ended = (StopReason.FINISHED, Outcome.WIN, 0)
    return Trajectory(Task("", 0), 0, *token_log.columns(), tuple(turns), *ended), labels
