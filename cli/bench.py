"""`earl bench`: runs the benchmarks on this machine and prints their results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from earl.cli.options import F, json_option, print_json

SPREAD = {"median", "min", "max"}


def recipe_options(command: F) -> F:
    command = json_option(command)
    command = click.option(
        "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
    )(command)
    return click.option("--env", default="tictactoe", show_default=True, help="Whose packaged recipe is used.")(command)


def training_options(name: str, steps: int, seeds: int = 3) -> Callable[[F], F]:
    def take(command: F) -> F:
        command = json_option(command)
        command = click.option(
            "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
        )(command)
        command = click.option(
            "--runs",
            "root",
            type=click.Path(path_type=Path),
            default=Path("runs") / name,
            show_default=True,
            help="Where the runs lie; those that are there already are taken up.",
        )(command)
        command = click.option(
            "--steps", type=click.IntRange(min=1), default=steps, show_default=True, help="Of reinforcement learning."
        )(command)
        return click.option("--seeds", type=click.IntRange(min=1), default=seeds, show_default=True)(command)

    return take


def show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(result)
    for name, value in _flat(result):
        click.echo(f"{name:<31} {value}")
    return None


def _flat(result: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """One line per number, named by its path; the three numbers of a spread share a line."""
    lines: list[tuple[str, str]] = []
    for name, value in result.items():
        if not isinstance(value, Mapping):
            lines.append((path + name, _number(value)))
        elif value.keys() == SPREAD:
            low, high = _number(value["min"]), _number(value["max"])
            lines.append((path + name, f"{_number(value['median'])}  ({low} … {high})"))
        else:
            lines += _flat(value, f"{path}{name}.")
    return lines


def _number(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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


@click.command()
@training_options("ceiling", steps=100)
def ceiling(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure what a context limit costs, and whether an automatic one avoids it.

    Tic-Tac-Toe with full history against heuristic and perfect play, where better play makes longer games. Three arms
    that differ in the limit alone: 72 tokens, 120, and "auto" that begins at 72.

    \b
    not_lost         share of games not lost against perfect play, exactly evaluated
    cut              share of the last step's training episodes that met the limit
    limit            at the end, in tokens
    auto_minus_120   difference of the means of not_lost; auto_minus_72 alike
    """
    from earl.benchmarks.ceiling import run

    show(run(root, seeds, steps, assignments), as_json)


