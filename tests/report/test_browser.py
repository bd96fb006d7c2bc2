"""The page in a real browser: it draws, says nothing on the console, and asks for nothing."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earl import report

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
        with self._opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol."""
        return self._send("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, page: Path) -> None:
        """Open a file and wait until its plots are drawn; the logs then hold what happened since."""
        self.log("browser"), self.log("performance")
        self._send("POST", f"{self._session}/url", {"url": page.as_uri()})
        for _ in range(600):
            if self.ask("return document.documentElement.dataset.ready || ''"):
                return
            time.sleep(0.05)
        raise AssertionError(f"not drawn after 30 s: {self.log('browser')}")

    def ask(self, script: str) -> Any:
        """What a script in the page returns."""
        return self._send("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    if not driver or not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no chromium with chromedriver on this machine (Debian: apt-get install chromium-driver)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        opened = Browser(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("profile"))
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


@pytest.mark.slow
def test_the_page_draws_its_plots_and_stays_offline(runs: Any, browser: Browser, record_property: Any) -> None:
    page = report.write(runs.run())
    browser.open(page)
    drawn = browser.ask(
        "return [...document.querySelectorAll('.plot.drawn')].map(p => p.querySelectorAll('svg').length)"
    )
    # 2 opponents + 6 of training + 3 of context + 1 of time = 12 plots, the closed ones aside
    assert len(drawn) == 12
    assert all(drawn)
    assert browser.log("browser") == []
    asked = browser.requests()
    assert {address for address in asked if not address.startswith("data:")} == {page.as_uri()}
    first, last = browser.ask("const d = document.documentElement.dataset; return [d.first, d.ready]")
    record_property("first_plot_ms", first)
    record_property("all_plots_ms", last)
    print(f"first plot after {first} ms, all after {last} ms, {page.stat().st_size:,} bytes")


@pytest.mark.slow
def test_the_page_can_be_used(runs: Any, browser: Browser) -> None:
    browser.open(report.write(runs.run()))
    table = browser.ask(
        "const d = document.querySelector('[data-table=\"strength-0\"]'); d.open = true;"
        "return new Promise(done => setTimeout(() => done(d.querySelector('table').innerText), 200))"
    )
    assert re.search(r"^0\t0 % \(0 % to 0\.951 %\)", table, re.MULTILINE)  # 0 wins in 400 games: at most 0.95 %
    before = browser.ask("return getComputedStyle(document.body).backgroundColor")
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.ask(
        "document.getElementById('marks').click(); return document.querySelector('.template').offsetWidth > 0"
    )
    browser.ask("document.querySelector('details.more').open = true")
    time.sleep(0.5)
    assert browser.ask("return document.querySelectorAll('.more .plot.drawn').length") > 0
    assert browser.log("browser") == []


@pytest.mark.slow
def test_nothing_hostile_runs(runs: Any, browser: Browser, hostile_texts: list[str]) -> None:
    page = report.write(runs.hostile(hostile_texts))
    browser.open(page)
    assert browser.ask("return window.harmed || null") is None
    assert browser.ask("return document.querySelectorAll('img, iframe, object, embed, form').length") == 0
    assert browser.ask("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.log("browser") == []
    assert {address for address in browser.requests() if not address.startswith("data:")} == {page.as_uri()}


@pytest.mark.slow
def test_a_narrow_screen_needs_no_scrolling_sideways(runs: Any, browser: Browser) -> None:
    browser.command("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=True)
    try:
        browser.open(report.write(runs.run()))
        assert browser.ask("return document.documentElement.scrollWidth") == 420
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
