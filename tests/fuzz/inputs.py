"""Small inputs of many kinds, of which one takes about a millisecond; a kind is a function in `KINDS`.

Each is given its own random numbers and a place with a run in it, and succeeds, or raises an EarlError.
"""

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import click

from earl.cli.main import COMMANDS
from earl.cli.main import run as command_line
from earl.errors import EarlError
from tests.fuzz import mutations
from tests.fuzz.guard import STEERING, Action, Sandbox
from tests.fuzz.mutations import HUGE, TEXTS, in_bytes, value


@dataclass(frozen=True)
class Place:
    """Where a small input lies."""

    base: Path
    """A whole run, to be read only."""
    work: Path


def text(random: Random) -> str:
    """Something that a model, a user or a file may say."""
    how = random.randrange(6)
    if how == 0:
        return random.choice(TEXTS)
    if how == 1:
        return "".join(
            chr(random.choice([random.randrange(128), random.randrange(0xD800)])) for _ in range(random.randrange(30))
        )
    if how == 2:
        return f"<think>{random.choice(TEXTS)}{random.choice(['</think>', ''])}{random.randrange(10)}"
    if how == 3:
        left, right = random.choice(["2", "37", HUGE, "-1", "٣", "1e9"]), random.choice(["3", "48", HUGE])
        call = f'{random.choice(["calc", "sum"])}("{left}{random.choice("+-*/ ^%")}{right}")'
        return f"{random.choice([call, *TEXTS])}{random.choice(['', 'x'])}"
    return str(random.choice([*range(10), -1, "", " 5", "5\n", "٥", "５", HUGE]))


def recipe(random: Random, place: Place) -> None:
    """A recipe file, read, checked, and written again as it was understood."""
    from earl.recipe import build, dump, load_toml

    source = random.choice([*_recipes(), (place.base / "config.toml").read_text()])
    made = mutations.toml_text(random, source)
    file = place.work / "recipe.toml"
    file.write_bytes(made.encode(errors="surrogateescape") if isinstance(made, str) else made)
    config = build(load_toml(file))
    again = place.work / "again.toml"
    again.write_text(dump(config), encoding="utf-8")
    assert build(load_toml(again)) == config, "a recipe that was written is read as another"


@cache
def _recipes() -> list[str]:
    from earl.cli.recipes import FOLDER

    return [path.read_text() for path in sorted(FOLDER.glob("*.toml"))]


def assignment(random: Random, place: Place) -> None:
    """What --set says."""
    import tomllib

    from earl.config import Config
    from earl.recipe import build, override

    tree = tomllib.loads(random.choice(_recipes()))
    section = random.choice([*Config.model_fields])
    keys = [*Config.model_fields[section].annotation.model_fields]  # type: ignore[union-attr]
    key = random.choice([*keys, *keys, *TEXTS])
    path = random.choice(
        [f"{section}.{key}"] * 6 + [f"{section}.{key}.a.b", key, f'{section}."{key}"', "." * 50, f"{'a.' * 3000}b"]
    )
    said = random.choice(
        [text(random), repr(value(random)), json.dumps(value(random)), "[" * 3000, HUGE, f'"{text(random)}"']
    )
    build(override(tree, [f"{path}={said}"] * random.choice([1, 1, 2])))


def command(random: Random, place: Place) -> int:
    """A command line, of commands that neither train nor measure for long."""
    name = random.choice(
        ["runs", "report", "watch", "audit", "replay", "export", "plan", "envs", "train", "eval", "play", *TEXTS[:5]]
    )
    argv = [name]
    if name in COMMANDS:
        params = import_module(f"earl.cli.{name}").command.params
        for param in random.sample(params, min(len(params), random.randrange(4))):
            argv += _given(random, param, place)
    argv += ["--dry-run"] * (name == "train")
    return command_line([word.replace("\0", "") for word in argv])


def _given(random: Random, param: Any, place: Place) -> list[str]:
    said = random.choice([
        text(random), str(random.choice(mutations.NUMBERS)), "tictactoe", "arithmetic", "none", str(place.base), "best",
        "Qwen2.5-7B", "16x8xH100", "1024,2048", "run.steps=5", str(place.work), "0x0x", "99999999x8xH100", "8xH100",
    ])  # fmt: skip
    if param.param_type_name == "argument":
        return [said]
    flag = random.choice(param.opts)
    return [flag] if getattr(param, "is_flag", False) else [flag, said]


