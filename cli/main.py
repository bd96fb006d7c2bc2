"""The command `earl`: each subcommand is one file, imported when it is called.

    earl train … ─▶ earl.cli.train:command ─▶ earl.trainer     results to stdout, progress to stderr

Only here does an EarlError become one line on stderr and exit code 2.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

import click

from earl import __version__
from earl.cli.options import COMMANDS, CONTEXT, GROUPS
from earl.cli.text import one_line
from earl.errors import EarlError, unknown
from earl.stopping import interrupt

INTERRUPTED = 130
PATIENCE_SECONDS = 2.0
"""For threads that an environment left running at the end."""


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            raise unknown("command", cmd_name, COMMANDS)
        command: click.Command = import_module(f"earl.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in dict.fromkeys(GROUPS.values()):
            with formatter.section(group):
                formatter.write_dl([(name, help) for name, help in COMMANDS.items() if GROUPS[name] == group])


@click.group(cls=Commands, context_settings=CONTEXT, epilog="\b\nExamples:\n  earl train tictactoe\n  earl runs")
@click.version_option(__version__, prog_name="earl")
def cli() -> None:
    """Train language-model agents by reinforcement learning on multi-turn games and tool tasks."""


def run(arguments: Sequence[str] | None = None) -> int:
    try:
        code = cli.main(arguments, prog_name="earl", standalone_mode=False)
        sys.stdout.flush()
    except EarlError as error:
        return _fail(str(error))
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of stdout is gone; flush to nowhere
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}; check the path and its permissions")
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console command. SIGTERM acts like Ctrl-C, so that cleanup runs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # output still works on a terminal without UTF-8
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)  # raises another exception than an environment can
    code = run()
    watch = threading.Timer(PATIENCE_SECONDS, _leave, (code,))
    watch.daemon = True
    watch.start()
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process if Python would wait forever for threads that an environment left running."""
    own = (threading.main_thread(), threading.current_thread())
    if names := [thread.name for thread in threading.enumerate() if not thread.daemon and thread not in own]:
        click.echo(one_line(f"ended beside threads that still run: {', '.join(names)}"), err=True)
        sys.stdout.flush()
        os._exit(code)


def _fail(message: str) -> int:
    click.echo(f"error: {one_line(message)}", err=True)
    return 2


if __name__ == "__main__":
    main()
