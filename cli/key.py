"""`earl key`: makes the key that signs a user's runs."""

import getpass
import socket

import click

from earl.cli.text import one_line


@click.command()
@click.option("--name", help="What the key is called in reports. [default: USER@HOST]")
def command(name: str | None) -> None:
    """Make the key that signs your runs, and print its public line.

    From then on, runs and checkpoints that `earl train` writes are signed. The private half stays in
    $XDG_CONFIG_HOME/earl/signing_key (~/.config/earl/signing_key), which only you may read. Others append the printed
    line to their $XDG_CONFIG_HOME/earl/trusted_keys; audit, eval and report then say who signed what. With
    EARL_REQUIRE_SIGNED=1 they, and everything else that loads a checkpoint, refuse what no trusted key has signed.
    """
    from earl.runs import signing

    line = signing.new_key(one_line(name or "") or f"{getpass.getuser()}@{socket.gethostname()}")
    click.echo(f"made {one_line(signing.key_path())}; runs are signed with it from now on", err=True)
    click.echo(line)
