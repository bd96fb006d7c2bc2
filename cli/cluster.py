"""`earl cluster`: rehearses a cluster of several hosts on one machine."""

from dataclasses import asdict

import click

from earl.cli.options import declared, declared_group, print_json
from earl.cli.text import print_table
from earl.rehearsal import cluster as rehearsal
from earl.rehearsal.plan import load

command = declared_group("cluster")


@declared("up", command)
def up(hosts: int, rate: str, cpus: int, memory_mib: int, name: str, as_json: bool) -> None:
    cluster = rehearsal.up(name, hosts, rate, cpus, memory_mib, say=lambda text: click.echo(text, err=True))
    if as_json:
        return print_json(asdict(cluster))
    click.echo(cluster.address)
    return click.echo(
        f"train on it with: earl train ENV --placement disaggregated --address {cluster.address}", err=True
    )


@declared("status", command)
def status(name: str, as_json: bool) -> None:
    cluster = load(name)
    hosts = [asdict(host) for host in rehearsal.status(cluster)]
    if as_json:
        return print_json({**asdict(cluster), "address": cluster.address, "status": hosts})
    click.echo(f"{cluster.name}: {cluster.hosts} hosts at {cluster.rate}, Ray's head at {cluster.address}", err=True)
    rows = [{**host, "in_ray": "yes" if host["in_ray"] else "no"}.values() for host in hosts]
    return print_table(("host", "address", "link", "processes", "in Ray"), rows)


@declared("down", command)
def down(name: str) -> None:
    click.echo(f"cluster {rehearsal.down(name).name!r} is down", err=True)


@declared("fail", command)
def fail(host: int, how: str, name: str) -> None:
    rehearsal.fail(load(name), host, how)


@declared("heal", command)
def heal(host: int, name: str) -> None:
    rehearsal.heal(load(name), host)
