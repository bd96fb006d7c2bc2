"""Write the generated pages of this folder: `make docs`."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]

WHY = {
    "click": "commands and options",
    "gymnasium": "the environment interface",
    "huggingface-hub": "models by their hub id",
    "jinja2": "chat templates, which transformers renders with it",
    "numpy": "token arrays, packing, advantages",
    "pettingzoo": "the games for other multi-agent libraries",
    "plotly": "the plots of the report",
    "pyarrow": "trajectories as Parquet",
    "pydantic": "the recipe as a checked tree",
    "rich": "progress and tables in the terminal",
    "safetensors": "weights on disk, without pickle",
    "tokenizers": "the small model's tokenizer",
    "tomli-w": "the resolved recipe in a run's folder",
    "torch": "tensors, gradients, processes joined by gloo",
    "transformers": "the models and their chat templates",
    "build": "wheel and sdist",
    "hatchling": "the build backend; follows the links inside the package",
    "hypothesis": "property tests",
    "import-linter": "the direction of imports",
    "mypy": "types, strict",
    "pygame": "`pettingzoo.classic`, which the rules are compared with, imports it",
    "pytest": "tests",
    "ruff": "style",
}
"""Why each direct dependency is here."""

INTRODUCTION = """# Direct dependencies

Written by `make docs` from `pyproject.toml` and from what the installed packages say of themselves.
The ranges stand in `pyproject.toml`, the exact versions of these and of all that they need in
`requirements.lock`.
"""


def licence(name: str) -> str:
    """The licence that an installed package declares."""
    fields = metadata(name)
    classifiers = [text for text in fields.get_all("Classifier", []) if text.startswith("License ::")]
    return (
        fields["License-Expression"]
        or ", ".join(text.split(" :: ")[-1] for text in classifiers)
        or fields["License"].splitlines()[0]
    )


def table(requirements: list[str]) -> str:
    """One line for each dependency."""
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]
    lines = [f"| {name} | {licence(name)} | {WHY[name]} |" for name in names]
    return "\n".join(["| package | licence | why |", "|---|---|---|", *lines]) + "\n"


def dependencies() -> str:
    """docs/dependencies.md"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = table(project["project"]["dependencies"])
    development = table(project["dependency-groups"]["dev"])
    return f"{INTRODUCTION}\n## What earl needs\n\n{installed}\n## What its development needs\n\n{development}"


PAGES = {"dependencies.md": dependencies}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (ROOT / "docs" / page).write_text(text(), encoding="utf-8")
