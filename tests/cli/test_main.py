"""The frame of every command: help, errors, exit codes, what may be loaded."""

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from earl.cli import main
from earl.errors import EarlError

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "vllm", "transformers", "pyarrow", "plotly"}


def modules_after(*arguments: str) -> set[str]:
    """The top-level modules of a fresh interpreter once it has run a command line."""
    code = (
        f"import json, sys; from earl.cli.main import run; run({list(arguments)!r}); print(json.dumps([*sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "arguments", [("--help",), ("train", "--help"), ("train", "--stepz"), ("trian",), ("runs", "-h")]
)
def test_help_and_misspelt_commands_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not modules_after(*arguments) & HEAVY


def test_the_help_page_loads_not_even_the_light_libraries() -> None:
    assert not modules_after("--help") & {"rich", "pydantic", "numpy", "gymnasium"}


def test_help_takes_little_processor_time() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "earl.cli.main", "--help"], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 0.5  # about 0.05 s; importing torch alone takes several times the bound


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_summary_is_the_first_line_of_the_command_s_help(name: str) -> None:
    assert import_module(f"earl.cli.{name}").command.get_short_help_str(limit=200) == main.COMMANDS[name]


def pages(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    """The help pages of a command and of all below it."""
    context = click.Context(command, info_name=words[-1], **command.context_settings)
    yield command.get_help(context)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name)
        assert below is not None
        yield from pages(below, (*words, name))


def test_every_help_page_has_examples_and_each_can_be_called() -> None:
    for page in pages(main.cli, ("earl",)):
        examples = [line.strip() for line in page.partition("Examples:")[2].splitlines() if line.strip()]
        assert examples, page
        for line in examples:
            command, words = main.cli, shlex.split(line)
            while isinstance(command, click.Group) and (words := words[1:]) and not words[0].startswith("-"):
                command = command.get_command(click.Context(command, **command.context_settings), words[0])
            command.make_context(line, words if isinstance(command, click.Group) else words[1:])


def test_commands_stand_in_groups(earl) -> None:
    said = earl("--help").out
    assert said.index("\nTrain:") < said.index("  train ") < said.index("\nMeasure and look:") < said.index("  eval ")
    assert all(f"\n  {name} " in said for name in main.COMMANDS)


def test_an_unknown_command_gets_the_nearest(earl) -> None:
    said = earl("trian")
    assert (said.code, said.out) == (2, "")
    known = ", ".join(sorted(main.COMMANDS))
    assert said.err == f"error: unknown command 'trian'; did you mean 'train'? Known: {known}\n"


@pytest.mark.parametrize("arguments", [(), ("train",), ("train", "tictactoe", "--stepz", "1"), ("eval",)])
def test_usage_errors_exit_with_2(earl, arguments: tuple[str, ...]) -> None:
    said = earl(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "Usage: earl" in said.err


def test_version(earl) -> None:
    assert (earl("--version").out, earl("--version").code) == ("earl, version 0.1.0\n", 0)


def test_an_error_cannot_steer_the_terminal(earl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EarlError("the model said \x1b]0;owned\x07\x1b[2J\x9b31m[bold]\u202e5\nand more")

    monkeypatch.setattr(main.cli, "main", fail)
    assert earl().err == "error: the model said 31m[bold]5 and more\n"


def test_a_path_that_is_refused_is_no_traceback(earl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/secret/runs")

    monkeypatch.setattr(main.cli, "main", fail)
    said = earl("runs")
    assert (said.code, said.err) == (2, "error: /secret/runs: Permission denied; check the path and its permissions\n")


@pytest.mark.parametrize("arguments", [("--help",), ("envs",), ("envs", "show", "tictactoe", "--json")])
def test_a_reader_that_leaves_is_no_error_message(start, arguments: tuple[str, ...]) -> None:
    with start(*arguments) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


def test_a_terminal_without_unicode_still_gets_its_answer() -> None:
    environment = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PATH": ""}
    command = [sys.executable, "-m", "earl.cli.main", "envs"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "tictactoe" in ran.stdout
