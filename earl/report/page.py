"""The page: everything put into one HTML file with Jinja2, plotly.js inside, nothing loaded from anywhere.

What a model, an environment or a recipe wrote passes through autoescaping. Should that ever fail, the page's own
Content-Security-Policy runs only the two scripts whose hashes it names, and permits no request.
"""

import base64
import gzip
import hashlib
import json
import time
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from earl.report import course, results, text
from earl.report.data import RunData
from earl.report.decoding import Decoder
from earl.report.episodes import Dialogue, choose, dialogue
from earl.report.strength import strength_figures
from earl.report.summary import summary, time_table

_FOLDER = Path(__file__).parent / "templates"
MAX_EVENTS = 300


def render(data: RunData) -> str:
    """The report of a run as HTML."""
    figures = {
        "strength": strength_figures(data),
        "training": course.training_figures(data),
        "other": course.other_figures(data),
        "context": course.context_figures(data),
        "time": [course.time_figure(data)],
    }
    specs = {figure.name: figure.spec for figure in chain(*figures.values()) if figure.spec}
    script, library = _read("page.js"), _plotly()
    return _template().render(
        data=data,
        written=time.time(),
        facts=summary(data),
        phases=results.phases(data),
        words=results.words(data),
        pairings=results.pairings(data),
        figures=figures,
        specs=embedded(specs),
        times=time_table(data),
        events=data.numbers.events[-MAX_EVENTS:],
        dialogues=_dialogues(data),
        style=Markup(_read("style.css")),
        script=Markup(script),
        plotly=Markup(library.packed if specs else ""),
        policy=_policy(script, library.hash),
    )


def _dialogues(data: RunData) -> list[Dialogue]:
    if data.episodes is None:
        return []
    decoder = Decoder(data.model.tokenizer if data.model else None)
    return [dialogue(trajectory, decoder) for trajectory in choose(data.episodes.trajectories)]


def embedded(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever its strings hold.

    Example:
        >>> embedded("</script>")
        Markup('"\\\\u003c/script\\\\u003e"')
    """
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and the like are escaped
    for character in "<>&":
        dumped = dumped.replace(character, f"\\u{ord(character):04x}")
    return Markup(dumped)


class _Library:
    """plotly.js, packed: 4.8 MB of script in 1.9 MB of page, unpacked by the browser in some 50 ms."""

    def __init__(self, script: str) -> None:
        self.hash = _hash(script)
        self.packed = base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


@lru_cache(maxsize=1)
def _plotly() -> _Library:
    from plotly.offline import get_plotlyjs  # slow to import, and needed here only

    return _Library(get_plotlyjs())


def _hash(script: str) -> str:
    """A script's name in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _policy(script: str, library: str) -> str:
    # plotly sizes its elements with style attributes and draws images from data: and blob: to save them.
    return (
        f"default-src 'none'; script-src {_hash(script)} {library}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=8)
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=text.percent, probability=text.probability, count=text.count, number=text.number, seconds=text.seconds,
        moment=text.moment, shown=text.shown,
    )  # fmt: skip
    environment.globals.update(results=results)
    return environment.get_template("page.html")