@click.command()
@training_options("collapse", steps=100)
def collapse(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure whether learning collapses when thinking that pays grows into the context limit.

    Figure 1 of the EARL paper (arXiv 2510.05943) at small scale: chains of 4 to 16 operations are worked out in
    writing, and reward is to be had by thinking longer. Arms that differ in the limit alone: fixed at 60 tokens, where
    16 operations need 72; the same with episodes that were cut off left out of learning; "auto" that begins at 60; and
    96, which cuts nothing.

    \b
    reward     of training episodes: first, best and last; means over 5 steps
    best_step  at which the best began
    fallen     how far the last reward lies below the best
    solved     share of the chains, first and last
    reply      tokens that the model wrote in an episode, first and last
    cut        last: share of the episodes that met the limit; steps: in which at least
               a tenth did
    limit      last, in tokens
    """
    from earl.benchmarks.collapse import run

    show(run(root, seeds, steps, assignments), as_json)


@click.command()
@click.option("--histories", type=click.IntRange(min=1), default=10, show_default=True, help="Histories per family.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated histories.")
@click.option("--calibration", is_flag=True, help="Those that chose the forecast's constants in place of fresh ones.")
@click.option(
    "--runs", "root", type=click.Path(path_type=Path), metavar="FOLDER", help="Forecast the runs in a folder too."
)
@json_option
def forecast(histories: int, seed: int, calibration: bool, root: Path | None, as_json: bool) -> None:
    """Measure how often the forecast of context growth is right.

    Histories of 14 shapes under six kinds of noise, of which five and two did not choose the forecast's constants. Each
    is forecast at four points in time, and step by step until a warning is due.

    \b
    coverage     how often the limit was reached within the 80 % interval: over all; of
                 those that were reached, or were not, within 200 steps; by family, by noise
    misses       early: reached before the interval; late: after it, or never
    interval     open: share without an end; width and error of the median: relative to
                 the steps that remained, medians
    warning      in_time: share warned at least 5 steps ahead; lead: median steps ahead;
                 false: warnings whose limit was not reached within 50 steps; needless:
                 share warned of those that do not reach it within 200
    expected     how often the value 10 steps ahead was at most the upper 90 %
    recorded     the same of recorded runs, with limits at levels that they came to
    """
    from earl.benchmarks.forecast import run

    show(run(histories, seed, calibration, root), as_json)


@click.command()
@click.option("--updates", type=click.IntRange(min=1), default=20, show_default=True, help="Under every layout.")
@json_option
def layouts(updates: int, as_json: bool) -> None:
    """Compare a learner's losses under every layout with those of one process.

    A small model, one seed, made-up rows, PPO with a value head and a KL divergence; four processes on this machine,
    joined by gloo. Differences are the largest over all updates, of loss, value loss, entropy and KL divergence.

    \b
    losses    by variant (untied and tied output layer, recomputed activations,
              low-rank adapters) and layout (dp, tp, cp)
    resumed   of one run that goes on under another layout again and again
    """
    from earl.benchmarks.layouts import run

    result = run(updates)
    if as_json:
        return print_json(result)
    for row in result["losses"]:
        name = f"{row['variant']}, dp {row['dp']}, tp {row['tp']}, cp {row['cp']}"
        click.echo(f"{name:<54} {row['difference']:.1e}")
    for row in result["resumed"]:
        name = f"resumed, {row['from']} to {row['to']}"
        click.echo(f"{name:<54} {row['difference']:.1e}")
    return None


@click.command()
@click.option("--tokens", type=click.IntRange(min=64), default=32_768, show_default=True, help="Of the sample.")
@click.option("--vocab", type=click.IntRange(min=106), default=150_000, show_default=True)
@json_option
def memory(tokens: int, vocab: int, as_json: bool) -> None:
    """Measure the peak memory of one update on one long sample. Linux only; takes minutes.

    A small model with a large vocabulary, in a process of its own; half of the sample is learned from.

    \b
    kept, recompute     activations kept, or computed again: peak_bytes beyond what the
                        process had before, floor_bytes computed from shapes (parts),
                        and their ratio
    full_logits_bytes   what all logits would take
    budget_bytes        what a small machine may have, to compare with
    """
    from earl.benchmarks.memory import run

    show(run(tokens, vocab), as_json)


@click.command()
@click.option("--only", metavar="WORD", help="Configurations with this word in their name.")
@click.option(
    "--cases",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A JSON list of other configurations, with the keys of a row's `case`.",
)
@json_option
def footprint(only: str | None, cases: Path | None, as_json: bool) -> None:
    """Compare the memory that stages are predicted to take with what they do. Linux only; takes minutes.

    Updates, passes of the model and of its reference, and sampling; each in processes of its own, one, two or four,
    beyond what a process has before it makes a model. On a machine with CUDA, learners of one process on its GPU.

    \b
    predicted, measured   MiB at the peak, of the fullest process
    error                 of the prediction: below zero, it says too little
    under, over           the largest errors to either side
    """
    from earl.benchmarks.footprint import cases_of, run

    result = run(cases_of(only, cases))
    if as_json:
        return print_json(result)
    for row in result["rows"]:
        sizes = (row[f"{kind}_bytes"] / (1 << 20) for kind in ("predicted", "measured"))
        click.echo("{:<28} {:>8.1f} {:>8.1f}".format(row["name"], *sizes) + f" {row['error']:>+7.1%}  {row['moment']}")
    click.echo(f"{result['configurations']} configurations: under {result['under']:.1%}, over {result['over']:.1%}")
    return None


@click.command()
@click.option("--write", is_flag=True, help="Store the fitted coefficients, which `earl plan` predicts with.")
@json_option
def calibration(write: bool, as_json: bool) -> None:
    """Fit the throughput model to published tables, and measure how far it is from them.

    185 measurements of three serving engines on H100 and A100. The coefficients are fitted to all of them, then again
    to all but one TP, one context (prompt+reply), one GPU or one model, which are predicted with what the others tell.
    Rows of an engine that the others know nothing of are not judged. A minute or two.

    \b
    error        mean absolute relative error of throughput, of dense models and of a
                 mixture of experts apart; by: of each part, both together
    choice       of TP by predicted tokens per GPU, over cells with several; near: share
                 with the best one or one within 3 %; regret: share of tokens lost
    interval_80  share of left-out rows inside their 80 % interval
    contexts     published labels of which context is served
    kernels      single operations, which nothing is fitted to
    coefficients fitted and believed before, with the spread of their logarithms
    """
    from earl.benchmarks.calibration import run

    show(run(write), as_json)


@click.command()
@click.option("--episodes", type=click.IntRange(min=1), default=256, show_default=True, help="Episodes of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@recipe_options
def rollout(env: str, episodes: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure the local sampler against transformers.generate.

    Both play the same games with the same model, after a short warm start so that games last. `generate` is called once
    per turn for all episodes, padded on the left, and keeps nothing between turns.

    \b
    local, generate      episodes_per_second and (sampled) tokens_per_second
    ratio                of their episodes per second, pair by pair of repeats
    seconds              where one local repeat spends its time: setup (making
                         environments and first prompts), sampler, environment
                         (rule and step), chat (templates, decoding), python (the rest)
    parameters           of the model; threads: that torch uses
    turns_per_episode    in the median repeat
    """
    from earl.benchmarks.rollout import run

    show(run(env, episodes, repeats, assignments), as_json)


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@recipe_options
def sampler(env: str, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure all samplers with a model of 1M and one of 5M parameters.

    Each plays 1, 16, 64 and 128 games at once, after a short warm start so that games last: earl's own sampler,
    transformers.generate, and vLLM, which has to be installed, eager and compiled. Engines start before the clock does.

    \b
    local, generate, vllm_eager, vllm_compiled   episodes_per_second and (sampled)
                    tokens_per_second
    fastest         by episodes per second, round by round
    auto            what `sampler.engine = "auto"` takes in this case
    auto_over_best  its episodes per second over those of the fastest other, pair by
                    pair of repeats
    """
    from earl.benchmarks.sampler import run

    show(run(env, repeats, assignments), as_json)


@click.command()
@click.option("--steps", type=click.IntRange(min=3), default=10, show_default=True, help="Steps of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@recipe_options
def step(env: str, steps: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure training steps with one process and with two.

    Steps of reinforcement learning after a short warm start; the first and the last do not count.

    \b
    one, two   processes: seconds of a whole step, the median seconds of its stages,
               and the shares of all time that tracking contexts and storing
               episodes took
    speedup    of two processes over one, pair by pair of repeats
    episodes   of one step
    """
    from earl.benchmarks.step import run

    show(run(env, steps, repeats, assignments), as_json)


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@recipe_options
def checks(env: str, steps: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure what checking untrusted values and files takes.

    One process trains after a short warm start and writes its report; every check is timed where it is called. The
    report's checks are compared with the whole command `earl report`.

    \b
    step_share, report_share               seconds in checks over all seconds
    checks_per_step, checks_per_report     how many there were
    """
    from earl.benchmarks.step import overhead_of_checks

    show(overhead_of_checks(env, steps, repeats, assignments), as_json)


@click.command()
@click.option("--histories", type=click.IntRange(min=1), default=1000, show_default=True, help="Simulated runs.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="To simulate in.")
@json_option
def selector(histories: int, seed: int, processes: int, as_json: bool) -> None:
    """Measure how close the Parallelism Selector comes to one who knows all that comes.

    Runs of 300 steps: contexts that grow in 16 shapes, 8 layouts whose times cross and whose memory ends, noise of 1 to
    8 %, predictions that are 6 % off, switches that cost a tenth of a step to five steps.

    \b
    loss         seconds beyond those of the best sequence of choices, as a share: mean,
                 p95, worst, and the share of runs within 3 %. selector: layouts were
                 measured when the job started; unprofiled: predictions only; by_range:
                 the rule of the EARL paper; static: the best that fits throughout,
                 known only afterwards
    selector     switches of a run; the most switches back to what was left within 100
                 steps, in any 100 steps, and those that memory did not force; steps that
                 ran out of memory
    families     the selector's loss by shape
    adversary    a load that turns against whatever was chosen: loss against the best
                 static choice
    decide_ms    processor time of a decision among 64 candidates, the median
    """
    from earl.benchmarks.selector import run

    show(run(histories, seed, processes), as_json)


COLUMNS = (
    ("kind", "{}"),
    ("processes", "{}"),
    ("columns", "{}"),
    ("payload_bytes", "{:,}"),
    ("centralised_s", "{:.3f}"),
    ("direct_s", "{:.3f}"),
    ("ideal_direct_s", "{:.3f}"),
    ("ratio", "{:.1f}"),
    ("auto", "{}"),
)


@click.command()
@click.option("--hosts", type=click.IntRange(2, 64), default=4, show_default=True, help="Each in a namespace.")
@click.option("--rate", default="500mbit", show_default=True, help="Of every link and direction, as `tc` writes it.")
@click.option("--ranks-per-host", "ranks", type=click.IntRange(min=1), help="Processes of a host, in place of both.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Of both ways, in turn.")
@click.option("--ray", is_flag=True, help="Between Ray's actors: the smallest of the paper's payloads.")
@json_option
def dispatch(hosts: int, rate: str, ranks: int | None, repeats: int, ray: bool, as_json: bool) -> None:
    """Measure transfers between hosts, through a controller and directly.

    Hosts are network namespaces joined by shaped links, which takes root (see `earl cluster`); without it all meet on
    loopback. Payloads are those of the EARL paper (arXiv 2510.05943; 46, 93 and 187 MiB of each worker, contexts of 8K,
    16K and 32K), whole at 1 Gbit/s and in proportion at other rates: log-probs alone, and with fewer rows all columns;
    then rows of any length, small transfers, and several processes on a host that are replicas of each other.

    \b
    payload_bytes            of each process
    centralised_s, direct_s  medians over repeats; with spread under centralised, direct
    ideal_direct_s           what the busiest link needs for the payload alone
    ratio                    of centralised over direct
    auto, auto_loss          the transport that would be taken, and what it loses against
                             the fastest
    planned_, crossed_bytes  that leave hosts; and did, as the kernel counts them
    objects, driver_bytes    of `--ray`: through its object store, where direct is over
                             connections that last; and over the link of the driver
    balance                  by how much the slowest of 32 consumers of 10,000 rows has more
                             work than the mean
    """
    from earl.benchmarks.dispatch import run

    result = run(hosts, rate, ranks, repeats, ray)
    if as_json:
        return print_json(result)
    rows = result.pop("rows")
    click.echo("  ".join(f"{name:>14}" for name, _ in COLUMNS))
    for row in rows:
        click.echo("  ".join(f"{_cell(row[name], form):>14}" for name, form in COLUMNS))
    return show(result, as_json)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


@click.command()
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Who have the rows.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Of the learner.")
@click.option("--repeats", type=click.IntRange(min=1), default=11, show_default=True, help="Of every way, in turn.")
@json_option
def ways(workers: int, ranks: int, repeats: int, as_json: bool) -> None:
    """Measure the ways that a run's rows take, by Ray's object store and from process to process.

    The actors are those of a run on this machine; rows of some 500 tokens are made up.

    \b
    tokens         of each worker
    bytes          that ranks lack
    objects, peers, auto   seconds of a dispatch by each way
    auto_takes     the way that is taken once both were tried
    auto_loss      what it loses against the faster one
    """
    from earl.benchmarks.transport_paths import run

    show(run(workers, ranks, repeats), as_json)


@click.command()
@click.option("--hidden", type=click.IntRange(min=64), default=512, show_default=True, help="Width of the model.")
@click.option("--layers", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--bucket", "bucket_mib", type=click.IntRange(min=1), default=8, show_default=True, help="In MiB.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@json_option
def weights(hidden: int, layers: int, bucket_mib: int, repeats: int, as_json: bool) -> None:
    """Carry a model's weights from layout to layout, between processes of this machine joined by gloo. Linux only.

    A model of Qwen3's kind in bfloat16, of random bits; every process compares what it got. Processes share one
    machine; which of them count as one host, the plan is told.

    \b
    across_bytes    between hosts, counted at the transport; bound_bytes: no plan is
                    below; and their ratio
    inside_bytes    between processes of one host
    seconds         until the last process has its boxes, the median
    extra_bytes     the most that a process had resident beyond its boxes, beside
                    bucket_bytes, and stated_bytes by the plan
    peak_bytes      of boxes and buffers of one process together, as the plan states it
    """
    from earl.benchmarks.weights import run

    result = run(hidden, layers, bucket_mib, repeats)
    if as_json:
        return print_json(result)
    click.echo(f"model {result['model_bytes'] / 1e6:.1f} MB, buckets of {result['bucket_bytes'] / 1e6:.1f} MB")
    for row in result["rows"]:
        click.echo(
            f"{row['case']:<56} {row['across_bytes'] / 1e6:7.1f} MB, {row['ratio']:.3f} of the bound, "
            f"{row['seconds']:.3f} s, {row['extra_bytes'] / 1e6:.1f} MB beside the boxes"
        )
    return None


@click.group()
def command() -> None:
    """Measure rollouts, samplers, steps, learners, placements, transfers, forecasts, and contexts' limits.

    Repeats take turns, so that whatever else the machine does falls on both sides alike. Wherever a number is repeated,
    its median, min and max are told.
    """


for benchmark in (
    rollout,
    sampler,
    step,
    checks,
    layouts,
    memory,
    footprint,
    weights,
    ceiling,
    collapse,
    forecast,
    placements,
    asynchronous,
    adaptive,
    faults,
    switching,
    dispatch,
    ways,
    selector,
    calibration,
):
    command.add_command(benchmark)
