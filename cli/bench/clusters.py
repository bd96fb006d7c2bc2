"""Benchmarks of the placements on Ray."""

from pathlib import Path

import click

from earl.cli.bench.shared import show, training_options
from earl.cli.options import json_option

fresh_option = click.option(
    "--runs",
    "root",
    type=click.Path(path_type=Path),
    required=True,
    help="A new folder for the runs.",
)
set_option = click.option(
    "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
)


@click.command()
@fresh_option
@set_option
@json_option
def placements(root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Compare the numbers of one run under every placement and layout.

    Tic-Tac-Toe, one seed, 10 steps of imitation and 20 of reinforcement learning: embedded, then colocated and
    disaggregated with dp × tp = 1 × 1, 2 × 1, 1 × 2 and 2 × 2 learner ranks and two samplers.

    \b
    loss, reward   largest difference over all steps from the embedded run
    any, which     the same of whatever number differs most
    """
    from earl.benchmarks.placements import run

    show(run(root, assignments), as_json)


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@set_option
@json_option
def switching(repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure what it takes to split the processes of rollout anew between two steps.

    Four processes with a model of 5M parameters on Ray: one copy over all four, two over two each, four whole ones, in
    turn. After each switch a step's episodes are played again and compared with the first ones.

    \b
    switch     seconds until the samplers have weights and were probed
    split      of these, until they were ready for weights
    rollout    seconds of a step's episodes
    same       share of the episodes with the tokens of the first split
    logprobs   largest difference of these episodes' log-probs
    """
    from earl.benchmarks.switching import run

    show(run(repeats, assignments), as_json)


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Each strikes 28 times.")
@click.option("--hosts", type=click.IntRange(min=3), help="Strike hosts of a rehearsed cluster of so many instead.")
@click.option("--rate", default="500mbit", show_default=True, help="Of that cluster's links.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the blows and of the runs.")
@fresh_option
@set_option
@json_option
def faults(
    rounds: int, hosts: int | None, rate: str, seed: int, root: Path, assignments: tuple[str, ...], as_json: bool
) -> None:
    """Strike runs on Ray in every role and stage, and compare them with one left alone.

    Short runs of Tic-Tac-Toe with two learner ranks and two rollout workers. In every round each role is killed
    (SIGKILL) and stopped (SIGSTOP) once in each of its stages, a moment after the stage began. With --hosts whole hosts
    are lost, frozen and cut off, and the object store is filled; this takes root (see `earl cluster`).

    \b
    blows                how many were struck, by role and by kind
    runs                 same: those that ended with the numbers of the one left alone
    episodes             learned from, in that one and in the others
    seconds_to_recover   from where a loss was noticed to where the work went on
    """
    from earl.benchmarks.faults import hosts as strike_hosts
    from earl.benchmarks.faults import processes

    if hosts is None:
        show(processes(root, seed, rounds, assignments), as_json)
    else:
        show(strike_hosts(root, seed, hosts, rate, assignments), as_json)


@click.command()
@click.option("--arm", "arms", multiple=True, help="One arm, such as adaptive; may be given several times. None: all.")
@fresh_option
@set_option
@json_option
def adaptive(arms: tuple[str, ...], root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Compare layouts that follow growing contexts with layouts that stay, under a budget of memory.

    Arithmetic on Ray, four learner ranks and four samplers in turns, chains that grow from step to step. Arms: without
    a budget and without switching; layouts that stay; the selector's. Runs that are there already are read.

    
    seconds        of all steps; switch_seconds of these
    out_of_memory  what ended the run, else nothing
    peak_bytes     that any process took above what it had at its start
    difference     of any loss from that of the run without a budget, at most
    switches       by stage
    speedup        the best layout that stays over the adaptive ones
    """
    from earl.benchmarks.adaptive import run

    show(run(root, arms, assignments), as_json)


@click.command()
@training_options("asynchronous", steps=40, seeds=6)
def asynchronous(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure rollout ahead of the learner where environments are slow.

    Tic-Tac-Toe on Ray, one learner and one rollout worker, with simulated waits before every answer: 0.05 s in the
    median, with a heavy tail. Three arms that take turns: rollout and learner take turns, or rollout is at most one or
    two versions ahead, with truncated importance weights by token.

    \b
    seconds         of a step, over the steps of all seeds but the first four and the last
    waited          of these, for episodes, in the median step
    staleness_max   versions that the oldest token was behind
    not_lost        share of the games of both seats that the last weights do not
                    lose, with the 95 % interval
    speedup         over the synchronous arm by the median step, seed by seed
    not_lost_minus_synchronous   difference with its 95 % interval, over the seeds
    """
    from earl.benchmarks.asynchronous import run

    show(run(root, seeds, steps, assignments), as_json)
