"""`earl cluster`: rehearses a cluster of several hosts on one machine."""

from dataclasses import asdict

import click

from earl.cli.options import json_option, print_json

FAULTS = ("kill", "link-down", "link-up", "freeze", "thaw")


_name = click.option("--name", default="earl", show_default=True, help="Of the cluster.")
_host = click.option("--host", type=click.IntRange(min=1), required=True, help="Number of the host.")


@click.group()
def command() -> None:
    """Rehearse a Ray cluster of several hosts on this machine.

    Every host is a network namespace with a Ray node of its own, on a link of a given rate. Ray's head runs beside
    them, where `earl train --address auto` finds it. Linux and root only.
    """


@command.command()
@click.option("--hosts", type=click.IntRange(1, 64), default=4, show_default=True, help="Besides Ray's head.")
@click.option("--rate", default="500mbit", show_default=True, help="Of every link, each way: kbit, mbit or gbit.")
@click.option("--cpus", type=click.IntRange(1, 1024), default=4, show_default=True, help="Task slots of a host.")
@click.option(
    "--memory-mib", type=click.IntRange(80, 1 << 20), default=128, show_default=True, help="Object store of a host."
)
@_name
@json_option
def up(hosts: int, rate: str, cpus: int, memory_mib: int, name: str, as_json: bool) -> None:
    """Bring a cluster up.

    Host N offers Ray a resource host-N, so that a task can be pinned to it. The head has no task slots. A token opens
    the cluster; it lies in a file of this user, where earl finds it.
    """
    from earl.rehearsal.cluster import up as bring_up

    cluster = bring_up(name, hosts, rate, cpus, memory_mib, say=lambda text: click.echo(text, err=True))
    if as_json:
        return print_json(asdict(cluster))
    click.echo(cluster.address)
    click.echo(f"train on it with: earl train ENV --placement disaggregated --address {cluster.address}", err=True)
    return None


@command.command()
@_name
@json_option
def status(name: str, as_json: bool) -> None:
    """Show how every host is.

    Its link, what its processes do, and whether Ray's head counts on it.
    """
    from earl.cli.text import console, table
    from earl.rehearsal.cluster import status as look
    from earl.rehearsal.plan import load

    cluster = load(name)
    hosts = [asdict(host) for host in look(cluster)]
    if as_json:
        return print_json({**asdict(cluster), "address": cluster.address, "status": hosts})
    click.echo(f"{cluster.name}: {cluster.hosts} hosts at {cluster.rate}, Ray's head at {cluster.address}", err=True)
    rows = [[*map(str, list(host.values())[:-1]), "yes" if host["in_ray"] else "no"] for host in hosts]
    return console().print(table(("host", "address", "link", "processes", "in Ray"), rows))


@command.command()
@_name
def down(name: str) -> None:
    """Take a cluster down.

    Whatever state it is in: its processes, its network and its files.
    """
    from earl.rehearsal.cluster import down as take_down

    click.echo(f"cluster {take_down(name).name!r} is down", err=True)


@command.command()
@_host
@click.option("--how", type=click.Choice(FAULTS), required=True)
@_name
def fail(host: int, how: str, name: str) -> None:
    """Let a fault befall a host.

    \b
    kill       all its processes are gone at once, as when it loses power
    link-down  nothing gets in or out; link-up: it does again
    freeze     all its processes stand still; thaw: they go on
    """
    from earl.rehearsal.cluster import fail as befall
    from earl.rehearsal.plan import load

    befall(load(name), host, how)


@command.command()
@_host
@_name
def heal(host: int, name: str) -> None:
    """Restart a host.

    As a machine that comes back: its link is up, what ran there is gone, and a fresh Ray node joins.
    """
    from earl.rehearsal.cluster import heal as restart
    from earl.rehearsal.plan import load

    restart(load(name), host)
