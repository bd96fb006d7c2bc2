"""Benchmarks of rollouts and of training steps."""

import click

from earl.cli.bench.shared import recipe_options, show


@click.command()
@click.option("--episodes", type=click.IntRange(min=1), default=256, show_default=True, help="Episodes of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@recipe_options
def rollout(env: str, episodes: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure the embedded sampler against transformers.generate.

    Both play the same games with the same model, after a short warm start so that games last. `generate` is called once
    per turn for all episodes, padded on the left, and keeps nothing between turns.

    \b
    embedded, generate   episodes_per_second and (sampled) tokens_per_second
    ratio                of their episodes per second, pair by pair of repeats
    seconds              where one embedded repeat spends its time: setup (making
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
    embedded, generate, vllm_eager, vllm_compiled   episodes_per_second and (sampled)
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

    One process trains after a short warm start and writes its report; every check is timed where it is called.

    \b
    step_share, report_share               seconds in checks over all seconds
    checks_per_step, checks_per_report     how many there were
    """
    from earl.benchmarks.checks import run

    show(run(env, steps, repeats, assignments), as_json)