def reply(random: Random, place: Place) -> None:
    """What a model says, through the parser and an environment."""
    from earl.agents.parser import parse, unclosed
    from earl.envs import registry

    name = random.choice(["tictactoe", "connect4", "arithmetic"])
    env = registry.make(name, **({} if name == "arithmetic" else {"seat": random.randrange(2)}))
    seen, _ = env.reset(seed=random.randrange(1 << 31))
    for _ in range(random.randrange(1, 12)):
        said = text(random)
        unclosed(said)
        action = parse(said, thinking=random.random() < 0.5).action
        env.draw(seen, action)
        broken = env.rule(action)
        seen, earned, ended, cut, _ = env.step(action)
        assert isinstance(seen, str) and len(seen) < 10_000 and earned == earned
        assert broken is None or (not ended and broken == seen), "what breaks the rule ends nothing, and is told"
        if ended or cut:
            return
    env.draw(text(random), text(random))


def template(random: Random, place: Place) -> None:
    """A chat template of somebody's model."""
    from earl.agents.chat import Chat
    from earl.engine.model import character_tokenizer

    tokenizer = character_tokenizer()
    tokenizer.chat_template = mutations.template(random)
    chat = Chat(tokenizer)
    for _ in range(2):
        said = random.choice(["X 123\n456\n789", "37+48", text(random)])
        if random.random() < 0.5:
            piece = chat.opening(random.choice(["", "Play."]), said)
        else:
            piece = chat.reply(random.choice(["user", "tool"]), said, random.random() < 0.5)
        assert len(piece.tokens) == len(piece.authors), "every token has an author"
        chat.decode(piece.tokens)


def served(random: Random, place: Place) -> None:
    """What a server answers."""
    from earl.engine import served
    from earl.engine.model import character_tokenizer
    from earl.engine.served import ServedSampler
    from earl.trajectory import Prompt

    served.FIRST_PAUSE_SECONDS = 0.0
    exact, most = random.random() < 0.5, random.choice([1, 8])
    _Server.slowly = random.random() < 0.003
    _Server.answers = [_answer(random, exact, most) for _ in range(random.choice([1, 1, 2]))]
    asked = Prompt(session=0, tokens=[2, 40, 41, 5, 3], seed=random.randrange(1 << 40), max_tokens=most)
    connected = served.Client(_server(), timeout_seconds=1.0)
    sampler = ServedSampler(connected, random.choice(["m", "m", None]), character_tokenizer() if exact else None)
    [said] = sampler.generate([asked])
    if getattr(said, "error", None):
        return  # the fault of one episode, in words
    lengths = {len(said.tokens), len(said.logprobs), len(said.versions)}
    assert len(lengths) == 1 and 1 <= lengths.pop() <= most, "as many tokens as were asked for, each with its log-prob"
    assert all(type(token) is int and 0 <= token < 106 for token in said.tokens), "ids of the tokenizer"
    assert all(type(own) is float and own <= 1e-3 for own in said.logprobs), "log-probs"


def _answer(random: Random, exact: bool, most: int) -> bytes:
    """A reply over HTTP, mostly well formed but for one thing."""
    if exact:
        ids = [[5], [40, 5], [], [40] * most, [40] * 5000, [-1], [10**9], [1.5], ["a"], [None], [True], HUGE, None]
        logs = [None, {}, *({"token_logprobs": own} for own in ([-0.1] * 9, [-0.1], ["x"], [None], [5.0], {})), [], 5]
        choice: Any = {"token_ids": random.choice(ids), "logprobs": random.choice(logs)}
    else:
        said = random.choice([text(random), None, 5, ["a"], {"a": 1}, "y" * 300_000])
        choice = {"message": {"content": said}, "finish_reason": random.choice(["stop", "length", None, 5, []])}
    whole: Any = {"choices": random.choice([[choice]] * 8 + [[], [choice, choice], None, {}, "x", choice, [None], [5]])}
    whole |= {"data": random.choice([[{"id": "m"}], [], [{}], None, [{"id": 5}], "x"])}
    if random.random() < 0.25:
        whole = mutations.in_tree(random, whole)
    body = json.dumps(whole).encode()
    if random.random() < 0.15:
        body = random.choice([in_bytes(random, body), b"[" * 50_000, b"\xff\xfe", b"", b"9" * 6000, b"[[[NaN"])
    odd = ["500 no", "429 wait", "401 key", "302 there", "204 none", "100 go on", "999 x", "0", "abc"]
    status = random.choice(["200 OK"] * 12 + odd)
    length = random.choice([str(len(body))] * 12 + ["0", "-1", "5", str(1 << 40), "x", HUGE])
    headers = [
        "Location: http://203.0.113.9:81/v1\r\n", "Location: file:///etc/passwd\r\n", "Location: /v1/models\r\n",
        "Transfer-Encoding: chunked\r\n", "Content-Encoding: gzip\r\n", f"X: {'y' * 70_000}\r\n", "X: y\r\n" * 200,
    ]  # fmt: skip
    more = random.choice(headers[:3] if status.startswith("302") else [*headers, *[""] * 20])
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n".encode() + body


