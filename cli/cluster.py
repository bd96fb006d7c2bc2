"""`earl cluster`: rehearses a cluster of several hosts on one machine."""

from dataclasses import asdict

import click

from earl.cli.options import declared, print_json


@click.group(**declared("cluster"))
def command() -> None:
    pass


@command.command(**declared("cluster up"))
def up(hosts: int, rate: str, cpus: int, memory_mib: int, name: str, as_json: bool) -> None:
    from earl.rehearsal.cluster import up as bring_up

    cluster = bring_up(name, hosts, rate, cpus, memory_mib, say=lambda text: click.echo(text, err=True))
    if as_json:
        return print_json(asdict(cluster))
    click.echo(cluster.address)
    click.echo(f"train on it with: earl train ENV --placement disaggregated --address {cluster.address}", err=True)
    return None


@command.command(**declared("cluster status"))
def status(name: str, as_json: bool) -> None:
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


@command.command(**declared("cluster down"))
def down(name: str) -> None:
    from earl.rehearsal.cluster import down as take_down

    click.echo(f"cluster {take_down(name).name!r} is down", err=True)


@command.command(**declared("cluster fail"))
def fail(host: int, how: str, name: str) -> None:
    from earl.rehearsal.cluster import fail as befall
    from earl.rehearsal.plan import load

    befall(load(name), host, how)


@command.command(**declared("cluster heal"))
def heal(host: int, name: str) -> None:
    from earl.rehearsal.cluster import heal as restart
    from earl.rehearsal.plan import load

    restart(load(name), host)
