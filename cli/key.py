"""`earl key`: makes the key that signs a user's runs."""

import getpass
import socket

import click

from earl.cli.options import declared
from earl.cli.text import one_line


@declared("key")
def command(name: str | None) -> None:
    from earl.runs import signing

    line = signing.new_key(one_line(name or "") or f"{getpass.getuser()}@{socket.gethostname()}")
    click.echo(f"made {one_line(signing.key_path())}; runs are signed with it from now on", err=True)
    click.echo(line)
