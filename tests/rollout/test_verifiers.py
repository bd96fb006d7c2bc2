"""earl's environments as environments of verifiers: its own loop, interception and scoring, with a model that is a
server of the test's own. The harness calls the model in this process, as the library allows one to."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.placement.ray.inventory import installed
from earl.rollout.env_process import make

pytestmark = pytest.mark.skipif(not installed("verifiers"), reason="verifiers is an extra")

ARENA = """
from earl.rollout.verifiers import environment
Tasks, Play = environment({arguments})
__all__ = ["Tasks", "Play"]
"""
HARNESS = """
import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

class Config(vf.HarnessConfig):
    pass

class Direct(vf.Harness[Config]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [
            {"role": one.role, "content": one.content} for one in prompt
        ]
        told = [{"role": "system", "content": system}] if system else []
        body = {"model": ctx.model, "messages": told + said}
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
        return ProgramResult(int(answer.status_code != 200), "", answer.text)

__all__ = ["Direct", "Config"]
"""


@pytest.fixture
def model() -> Iterator[tuple[str, list[list[dict[str, str]]], list[Callable]]]:
    """The URL of a server that speaks OpenAI's protocol, what it was asked, and one function that answers."""
    asked: list[list[dict[str, str]]] = []
    answers: list[Callable] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            asked.append(messages)
            message = {"role": "assistant", "content": answers[0](messages)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            told = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked, answers
    server.shutdown()
    server.server_close()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model) -> Iterator[Callable]:
    """Plays some tasks of an environment by verifiers; their traces."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.utils.loaders import environment_class

    url, _, answers = model
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NO_KEY", "none")
    (tmp_path / "direct_harness.py").write_text(HARNESS)

    def play(arguments: str, answer: Callable, tasks: int = 2):
        answers[:] = [answer]
        (tmp_path / "arena.py").write_text(ARENA.format(arguments=arguments))
        sys.modules.pop("arena", None)
        player = {"harness": {"id": "direct_harness"}, "runtime": {"type": "subprocess"}}
        kind = environment_class("arena")
        own = kind.__orig_bases__[0].__args__[0]
        env = kind(own.model_validate({"taskset": {"id": "arena"}, "player": player}))
        context = ModelContext("m", EvalClientConfig(base_url=url, api_key_var="NO_KEY"))

        async def run():
            async with env.serving():
                return [await env.run_episode(task, context) for task in env.taskset.take(tasks)]

        return asyncio.run(run())

    yield play
    sys.modules.pop("arena", None)
    sys.modules.pop("direct_harness", None)


def first_free(messages: list[dict[str, str]]) -> str:
    """The first digit of the board that was last shown, on a line of its own."""
    board = messages[-1]["content"].split(" ", 1)[-1]
    return "I take\n" + next(sign for sign in board if sign.isdigit())


@pytest.mark.slow
def test_a_game_is_what_it_is_in_earl(played: Callable, model) -> None:
    episodes = played("'tictactoe', opponent='random'", first_free, tasks=4)
    assert [episode.task.data.seat for episode in episodes] == [0, 1, 0, 1]
    for episode in episodes:
        assert (episode.ok, episode.errors) == (True, [])
        [trace] = episode.traces
        env = make("tictactoe", {}, None, seat=episode.task.data.seat, opponent="random")
        observation, _ = env.reset(seed=episode.task.data.seed)
        assert episode.task.data.prompt == observation
        assert episode.task.data.system_prompt == env.instructions
        total, ended = 0.0, False
        for message in trace.branches[-1].messages:
            if message.role == "assistant":
                observation, reward, ended, _, _ = env.step(message.content[-1])
                total += reward
            elif message.role == "user" and total == 0.0 and not ended:
                assert message.content == observation
        assert ended
        assert trace.rewards["earl"].score == total
    assert len({episode.task.data.seed for episode in episodes}) == 4


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (2, 3)])
def test_what_is_not_legal_is_answered_with_the_rule_and_then_lost(played: Callable, model, retries, asked) -> None:
    [episode] = played(f"'tictactoe', opponent='random', retries={retries}", lambda _: "no digit", tasks=1)
    assert episode.traces[0].rewards["earl"].score == -1.0
    assert len(model[1]) == asked
    assert all("illegal" in messages[-1]["content"] for messages in model[1][1:])


def test_a_task_is_scored_as_in_earl(played: Callable) -> None:
    def solved(messages: list[dict[str, str]]) -> str:
        return f"\\boxed{{{eval(re.sub('[^-+0-9]', '', messages[1]['content']))}}}"

    right = played("'arithmetic', parser='boxed', num_operations=1", solved)
    assert [episode.traces[0].rewards["earl"].score for episode in right] == [1.0, 1.0]
    wrong = played("'arithmetic', parser='boxed', num_operations=1", lambda _: "\\boxed{1000000}")
    assert [episode.traces[0].rewards["earl"].score for episode in wrong] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("tictacto",), "tictactoe"), (("tictactoe", "nobody"), "nobody"), (("arithmetic", "", "tag"), "tag")],
)
def test_unknown_names_are_refused_at_once(arguments: tuple[str, ...], told: str) -> None:
    from earl.rollout.verifiers import environment  # imports verifiers: not where tests are collected

    with pytest.raises(EarlError, match=told):
        environment(*arguments)
