"""The page in a real browser: it draws, says nothing on the console, and asks for nothing."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
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


CHOSEN = "document.querySelector('[aria-selected=true]')"
SELECTED = f"return {CHOSEN}.innerText + ' ' + document.querySelector('#episode h3').innerText"
COUNT = "return document.getElementById('found').innerText"


def only(page: Path, asked: set[str]) -> bool:
    """Whether nothing but the page itself was asked for."""
    return {address for address in asked if not address.startswith(("data:", "blob:"))} == {page.as_uri()}


def choose(browser: Browser, selector: str, value: str) -> None:
    """Choose a value of a select, as a reader does."""
    browser.ask(
        f"const s = document.querySelector(`{selector}`); s.value = {value!r};"
        "s.dispatchEvent(new Event('change', {bubbles: true}))"
    )


@pytest.mark.slow
def test_the_page_draws_its_plots_and_stays_offline(runs: Any, browser: Browser, record_property: Any) -> None:
    page = report.write(runs.long())
    browser.open(page)
    drawn = browser.ask(
        "return [...document.querySelectorAll('.plot.drawn')].map(p => p.querySelectorAll('svg').length)"
    )
    # 2 opponents + 6 of training + 8 of context + 1 of time = 17 plots, the closed ones aside
    assert len(drawn) == 17
    assert all(drawn)
    assert browser.ask(COUNT) == "200 episodes"
    assert browser.log("browser") == []
    assert only(page, browser.requests())
    assert page.stat().st_size < 6_000_000
    times = browser.ask("const d = document.documentElement.dataset; return [d.first, d.ready, d.episodes, d.complete]")
    record_property("milliseconds", times)
    print(f"first plot, plots in view, episodes, all plots after {times} ms; {page.stat().st_size:,} bytes")


@pytest.mark.slow
def test_plots_can_be_used(runs: Any, browser: Browser) -> None:
    browser.open(report.write(runs.run()))
    table = browser.ask(
        "const d = document.querySelector('[data-table=\"strength-0\"]'); d.open = true;"
        "return new Promise(done => setTimeout(() => done(d.querySelector('table').innerText), 200))"
    )
    assert re.search(r"^0\t0 % \(0 % to 0\.951 %\)", table, re.MULTILINE)  # 0 wins in 400 games: at most 0.95 %
    choose(browser, '[data-choices="heat-0"]', "2")
    visible = browser.ask("return document.getElementById('plot-heat-0').data.map(trace => trace.visible)")
    assert visible == [False, False, True, False]
    browser.ask("document.querySelector('details.more').open = true")
    browser.wait("return document.querySelectorAll('.more .plot.drawn').length === 4")
    saved = browser.ask(
        "const kept = [], real = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { kept.push(blob.text()); return real.call(URL, blob); };"
        "HTMLAnchorElement.prototype.click = () => {};"  # nothing is to lie about in somebody's downloads
        "const card = document.querySelector('[data-figure=context-window]').closest('.card');"
        "card.querySelector('[data-save=csv]').click();"
        "URL.createObjectURL = real; return kept[0]"
    )
    assert saved.splitlines()[0] == "step,median,p95,p99,longest,limit"
    assert saved.splitlines()[-1] == "60,60,100,100,110,150"
    picture = browser.ask(
        "return Plotly.toImage(document.getElementById('plot-heat-0'), {format: 'png', width: 600, height: 300})"
    )
    assert picture.startswith("data:image/png;base64,") and len(picture) > 4000
    assert browser.log("browser") == []


@pytest.mark.slow
def test_both_themes_colour_page_and_plots(runs: Any, browser: Browser) -> None:
    browser.open(report.write(runs.run()))
    colors = (
        "return [getComputedStyle(document.body).backgroundColor,"
        "document.querySelector('.plot.drawn').layout.paper_bgcolor, document.getElementById('theme').innerText]"
    )
    for scheme in ("dark", "light"):
        browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        wanted = {"dark": "#1b1f24", "light": "#ffffff"}[scheme]
        browser.wait(f"return document.querySelector('.plot.drawn').layout.paper_bgcolor === '{wanted}'")
    before = browser.ask(colors)
    browser.ask("document.getElementById('theme').click()")
    after = browser.ask(colors)
    assert all(one != other for one, other in zip(before, after, strict=True))
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.ask(colors)[1] == "#ffffff", "paper is white"
    browser.ask("dispatchEvent(new Event('afterprint'))")
    assert browser.ask(colors) == after
    browser.ask("document.getElementById('theme').click(); localStorage.clear()")
    assert browser.log("browser") == []


@pytest.mark.slow
def test_episodes_are_filtered_sorted_and_walked_through(runs: Any, browser: Browser) -> None:
    browser.open(report.write(runs.run()))
    assert browser.ask(COUNT) == "48 episodes"
    choose(browser, "[data-filter=outcome]", "loss")
    assert browser.ask(COUNT) == "16 of 48 episodes"
    choose(browser, "[data-filter=opponent]", "perfect")
    assert browser.ask(COUNT) == "8 of 48 episodes"
    browser.ask(
        "const s = document.getElementById('search'); s.value = '<THINK>5<'; s.dispatchEvent(new Event('input'))"
    )
    assert browser.ask(COUNT) == "1 of 48 episodes", "its thinking is 5"
    assert "episode 5" in browser.ask(SELECTED)
    browser.ask("const s = document.getElementById('search'); s.value = 'nowhere'; s.dispatchEvent(new Event('input'))")
    assert "No episode fits" in browser.ask("return document.getElementById('episode').innerText")
    browser.ask("document.getElementById('clear').click()")
    assert browser.ask(COUNT) == "48 episodes"
    choose(browser, "#sort", "least likely replies first")
    browser.ask("document.getElementById('list').firstChild.click()")
    assert "episode 47" in browser.ask(SELECTED)
    browser.ask("document.getElementById('list').focus()")
    browser.key("ArrowDown")
    assert "episode 46" in browser.ask(SELECTED)
    browser.key("End")
    assert "episode 0" in browser.ask(SELECTED)
    assert browser.ask(f"return document.getElementById('list').getAttribute('aria-activedescendant') === {CHOSEN}.id")
    browser.ask("document.getElementById('episode').focus()")
    browser.key("ArrowLeft")
    assert "episode 1" in browser.ask(SELECTED)
    assert browser.log("browser") == []


@pytest.mark.slow
def test_an_episode_shows_boards_and_colours(runs: Any, browser: Browser) -> None:
    browser.open(report.write(runs.run()))
    labels = browser.ask(
        "return [...document.querySelectorAll('#episode .board')].map(b => b.getAttribute('aria-label'))"
    )
    assert len(labels) == 4
    assert labels[1] == "model moved: empty empty empty; empty X empty; empty empty empty"
    assert labels[2].startswith("opponent moved: O empty empty")
    grounds = "return [...document.querySelectorAll('#episode .reply span')].map(s => s.style.backgroundColor)"
    for mode in ("logprob", "advantage", "ratio"):
        browser.ask(f"document.querySelector('input[value={mode}]').click()")
        assert all(browser.ask(grounds)), mode
        assert browser.ask("return document.querySelectorAll('#episode .legend span').length") >= 2
    browser.ask("document.querySelector('input[value=author]').click()")
    assert not any(browser.ask(grounds))
    told = browser.ask("return document.querySelector('#episode .reply span').dataset.told")
    assert told == "action · >99.99 %, log-prob 0 · advantage -1, ratio 1.1"
    browser.ask("document.querySelector('#episode .numbers').open = true")
    rows = browser.wait("return document.querySelector('#episode .numbers table')?.innerText")
    assert rows.splitlines()[1].split("\t") == ["5", "action", ">99.99 %", "0", "-1", "1.1"]
    assert not browser.ask("return document.querySelector('.said .template').offsetWidth")
    assert browser.ask(
        "document.getElementById('marks').click(); return document.querySelector('.said .template').offsetWidth > 0"
    )
    assert browser.log("browser") == []


@pytest.mark.slow
def test_runs_are_compared(runs: Any, browser: Browser) -> None:
    page = report.write(runs.run(name="a"), runs.run(name="b", until=45, final=False))
    browser.open(page)
    choose(browser, '[data-choices="strength-0"]', "2")
    seen = "return document.getElementById('plot-strength-0').data.filter(t => t.visible).map(t => t.meta.choice)"
    assert set(browser.ask(seen)) == {2}
    choose(browser, "[data-filter=run]", "b")
    assert browser.ask(COUNT) == "48 of 96 episodes"
    assert "run b" in browser.ask("return document.getElementById('episode').innerText")
    assert browser.log("browser") == []
    assert only(page, browser.requests())


@pytest.mark.slow
def test_nothing_hostile_runs(runs: Any, browser: Browser, hostile_texts: list[str]) -> None:
    page = report.write(runs.hostile(hostile_texts))
    browser.open(page)
    assert browser.ask("return window.harmed || null") is None
    for place in range(len(hostile_texts)):  # every episode, in every colour, with its numbers
        shown = browser.ask(
            f"document.querySelectorAll('[role=option]')[{place}].click();"
            "for (const input of document.querySelectorAll('#episode input:not([disabled])')) input.click();"
            "for (const details of document.querySelectorAll('#episode details')) details.open = true;"
            "return document.getElementById('episode').innerText.length"
        )
        assert 50 < shown < 200_000
    browser.ask(
        "const s = document.getElementById('search'); s.value = '<script>'; s.dispatchEvent(new Event('input'))"
    )
    assert browser.ask(COUNT) == "3 of 12 episodes"
    browser.ask("for (const details of document.querySelectorAll('details')) details.open = true")
    browser.wait("return !document.querySelector('.plot:not(.drawn)')")
    assert browser.ask("return window.harmed || null") is None
    assert browser.ask("return document.querySelectorAll('img, iframe, object, embed, form').length") == 0
    assert browser.ask("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.log("browser") == []
    assert only(page, browser.requests())


@pytest.mark.slow
def test_a_narrow_screen_needs_no_scrolling_sideways(runs: Any, browser: Browser) -> None:
    browser.command("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=True)
    try:
        browser.open(report.write(runs.run()))
        assert browser.ask("return document.documentElement.scrollWidth") == 420
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
