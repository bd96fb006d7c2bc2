"""A server that is hostile or broken: raw sockets say what no HTTP library would."""

import gzip
import json
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, suppress

import pytest

from earl.cli.main import run as command_line
from earl.engine import served as client_module
from earl.engine.served import KEY, BadReply, Client, ServedSampler
from earl.errors import EarlError
from earl.trajectory import Prompt

SECRET = "secret-123"
PROMPT = Prompt(0, [2, 20, 5, 3], seed=1, max_tokens=8)


class Raw:
    """Answers each connection with the next of its scripts, the last one for ever: bytes, or what to do with it."""

    def __init__(self):
        self.scripts, self.seen = [b""], []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with suppress(OSError), closing(connection):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (some := connection.recv(1 << 16)):
                    return None
                request += some
            head, _, body = request.partition(b"\r\n\r\n")
            length = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
            while len(body) < int(length[0] if length else 0):
                body += connection.recv(1 << 16)
            self.seen.append(head.decode())
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            if callable(script):
                return script(connection)
            connection.sendall(script)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # what was not read yet would make closing a reset
        return None


def reply(body, *headers, status="200 OK", length=True):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(data)}"] if length else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def choice(**fields):
    return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-0.5]}, **fields}]}


GOOD = reply(choice())


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv(KEY, SECRET)
    made = Raw()
    yield made
    made.socket.close()


def sampler(server, characters=None, **seconds):
    return ServedSampler(Client(server.url, **seconds), "any", characters)


MALFORMED = {
    "no JSON": b"nonsense",
    "nothing": b"",
    "null": None,
    "a list": [],
    "a text": "x",
    "a number": 7,
    "a huge number": b"9" * 5000,
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 40_000,
    "no choices": {},
    "choices of null": {"choices": None},
    "choices of an object": {"choices": {"0": {}}},
    "no choice": {"choices": []},
    "two choices": {"choices": choice()["choices"] * 2},
    "a choice that is a text": {"choices": ["x"]},
    "no UTF-8": b'{"choices": "\xff"}',
}
IN_IDS = {
    "no tokens": choice(token_ids=[]),
    "5,000 tokens": choice(token_ids=[5] * 5000, logprobs={"token_logprobs": [-0.5] * 5000}),
    "nine tokens": choice(token_ids=[5] * 9),
    "ids as a text": choice(token_ids="5"),
    "ids of texts": choice(token_ids=["5"]),
    "ids of fractions": choice(token_ids=[5.5]),
    "ids of truth": choice(token_ids=[True]),
    "ids of lists": choice(token_ids=[[5]]),
    "an id below 0": choice(token_ids=[-1]),
    "an id beyond the vocabulary": choice(token_ids=[106]),
    "an id beyond 64 bits": choice(token_ids=[1 << 70]),
    "too few log-probs": choice(token_ids=[5, 5]),
    "log-probs as a list": choice(logprobs=[-0.5]),
    "log-probs of text": choice(logprobs={"token_logprobs": ["x"]}),
    "log-probs of null": choice(logprobs={"token_logprobs": [None]}),
    "log-probs of NaN": reply(b'{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [NaN]}}]}'),
    "log-probs without bound": reply(b'{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1e999]}}]}'),
    "log-probs above 0": choice(logprobs={"token_logprobs": [0.5]}),
}
IN_TEXT = {
    "no message": {"choices": [{}]},
    "a message of text": {"choices": [{"message": "x"}]},
    "content that is a number": {"choices": [{"message": {"content": 7}}]},
    "content that is a list": {"choices": [{"message": {"content": ["x"]}}]},
}
TRANSPORT = {
    "no HTTP": b"220 mail.example.org ESMTP\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n{}",
    "a thousand headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n{}",
    "fewer bytes than announced": b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + json.dumps(choice()).encode(),
    "more bytes than allowed": reply(json.dumps(choice(padding="x" * 1_000_000))),
    "a length below 0": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "chunks of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunks that break off": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}",
    "a gzip bomb": reply(gzip.compress(b" " * 30_000_000), "Content-Encoding: gzip"),
}
IN_EITHER = {**{name: reply(body) for name, body in MALFORMED.items()}, **TRANSPORT}


def as_bytes(answer):
    return answer if isinstance(answer, bytes) else reply(answer)


@pytest.mark.parametrize("answer", (IN_EITHER | IN_IDS).values(), ids=IN_EITHER | IN_IDS)
def test_a_malformed_reply_in_token_ids_is_asked_for_again_then_an_episodes_fault(server, characters, answer):
    ours = sampler(server, characters)
    server.scripts = [as_bytes(answer), GOOD]
    [good] = ours.generate([PROMPT])
    assert (good.tokens, good.logprobs, good.error) == ([5], [-0.5], None)
    server.seen, server.scripts = [], [as_bytes(answer)]
    [bad] = ours.generate([PROMPT])
    assert (bad.tokens, bad.logprobs, bad.versions, bad.finished) == ([], [], [], False)
    assert f"the server at {server.url} gave no valid answer to completions in 5 tries" in bad.error
    assert len(server.seen) == 5