class _Server:
    answers: Sequence[bytes] = ()
    slowly = False
    """A byte in every fifth of a second."""


@cache
def _server() -> str:
    """The address of a server in this process, which gives each connection the next answer, the last one for ever."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with suppress(OSError), connection:
                connection.settimeout(2.0)
                connection.recv(1 << 16)
                answer, *others = _Server.answers
                _Server.answers = others or [answer]
                for place in range(100 * _Server.slowly):
                    connection.sendall(answer[place : place + 1])
                    time.sleep(0.2)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def parquet(random: Random, place: Place) -> None:
    """A file of trajectories."""
    from earl.runs import trajectories

    file = Path(shutil.copy(random.choice(_stored(place)), place.work))
    if random.random() < 0.7:
        mutations.in_parquet(random, file)
    else:
        file.write_bytes(in_bytes(random, file.read_bytes()))
    trajectories.read(file)


def _stored(place: Place) -> list[Path]:
    return sorted((place.base / "trajectories").iterdir())


def database(random: Random, place: Place) -> None:
    """A run's numbers."""
    from earl.runs import store
    from earl.runs.store import Store

    file = Path(shutil.copy(place.base / "run.db", place.work))
    if random.random() < 0.7:
        mutations.in_database(random, file)
    else:
        file.write_bytes(in_bytes(random, file.read_bytes()))
    for leftover in ("-wal", "-shm", "-journal"):
        place.work.joinpath(f"run.db{leftover}").unlink(missing_ok=True)
    if random.random() < 0.1:
        place.work.joinpath(f"run.db{random.choice(['-wal', '-journal'])}").write_bytes(random.randbytes(600))
    for read in (Store.contexts, Store.decisions, Store.matches):
        with suppress(EarlError), Store(file, read_only=True) as opened:
            read(opened)
    store.read_numbers(file)


def checkpoint(random: Random, place: Place) -> None:
    """A checkpoint's plan, mostly vouched for."""
    from earl.reports.data import model_facts
    from earl.runs.folder import RunFolder
    from earl.runs.summary import chosen_checkpoint, context_limit

    run = place.work / "run"
    folder = run / "checkpoints" / "step-000003"
    if not folder.is_dir():
        shutil.copytree(
            place.base / "checkpoints" / "step-000003",
            folder,
            ignore=shutil.ignore_patterns("learner", "tokenizer.json"),
        )
    name = random.choice(["state.json", "state.json", "config.json", "tokenizer_config.json", "model.safetensors"])
    original = (place.base / "checkpoints" / "step-000003" / name).read_bytes()
    changed = (
        mutations.in_safetensors(random, original)
        if name.endswith("s")
        else mutations.json_text(random, original.decode())
    )
    (folder / name).write_bytes(changed if isinstance(changed, bytes) else changed.encode(errors="surrogatepass"))
    try:
        if random.random() < 0.8:
            mutations.resealed(folder)
        with suppress(EarlError):
            model_facts(run / "checkpoints")
        context_limit(chosen_checkpoint(RunFolder(run), random.choice(["best", "last", "3"])))
    finally:
        (folder / name).write_bytes(original)


def shown(random: Random, place: Place) -> None:
    """Text that is shown to somebody."""
    from earl.cli.panels import safe
    from earl.cli.text import clean, one_line
    from earl.reports.html import shown, shown_line, visible

    said = "".join(text(random) for _ in range(random.randrange(1, 5)))
    for show in (clean, one_line, visible, shown, shown_line, safe):
        made = show(said)
        assert not STEERING.search(made.replace("\r", "")), f"{show.__name__} lets a control character through"
        assert show is visible or show is shown or show is clean or "\n" not in made


