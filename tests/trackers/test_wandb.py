"""Offline files, read back with the package's own reader; and that nothing asks the network for anything."""

import json
import math
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from earl.trackers.wandb import WeightsAndBiases

pytestmark = [pytest.mark.slow, pytest.mark.cold]
ROOT = Path(__file__).parents[2]
BLOCK = 1 << 15


def records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a log as LevelDB writes it, after 7 bytes of its own.

    Blocks of 32 KiB; each piece of a record has a checksum (4 bytes), a length (2) and a type (1): 1 whole, 2 first,
    3 middle, 4 last. What is left of a block with less room than that is empty.
    """
    at, record = 7, b""
    while at + 7 <= len(data):
        room = BLOCK - at % BLOCK
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record = (b"" if kind in (1, 2) else record) + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record


def histories(folder: Path) -> list[list[dict[str, object]]]:
    """The rows of every start, oldest first, by W&B's own messages; this version has no reader in Python."""
    from wandb.proto.wandb_internal_pb2 import Record as Message

    starts = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        messages = [Message.FromString(record) for record in records(path.read_bytes())]
        items = [message.history.item for message in messages if message.WhichOneof("record_type") == "history"]
        starts.append([{"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row} for row in items])
    return starts


def test_two_starts_of_one_run(begun, record, tmp_path: Path) -> None:
    tracker = WeightsAndBiases(begun())
    for step in (0, 1):
        tracker.record(record(step))
    tracker.event(1, "limit", "raised to 120")
    tracker.close("stopped")
    again = WeightsAndBiases(begun(1, tracker.identity))
    again.record(record(2))
    again.record(record(2, "final"))
    again.close("finished")
    assert again.identity == tracker.identity
    first, second = histories(tmp_path)
    assert [(row["step"], row.get("reward")) for row in first] == [(0, 0.0), (1, 0.25), (1, None)]
    assert first[2]["event/limit"] == "raised to 120"
    assert math.isnan(float(str(first[0]["loss"])))
    assert float(str(first[0]["forecast/p95/median"])) == math.inf
    assert second[0]["step"] == 2
    assert second[1]["final/perfect@0.25/seat_1/win"] == 0.5
    assert all(tracker.identity in path.name for path in tmp_path.glob("wandb/offline-run-*"))


class Listener(BaseRequestHandler):
    """Notes that somebody called, and hangs up."""

    def handle(self) -> None:
        self.server.calls.append(self.request.recv(200))


def test_without_being_asked_it_calls_nobody(tmp_path: Path) -> None:
    """Every library, Python's and the service's of W&B, goes through the proxy that the environment names."""
    code = (
        "import sys, requests; from pathlib import Path\n"
        "from earl.observer import RecordedStep; from earl.trackers.base import TrackedRun\n"
        "from earl.trackers.wandb import WeightsAndBiases\n"
        "tracker = WeightsAndBiases(TrackedRun('a', Path(sys.argv[1]), {'run': {'seed': 1}}))\n"
        "tracker.record(RecordedStep(1, {'reward': 1.0}, {}, [], 'train'))\n"
        "tracker.close('failed')\n"
        "print(open(next(Path(sys.argv[1]).glob('wandb/offline*/*.wandb')), 'rb').read().count(b'S3CRET'))\n"
        "if sys.argv[2:]: requests.get('http://example.invalid', timeout=10)"
    )
    with ThreadingTCPServer(("127.0.0.1", 0), Listener) as server:
        server.calls = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        environment = {
            **os.environ,
            **dict.fromkeys(names, address),
            "NO_PROXY": "",
            "no_proxy": "",
            "WANDB_API_KEY": "S3CRET" * 7,
        }
        quiet = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "quiet"], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert (quiet.returncode, quiet.stdout) == (0, "0\n"), quiet.stderr
        assert server.calls == []
        # The listener works: a call that is made is heard.
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / "loud", "call"], cwd=ROOT, env=environment, capture_output=True
        )
        assert server.calls
        server.shutdown()