@pytest.mark.parametrize("answer", (IN_EITHER | IN_TEXT).values(), ids=IN_EITHER | IN_TEXT)
def test_a_malformed_reply_in_text_is_an_episodes_fault(server, answer):
    server.scripts = [as_bytes(answer)]
    [bad] = sampler(server).generate([PROMPT])
    assert "gave no valid answer to chat/completions in 5 tries" in bad.error


@pytest.mark.parametrize("answer", [*MALFORMED.values(), {"data": "x"}, {"data": ["x"]}, {"data": [{"id": 7}]}])
def test_a_malformed_list_of_models_is_an_error(server, answer):
    server.scripts = [reply(answer)]
    with pytest.raises(BadReply, match="gave no valid answer to models"):
        ServedSampler(Client(server.url))


def test_a_text_that_is_too_long_is_cut_to_what_was_asked(server):
    server.scripts = [reply({"choices": [{"message": {"content": "5" * 5000}, "finish_reason": "stop"}]})]
    [cut] = sampler(server).generate([PROMPT])
    assert (len(cut.tokens), cut.finished) == (8, False)


def test_a_log_prob_above_0_by_rounding_is_0(server, characters):
    server.scripts = [reply(choice(logprobs={"token_logprobs": [1e-7]}))]
    assert sampler(server, characters).generate([PROMPT])[0].logprobs == [0.0]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_does_not_take_the_key_along(server, status, host):
    thief = Raw()
    server.scripts = [reply(b"", f"Location: http://{host}:{thief.port}/v1/models", status=status)]
    with pytest.raises(EarlError, match=rf"refuses models: {status[:3]} it redirects to '.*{thief.port}.*not followed"):
        Client(server.url).ask("models", dict)
    assert (len(server.seen), thief.seen) == (1, [])
    thief.socket.close()


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/v1/elsewhere", "", "\x1b[31m"])
def test_no_redirect_is_followed_wherever_it_leads(server, where):
    server.scripts = [reply(b"", f"Location: {where}", status="302 Found"), GOOD]
    with pytest.raises(EarlError, match="it redirects to"):
        Client(server.url).ask("models", dict)
    assert len(server.seen) == 1


def dripping(head, drop=b" ", pause=0.05):
    def script(connection):
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(pause)

    return script


DRIPPING = {
    "a body": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
    "a body of chunks": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a status line": dripping(b"HTTP/1.1 200 ", b"x"),
    "headers": dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "100 Continue": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"),
    "an error": dripping(b"HTTP/1.1 400 Bad\r\nContent-Length: 100000\r\n\r\n"),
    "nothing": lambda connection: time.sleep(20),
}


@pytest.mark.parametrize("script", DRIPPING.values(), ids=DRIPPING)
def test_what_drips_ends_at_the_deadline(server, script):
    server.scripts = [script]
    began = time.monotonic()
    with pytest.raises(EarlError, match=r"gave no answer to models in [1-3] tries, the last: timed out"):
        Client(server.url, timeout_seconds=0.4, total_seconds=1.0).ask("models", dict)
    assert time.monotonic() - began < 10


def test_an_endless_body_ends_at_the_limit(server, characters):
    def endless(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            sent.append(connection.send(b" " * 65536))

    sent = []
    server.scripts = [endless]
    [bad] = sampler(server, characters).generate([PROMPT])
    assert "it is longer than 270336 bytes" in bad.error  # 2^18 and 8 * 2^10
    assert sum(sent) < 100_000_000


def test_all_tries_together_have_a_deadline(server, monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 50.0)
    server.scripts = [reply({}, status="503 Busy")]
    began = time.monotonic()
    with pytest.raises(EarlError, match="gave no answer to models in 1 tries, the last: 503"):
        Client(server.url, total_seconds=0.5).ask("models", dict)
    assert time.monotonic() - began < 20


def test_a_server_that_never_answers_ends_the_evaluation(server, characters):
    server.scripts = [lambda connection: time.sleep(20)]
    with pytest.raises(EarlError, match="gave no answer"):
        sampler(server, characters, timeout_seconds=0.2, total_seconds=0.5).generate([PROMPT] * 3)


def test_no_proxy_of_the_environment_sees_the_key(server, monkeypatch):
    proxy = Raw()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.scripts = [reply({"data": []})]
    assert Client(server.url).ask("models", dict) == {"data": []}
    assert (len(server.seen), proxy.seen) == (1, [])
    proxy.socket.close()


@pytest.mark.parametrize(
    "key", [f"{SECRET}\n", f"{SECRET}\r\nX: y", f"{SECRET}é", f" {SECRET}", f"{SECRET}\x00"[:-1] + "\x7f"]
)
def test_a_key_that_no_header_can_hold_is_refused_and_not_told(server, monkeypatch, key):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(EarlError, match=f"the key in {KEY} holds characters") as refused:
        Client(server.url).ask("models", dict)
    assert SECRET not in str(refused.value)
    assert not server.seen


@pytest.mark.parametrize(
    "script",
    [
        reply({"error": f"bad key {SECRET}"}, status="401 No"),
        reply({"error": f"bad key {SECRET}"}, status="500 No"),
        reply(("x" * 290 + SECRET + "x" * 99).encode(), status="400 No"),
        reply(b"", f"Location: http://thief/{SECRET}", status="302 Found"),
        reply(b"", status=f"403 {SECRET}"),
        f"HTTP/1.1 {SECRET} OK\r\n\r\n".encode(),
        f"{SECRET}\r\n\r\n".encode(),
        reply(SECRET.encode()),
        reply({"data": [{"id": SECRET}, {"id": "b"}]}),
    ],
)
def test_no_error_tells_the_key_that_a_server_repeats(server, script):
    server.scripts = [script]
    with pytest.raises(EarlError) as refused:
        ServedSampler(Client(server.url))
    assert SECRET[:-1] not in str(refused.value)
    assert f"Authorization: Bearer {SECRET}" in server.seen[0]


def test_the_key_is_in_nothing_that_an_evaluation_says_or_writes(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = {"choices": [{"message": {"content": SECRET}, "finish_reason": "stop"}]}
    server.scripts = [reply(said), reply({"error": SECRET}, status="500 No"), reply(said), reply(SECRET.encode())]
    arguments = ["eval", "somebody", "--server", server.url, "--env", "tictactoe", "--opponent", "random"]
    command_line([*arguments, "--episodes", "2", "--runs", str(tmp_path / "runs")])
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_an_evaluation_goes_on_after_a_bad_reply_and_says_so(server, capsys):
    said = reply({"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]})
    bad = reply({"choices": [{"message": {"content": ["\x1b[31m"]}}]})
    server.scripts = [bad] * 5 + [said]
    arguments = ["eval", "somebody", "--server", server.url, "--env", "tictactoe", "--opponent", "random", "--json"]
    assert command_line([*arguments, "--episodes", "1"]) == 2  # the one game of the first seat is that with bad replies
    assert "all 1 episodes ended by a fault: the server" in capsys.readouterr().err
    server.scripts = [bad, said]
    assert command_line([*arguments, "--episodes", "3"]) == 0
    assert "warning" not in capsys.readouterr().err  # asked again, it was good


def test_some_bad_episodes_are_counted_and_said(server, capsys, monkeypatch):
    monkeypatch.setattr(client_module, "TRIES", 1)
    said = reply({"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]})
    server.scripts = [reply([]), said]
    arguments = ["eval", "somebody", "--server", server.url, "--env", "tictactoe", "--opponent", "random"]
    assert command_line([*arguments, "--episodes", "3", "--json"]) == 0
    output = capsys.readouterr()
    assert "warning: 1 of 3 episodes against random have no result and count as lost: the server at" in output.err
    result = json.loads(output.out)
    assert (result["faults"], result["episodes_or_leaves"], result["loss"]) == (1, 6, 1.0)


@pytest.mark.parametrize(
    "url", ["http://h:99999/v1", "http://h:x/v1", "http://h/v1 x", "http://é/v1", "http://h/\n", "http://:80/v1"]
)
def test_an_address_that_no_request_can_hold_is_refused(url):
    with pytest.raises(EarlError, match="no address of a server"):
        Client(url)


def test_an_unknown_certificate_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv(KEY, SECRET)
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    subprocess.run(["openssl", *made, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    server = Raw()
    plain = server._answer

    def wrapped(connection):
        with suppress(OSError):
            plain(context.wrap_socket(connection, server_side=True))

    server._answer = wrapped
    server.scripts = [reply({"data": []})]
    url = server.url.replace("http", "https")
    with pytest.raises(EarlError, match="CERTIFICATE_VERIFY_FAILED"):
        Client(url).ask("models", dict)
    assert server.seen == []
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
    with pytest.raises(EarlError, match=r"CERTIFICATE|IP address mismatch|Hostname mismatch"):
        Client(url).ask("models", dict)
    server.socket.close()
