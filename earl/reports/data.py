"""Reads everything that a report shows from a run's folder. Missing parts are None or empty, never errors."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from earl.documents import parse_json_object
from earl.errors import EarlError, boundary, translated
from earl.runs import checkpoint, signing, trajectories
from earl.runs.folder import RunFolder
from earl.runs.storage import checked, read_below, step_name, storage
from earl.runs.store import RecordedDecision, Store
from earl.runs.summary import StoredRun
from earl.trajectory import ContextTokens, TrainingRecord, Trajectory

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    step: int
    number: int
    trajectory: Trajectory
    experience: TrainingRecord | None = None


def choose(episodes: Sequence[StoredEpisode], limit: int) -> list[StoredEpisode]:
    """Select up to `limit` episodes, one of each kind in turn: kinds differ in step, opponent, seat, outcome and stop
    reason, and come in random order. Identical token sequences of one step count once."""
    kinds: defaultdict[tuple[object, ...], list[StoredEpisode]] = defaultdict(list)
    for episode in {(one.step, one.trajectory.tokens.tobytes()): one for one in reversed(episodes)}.values():
        played, task = episode.trajectory, episode.trajectory.task
        kinds[episode.step, task.opponent, task.seat, played.outcome, played.stop, played.illegal > 0].append(episode)
    shuffled = Random(0).sample(list(kinds.values()), len(kinds))
    in_turn = [episode for row in zip_longest(*shuffled) for episode in row if episode]
    return sorted(in_turn[:limit], key=lambda episode: (-episode.step, episode.number))


MAX_STEPS = 10
MAX_PROBLEMS = 3


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    steps: tuple[int, ...]
    total: int
    """Number of episodes stored for these steps."""
    chosen: tuple[StoredEpisode, ...]


def stored_episodes(folder: RunFolder, limit: int, problems: list[str]) -> StoredEpisodes | None:
    """Up to `limit` varied episodes; None if there are none. Read errors are appended to `problems`."""
    everything: list[StoredEpisode] = []
    failures: list[str] = []
    files = trajectories.files(folder.trajectories)
    # Files at even distances, including the first and the last.
    for place in np.linspace(0, len(files) - 1, min(len(files), MAX_STEPS)):
        try:
            everything += stored_in(files[round(place)])
        except EarlError as error:
            failures.append(str(error))
    problems += failures[:MAX_PROBLEMS]
    if len(failures) > MAX_PROBLEMS:
        problems.append(f"and {len(failures) - MAX_PROBLEMS} more files of trajectories in {folder.trajectories}")
    if not everything:
        return None
    steps = tuple(sorted({episode.step for episode in everything}))
    return StoredEpisodes(steps, len(everything), tuple(choose(everything, limit)))


def stored_in(path: Path) -> list[StoredEpisode]:
    step, groups, known = trajectories.read_whole(path)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    experiences: Sequence[TrainingRecord | None] = known or [None] * len(played)
    return [
        StoredEpisode(step, number, trajectory, experience)
        for number, (trajectory, experience) in enumerate(zip(played, experiences, strict=True))
    ]


DAMAGED = "the checkpoint is damaged; continue the run to get a new one"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    best_step: int | None
    """The step of the best weights; None if the checkpoint does not say."""
    parameters: int | None
    config: dict[str, Any]
    """The model's own config.json; empty if missing."""
    tokenizer: "Tokenizer | None"

    @property
    def shape(self) -> str:
        kind, layers, width = (self.config.get(key) for key in ("model_type", "num_hidden_layers", "hidden_size"))
        parts = [str(kind)] if kind else []
        parts += [f"{layers} layer{'' if layers == 1 else 's'}"] if layers else []
        parts += [f"width {width}"] if width else []
        return ", ".join(parts)


def model_facts(checkpoints: Path) -> ModelFacts | None:
    """Describe the latest checkpoint without loading weights; None if there is none. Raises EarlError if unreadable."""
    steps = checkpoint.all_steps(checkpoints)
    if not steps:
        return None
    path = checkpoints / step_name(steps[-1])
    with storage(path):
        state = _json(path / checkpoint.STATE).get("state")
        best = state.get("best_step") if isinstance(state, dict) else None
        return ModelFacts(
            best_step=best if isinstance(best, int) else None,
            parameters=_parameters(path),
            config=_json(path / "config.json"),
            tokenizer=_tokenizer(path / "tokenizer.json"),
        )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    data = read_below(_run_of(path), path)
    try:
        return parse_json_object(data)
    except ValueError as error:
        raise EarlError(f"{path} is {error}: {DAMAGED}") from error


