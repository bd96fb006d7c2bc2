"""`earl export`: writes a run's model as a Hugging Face folder."""

from pathlib import Path

import click

from earl.cli.options import json_option, print_json, runs_option


@click.command()
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--checkpoint", default="best", show_default=True, metavar="best|last|STEP")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@runs_option
@json_option
def command(run: str, folder: Path, checkpoint: str, dtype: str, root: Path, as_json: bool) -> None:
    """Write a run's model as a plain Hugging Face folder.

    RUN is a name in --runs or a path. FOLDER is made; transformers, vLLM and others load it without earl: weights,
    tokenizer with its chat template, configuration. Adapters are merged into the weights. The learner's state stays in
    the checkpoint.
    """
    from earl.cli.players import need_run
    from earl.engine.export import export
    from earl.runs.storage import storage
    from earl.runs.summary import chosen_checkpoint

    chosen = chosen_checkpoint(need_run(root, run), checkpoint)
    with storage(folder, then="export again"):
        files = export(chosen.path, folder, dtype)
    if as_json:
        print_json({"folder": str(folder), "step": chosen.step, "dtype": dtype, "files": [path.name for path in files]})
    else:
        click.echo(f"{folder}: the model of step {chosen.step}, {dtype}, {len(files)} files")
