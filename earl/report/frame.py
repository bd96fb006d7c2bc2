"""What every page of earl has: a template, the style, the script, and plotly.js; nothing is loaded from anywhere.

What a model, an environment or a recipe wrote passes through autoescaping, or stands in packed data that the page's
script only ever writes as text. Should that fail, the page's own Content-Security-Policy runs only the two scripts
whose hashes it names, and permits no request.
"""

import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from earl.report import compare, results, text
from earl.report.figures import Figure
from earl.report.packing import pack, plotly, script_hash

_FOLDER = Path(__file__).parent / "templates"
_SCRIPTS = ("theme.js", "tables.js", "plots.js", "board.js", "tokens.js", "browser.js", "page.js")


def fill(template: str, drawn: Iterable[Figure], **values: Any) -> str:
    """A page as HTML.

    Args:
        template: its file.
        drawn: all plots of the page.
        values: that the template names, `title` among them.
    """
    specs = {
        figure.name: {**figure.spec, "choices": figure.choices, "title": figure.title}
        for figure in drawn
        if figure.spec
    }
    script, library = _script(), plotly()
    return _template(template).render(
        written=time.time(),
        specs=Markup(pack(specs)),
        style=Markup(_read("style.css")),
        script=Markup(script),
        plotly=Markup(library.packed if specs else ""),
        policy=_policy(script, library.hash),
        **values,
    )


def _policy(script: str, library: str) -> str:
    # plotly sizes its elements with style attributes and draws images from data: and blob: to save them.
    return (
        f"default-src 'none'; script-src {script_hash(script)} {library}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def _script() -> str:
    parts = "\n".join(_read(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@lru_cache(maxsize=16)
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _template(name: str) -> jinja2.Template:
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
    environment.globals.update(results=results, compare=compare)
    return environment.get_template(name)
