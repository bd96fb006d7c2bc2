"""`earl key`: makes the key that signs a user's runs."""

import getpass
import socket

import click

from earl.cli.options import declared
from earl.cli.text import one_line
from earl.errors import EarlError


@declared("key")
def command(name: str | None) -> None:
    from earl.runs import signing

    name = f"{getpass.getuser()}@{socket.gethostname()}" if name is None else one_line(name).strip()
    if not name:
        raise EarlError("--name '' says nothing of the key; name it, or leave --name out")
    line = signing.new_key(name)
    click.echo(f"made {one_line(signing.key_path())}; runs are signed with it from now on", err=True)
    click.echo(line)