def question(random: Random, place: Place) -> None:
    """What a plan is asked for."""
    from earl.parallel.hardware import of_gpus, own_devices
    from earl.parallel.memory import catalogue
    from earl.planner import question

    shape = random.choice([*catalogue().values()]).shape
    number = random.choice(["8", "1", "2", "0", "-1", "9" * 12, "1e3", "٣", " 4", ""])
    said = random.choice(
        [text(random), number, f"{number},{number}", ",".join(map(str, range(1, random.choice([5, 50, 9000]))))]
    )
    gpus = random.choice(
        [text(random), f"{number}x8xH100", f"{number}xA100-80GB", f"1x{number}x{random.choice(TEXTS)}", "8xH100"]
    )
    with suppress(EarlError):
        question.contexts(question.Wish(contexts=said), shape, "m")
    with suppress(EarlError):
        question.responses(said)
    with suppress(EarlError):
        own_devices(
            in_bytes(
                random,
                b"kind,memory_gib,bf16_tflops,memory_gb_per_second,link_gb_per_second,fewest_bits\nX,1,2,3,4,8\n",
            ).decode(errors="replace"),
            "f.csv",
        )
    question.tps(said, shape, of_gpus(gpus), "m")


def name(random: Random, place: Place) -> None:
    """Names of runs, opponents, history policies, environments and their options."""
    from earl.agents.scripted import registry as scripted
    from earl.envs import registry
    from earl.recipe import build
    from earl.rollout.episode import HistoryPolicy
    from earl.runs.folder import free, fresh_name

    said = text(random)
    kind = random.randrange(5)
    if kind == 0:
        folder = free(place.work, said)
        assert folder.path.parent == place.work and not STEERING.search(folder.name)
    elif kind == 1:
        fresh_name(place.work, said)
    elif kind == 2:
        parts = [
            random.choice(["random", "perfect", "alphabeta", "expert", said]),
            random.choice(["", ":3", ":99", f":{said}"]),
        ]
        scripted.player(
            "".join(parts) + random.choice(["", "@0.5", "@nan", "@1e999", f"@{said}"]),
            random.choice(["tictactoe", "connect4", "arithmetic", said]),
        )
    elif kind == 3:
        policy = random.choice([said, "full", f"last_turns:{said}", "last_turns:²", "summary:1\n", f"summary:{HUGE}"])
        HistoryPolicy.of(build({"env": {"name": "x"}, "agent": {"history": policy}}).agent.history)
    else:
        option = random.choice(["num_operations", "max_operand", "seat", "min_operations", "max_value", said])
        env = registry.make(
            random.choice(["arithmetic", "tictactoe", said]), **{option: random.choice(mutations.NUMBERS)}
        )
        env.reset(seed=0)


def cluster(random: Random, place: Place) -> None:
    """What is remembered of a rehearsed cluster."""
    from earl.rehearsal import plan

    made = plan.RehearsedCluster("earl", 2, "500mbit", 2, 100, 1, 6379, "/tmp/x")
    file = plan.folder("earl") / "cluster.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    changed = mutations.json_text(
        random, json.dumps({field: getattr(made, field) for field in made.__dataclass_fields__})
    )
    file.write_bytes(changed if isinstance(changed, bytes) else changed.encode(errors="surrogatepass"))
    plan.attach(random.choice(["auto", "10.201.1.1:6379", text(random).replace("\0", "")]))


def profile(random: Random, place: Place) -> None:
    """What was measured of layouts."""
    from earl.parallel.layout import Choice, Layout
    from earl.parallel.profile import Point, Timing
    from earl.profiling import kept

    key = {"model": "m", "cpus": 2}
    choice = Choice("update", Layout(2))
    timing = Timing(Point(choice, 512, 4), 1.0, 0.1, 3, "2026-01-01T00:00:00+00:00")
    file = kept.path_of(key)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = kept.Profile(key, {timing.point: timing}, {choice: 2.0}).as_object()
    changed = mutations.json_text(random, json.dumps(whole))
    file.write_bytes(changed if isinstance(changed, bytes) else changed.encode(errors="surrogatepass"))
    read = kept.read(key)
    assert isinstance(read.measured_at, str)
    json.dumps(read.as_object())


KINDS: dict[str, Callable[[Random, Place], int | None]] = {
    function.__name__: function
    for function in (
        recipe, assignment, command, reply, template, served, parquet, database, checkpoint, shown, question, name,
        cluster, profile,
    )
}  # fmt: skip


def actions(kind: str, seeds: Sequence[int], sandbox: Sandbox, base: Path) -> list[Action]:
    """The cases of a kind."""
    return [_action(kind, seed, Place(base, sandbox.case / "work")) for seed in seeds]


def _action(kind: str, seed: int, place: Place) -> Action:
    def call() -> int | None:
        try:
            return KINDS[kind](Random(f"{kind}:{seed}"), place)
        except (EarlError, click.ClickException) as error:
            assert str(error).strip(), "an error says something"
            return 2
        finally:
            os.chdir(place.work)

    return Action(f"{kind}:{seed}", kind, call)
