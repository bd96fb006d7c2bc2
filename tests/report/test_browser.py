"""The page in a real browser: it draws, says nothing on the console, and asks for nothing."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earl import reports
from tests.report.chromium import Browser, started

CHOSEN = "document.querySelector('[aria-selected=true]')"
SELECTED = f"return {CHOSEN}.innerText + ' ' + document.querySelector('#episode h3').innerText"
COUNT = "return document.getElementById('found').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def only(page: Path, asked: set[str]) -> bool:
    """Whether nothing but the page itself was asked for."""
    return {address for address in asked if not address.startswith(("data:", "blob:"))} == {page.as_uri()}


@pytest.mark.slow
def test_the_page_draws_its_plots_and_stays_offline(runs: Any, browser: Browser, record_property: Any) -> None:
    page = reports.write(runs.long())
    browser.open(page)
    drawn = browser.ask(
        "return [...document.querySelectorAll('.plot.drawn')].map(p => p.querySelectorAll('svg').length)"
    )
    # 2 opponents + 6 of training + 8 of context + 1 of time = 17 plots, the closed ones aside
    assert len(drawn) == 19
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
    browser.open(reports.write(runs.run()))
    table = browser.ask(
        "const d = document.querySelector('[data-table=\"strength-0\"]'); d.open = true;"
        "return new Promise(done => setTimeout(() => done(d.querySelector('table').innerText), 200))"
    )
    assert re.search(r"^0\t0 % \(0 % to 0\.951 %\)", table, re.MULTILINE)  # 0 wins in 400 games: at most 0.95 %
    browser.choose('[data-choices="heat-0"]', "2")
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
    browser.open(reports.write(runs.run()))
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
    browser.open(reports.write(runs.run()))
    assert browser.ask(COUNT) == "48 episodes"
    browser.choose("[data-filter=outcome]", "loss")
    assert browser.ask(COUNT) == "16 of 48 episodes"
    browser.choose("[data-filter=opponent]", "perfect")
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
    browser.choose("#sort", "least likely replies first")
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
    browser.open(reports.write(runs.run()))
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
    page = reports.write(runs.run(name="a"), runs.run(name="b", until=45, final=False))
    browser.open(page)
    browser.choose('[data-choices="strength-0"]', "2")
    seen = "return document.getElementById('plot-strength-0').data.filter(t => t.visible).map(t => t.meta.choice)"
    assert set(browser.ask(seen)) == {2}
    browser.choose("[data-filter=run]", "b")
    assert browser.ask(COUNT) == "48 of 96 episodes"
    assert "run b" in browser.ask("return document.getElementById('episode').innerText")
    assert browser.log("browser") == []
    assert only(page, browser.requests())


@pytest.mark.slow
def test_nothing_hostile_runs(runs: Any, browser: Browser, hostile_texts: list[str]) -> None:
    page = reports.write(runs.hostile(hostile_texts))
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
        browser.open(reports.write(runs.run()))
        assert browser.ask("return document.documentElement.scrollWidth") == 420
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
