"""A real browser, driven by the WebDriver protocol."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35}


class Browser:
    """Chromium through the WebDriver protocol of its chromedriver: plain HTTP, so that no client is needed."""

    def __init__(self, address: str, profile: Path) -> None:
        self._address = address
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        self._send("POST", f"{self._session}/url", {"url": "about:blank"})  # away from the browser's own start page

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with self._opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {json.load(error)['value']['message']}") from error

    def command(self, name: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol."""
        return self._send("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, page: Path) -> None:
        """Open a file and wait until all its plots are drawn; the logs then hold what happened since."""
        self.log("browser"), self.log("performance")
        self._send("POST", f"{self._session}/url", {"url": page.as_uri()})
        self.wait("return document.documentElement.dataset.complete || ''")

    def wait(self, script: str) -> Any:
        """Ask until the answer is something, and return it."""
        for _ in range(1200):
            if answer := self.ask(script):
                return answer
            time.sleep(0.05)
        raise AssertionError(f"not within 60 s: {script}; {self.log('browser')}")

    def key(self, name: str) -> None:
        """Press a key where the focus is, such as "ArrowDown"."""
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS[name])

    def ask(self, script: str) -> Any:
        """What a script in the page returns."""
        return self._send("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def choose(self, selector: str, value: str) -> None:
        """Choose a value of a select, as a reader does."""
        self.ask(
            f"const s = document.querySelector(`{selector}`); s.value = {value!r};"
            "s.dispatchEvent(new Event('change', {bubbles: true}))"
        )

    def log(self, kind: str) -> list[dict[str, Any]]:
        """New entries of the log "browser" (the console) or "performance" (the DevTools events)."""
        entries: list[dict[str, Any]] = self._send("POST", f"{self._session}/se/log", {"type": kind})
        return entries

    def requests(self) -> set[str]:
        """The addresses that the page asked for, new ones only."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}

    def close(self) -> None:
        """End the browser."""
        self._send("DELETE", self._session)


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser with its profile in a folder; it ends with the context. Skips where the machine has none."""
    driver = shutil.which("chromedriver")
    if not driver or not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no chromium with chromedriver on this machine (Debian: apt-get install chromium-driver)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        opened = Browser(f"http://127.0.0.1:{port}", profile)
        yield opened
        opened.close()
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("chromedriver does not answer")
