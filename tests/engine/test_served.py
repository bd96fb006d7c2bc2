"""A model behind a server: a small HTTP server for what can go wrong, vLLM's own for what must go right."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest

from earl.cli.main import run as command_line
from earl.config import ModelConfig
from earl.engine import served as client_module
from earl.engine.local import LocalSampler
from earl.engine.model import make
from earl.engine.served import KEY, Client, ServedSampler, messages, served_sampler
from earl.errors import EarlError
from earl.trajectory import Prompt


class Server:
    """Answers each request with the next of its answers, the last one for ever: (status, body), or seconds to wait."""

    def __init__(self):
        self.answers, self.seen = [(200, {})], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.seen.append((self.path, body, self.headers.get("Authorization")))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if isinstance(answer, float):
                    time.sleep(answer)
                    return
                status, content = answer
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.01)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def said(text, reason="stop"):
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": reason}]}


def test_what_passes_is_asked_again(server):
    server.answers = [(503, {}), (429, {}), (200, b"not json"), (200, {"data": [{"id": "only"}]})]
    assert Client(server.url).ask("models", dict) == {"data": [{"id": "only"}]}
    assert len(server.seen) == 4


def test_a_server_that_stays_broken_is_given_up(server):
    server.answers = [(500, {"error": "no memory"})]
    with pytest.raises(EarlError, match=r"no answer to models in 5 tries, the last: 500 .*no memory"):
        Client(server.url).ask("models", dict)
    assert len(server.seen) == 5


def test_a_server_that_hangs_is_given_up(server, monkeypatch):
    monkeypatch.setattr(client_module, "TRIES", 2)
    server.answers = [0.5]
    with pytest.raises(EarlError, match=r"in 2 tries, the last: timed out"):
        Client(server.url, timeout_seconds=0.1).ask("models", dict)


def test_a_refusal_is_said_at_once_and_never_tells_the_key(server, monkeypatch):
    monkeypatch.setenv(KEY, "secret-123")
    server.answers = [(401, {"error": "bad key secret-123"})]
    with pytest.raises(
        EarlError, match=rf"refuses models: 401 .*\*\*\*.* set the environment variable {KEY}"
    ) as refused:
        Client(server.url).ask("models", dict)
    assert "secret-123" not in str(refused.value)
    assert [key for _, _, key in server.seen] == ["Bearer secret-123"]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://here/v1", "http://", "http://key@host/v1", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(EarlError, match="no address of a server"):
        Client(url)


def test_nobody_there(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(EarlError, match="refused; check that it runs"):
        Client(f"http://127.0.0.1:{port}/v1").ask("models", dict)


def test_text_goes_as_messages_and_comes_back_as_characters(server, characters):
    server.answers = [said(" 5\n"), said("é5"), said("12345", "length"), said("", "stop")]
    sampler = ServedSampler(Client(server.url), "any")
    text = "<|system|>Play.<|end|><|user|>...<|end|><|assistant|>3<|end|><|tool|>X..<|end|><|assistant|>"
    tokens = characters(text, add_special_tokens=False)["input_ids"]
    replies = [sampler.generate([Prompt(0, tokens, seed=1, max_tokens=4, greedy=True)])[0] for _ in range(4)]
    end = "<|end|>"
    decoded = [characters.decode(reply.tokens, skip_special_tokens=False) for reply in replies]
    assert decoded == ["5" + end, "?5" + end, "1234", end]
    assert [reply.finished for reply in replies] == [True, True, False, True]
    path, body, key = server.seen[0]
    assert (path, body["model"], body["temperature"], key) == ("/v1/chat/completions", "any", 0.0, None)
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in body["messages"]] == ["Play.", "...", "3", "X.."]


def test_messages_of_a_prompt():
    assert messages("<|user|>a\nb<|end|><|assistant|>") == [{"role": "user", "content": "a\nb"}]


def test_a_server_without_token_ids_is_refused_where_they_are_needed(server, characters):
    server.answers = [(200, {"choices": [{"text": "5"}]})]
    with pytest.raises(EarlError, match="returns no token ids"):
        ServedSampler(Client(server.url), "any", characters).generate([Prompt(0, [1], seed=1, max_tokens=4)])


def test_the_model_is_named_where_there_are_several(server):
    server.answers = [(200, {"data": [{"id": "a"}, {"id": "b"}]})]
    with pytest.raises(EarlError, match=r"serves 2 models \(a, b\); name one with --model"):
        ServedSampler(Client(server.url))


def test_eval_asks_a_server(server, capsys):
    server.answers = [said("5")]
    arguments = ["eval", "somebody", "--server", server.url, "--env", "tictactoe", "--opponent", "random"]
    assert command_line([*arguments, "--episodes", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # It always plays the middle, and soon that is taken: every one of the 6 games ends by forfeit.
    assert (result["episodes_or_leaves"], result["illegal"], result["win"]) == (6, 1.0, 0.0)
    assert {body["model"] for _, body, _ in server.seen} == {"somebody"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "x"], "add --server"),
        (["--server", "http://localhost:1/v1", "--checkpoint", "best"], "leave it out"),
        (["--server", "nowhere"], "no address"),
    ],
)
def test_eval_refuses(capsys, arguments, complaint):
    assert command_line(["eval", "somebody", "--env", "tictactoe", "--opponent", "random", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory):
    """vLLM's own server with a small model: its address, the folder and the policy."""
    pytest.importorskip("vllm", reason="vLLM is an extra")
    policy = make(ModelConfig(hidden=64, layers=2, heads=2, head_dim=32, intermediate=96, max_positions=256), seed=4)
    folder = tmp_path_factory.mktemp("model")
    policy.save(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    settings = ["--served-model-name", "small", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, *settings], env={**os.environ, **environment}, **quiet) as process:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", folder, policy
        process.terminate()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_vllms_server_replies_as_the_model_does(vllm_server, capsys):
    url, folder, policy = vllm_server
    prompts = [Prompt(i, [2, *range(10 + i, 40 + i), 5, 3], seed=i, max_tokens=6, greedy=True) for i in range(12)]
    theirs = served_sampler(url, str(folder), None).generate(prompts)
    ours = LocalSampler(policy).generate(prompts)
    assert [reply.tokens for reply in theirs] == [reply.tokens for reply in ours]
    assert [reply.finished for reply in theirs] == [reply.finished for reply in ours]
    for a, b in zip(theirs, ours, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    arguments = ["--env", "tictactoe", "--opponent", "random", "--episodes", "4", "--json"]
    assert command_line(["eval", str(folder), "--server", url, *arguments]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert command_line(["eval", "small", "--server", url, *arguments]) == 0
    by_text = json.loads(capsys.readouterr().out)
    assert command_line(["eval", str(folder), *arguments]) == 0
    assert exact == json.loads(capsys.readouterr().out)
    assert by_text["episodes_or_leaves"] == 8
