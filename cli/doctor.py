"""`earl doctor`: what this machine offers for sandboxes."""

import os

import click

from earl.cli.options import declared, print_json
from earl.cli.text import one_line, print_table


@declared("doctor")
def command(as_json: bool) -> None:
    from earl.sandbox.local import layers_here

    found = layers_here()
    if as_json:
        return print_json({name: {"here": not fault, "why_not": fault or None} for name, fault in found.items()})
    rows = [(name, "no" if fault else "yes", one_line(fault)) for name, fault in found.items()]
    print_table(("layer", "here", "what is in its way"), rows)
    who = "nobody, since earl runs as root" if os.geteuid() == 0 else "this user"
    return click.echo(f"programs in a sandbox that is no container run on the host as {who}")