def _run_of(path: Path) -> Path:
    return path.parent.parent.parent


def _parameters(folder: Path) -> int | None:
    """Count the model's parameters from the headers of its files."""
    files = sorted(folder.glob("model*.safetensors"))
    if pipes := [path for path in files if not path.is_file()]:  # reading a pipe would block
        raise EarlError(f"{pipes[0]} is no regular file: {DAMAGED}")
    count = 0
    try:
        for path in files:
            with safe_open(checked(_run_of(path), path), framework="numpy") as tensors:
                names = tensors.keys()  # `tensors` is no dictionary
                count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except SafetensorError as error:
        raise EarlError(f"{folder} has unreadable weights ({error}); continue the run to get a new one") from error
    return count or None


def _tokenizer(path: Path) -> "Tokenizer | None":
    if not path.is_file():
        return None
    checked(_run_of(path), path)
    from tokenizers import Tokenizer  # reports without episodes do not need it

    cure = "continue the run to get a new checkpoint"
    with translated(lambda fault: f"tokenizer {path} cannot be read ({fault}); {cure}"):  # it raises bare Exceptions
        return Tokenizer.from_file(str(path))


MAX_EPISODES = 200


class ReportedRun(StoredRun):
    """A run as the report sees it."""

    def __init__(self, folder: RunFolder, max_episodes: int = MAX_EPISODES) -> None:
        super().__init__(folder)
        self.recipe = self.attempt(lambda: _recipe(folder), "")
        self.contexts: list[ContextTokens] = self.from_store(Store.contexts, [])
        """Tokens by step, turn and author; empty for runs of older versions."""
        self.decisions: list[RecordedDecision] = self.from_store(Store.decisions, [])
        """The layout of each stage by step; empty if layouts were fixed."""
        self.model = self.attempt(lambda: model_facts(folder.checkpoints), None)
        self.episodes = stored_episodes(folder, max_episodes, self.problems)
        self.signed = _signed(folder, self.problems)
        """The signer, as a text; for an unfinished run that of its last checkpoint."""


def _signed(folder: RunFolder, problems: list[str]) -> str:
    """The signers of the run and of its last checkpoint. A bad signature is also appended to `problems`."""
    try:
        whole, last = signing.signer(folder), checkpoint.latest(folder.checkpoints)
        signed = checkpoint.signer(last) if last else signing.UNSIGNED
        if signing.UNSIGNED in (signed, whole) and signed != whole:
            return f"the run {whole.said}, its checkpoint {last and last.name} {signed.said}"
        return whole.said
    except EarlError as error:
        problems.append(str(error))
        return str(error)


def _recipe(folder: RunFolder) -> str:
    with storage(folder.config):
        return read_below(folder.path, folder.config).decode(errors="replace")


LONGEST = 8
"""A character has at most 4 bytes; a longer run without a complete character is not text."""


class Decoder:
    """Decodes single tokens. Without a tokenizer, tokens are shown as numbers."""

    def __init__(self, tokenizer: "Tokenizer | None") -> None:
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size() if tokenizer else 0
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        self._control = frozenset(token for token, content in added.items() if content.special)

    def is_control(self, token: int) -> bool:
        return token in self._control

    def whole(self, ids: Sequence[int]) -> str:
        if self._tokenizer and all(0 <= token < self._size for token in ids):
            return self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return "".join(text for text, _, _ in self.pieces(ids))

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Text, first and past-last index of each token, or of tokens that make one character, such as ("é", 1, 3)."""
        from tokenizers.decoders import DecodeStream

        stream, start = DecodeStream(skip_special_tokens=False), 0
        for end, token in enumerate(ids, 1):
            known, text = 0 <= token < self._size, None
            if self._tokenizer and known:
                with boundary():  # it raises bare Exceptions
                    text = stream.step(self._tokenizer, token)
            if text is None and known and end < min(len(ids), start + LONGEST):
                continue  # the first bytes of a character
            if text is None:
                stream = DecodeStream(skip_special_tokens=False)
            yield text or "".join(f"⟨token {own}⟩" for own in ids[start:end]), start, end
            start = end
