"""`earl export`: writes a run's model as a Hugging Face folder."""

from pathlib import Path

import click

from earl.cli.options import declared, print_json


@declared("export")
def command(run: str, folder: Path, checkpoint: str, dtype: str, root: Path, as_json: bool) -> None:
    from earl.engine.export import export
    from earl.runs.folder import open_run
    from earl.runs.storage import storage
    from earl.runs.summary import chosen_checkpoint

    chosen = chosen_checkpoint(open_run(root, run), checkpoint)
    with storage(folder, then="export again"):
        files = export(chosen.path, folder, dtype)
    if as_json:
        print_json({"folder": str(folder), "step": chosen.step, "dtype": dtype, "files": [path.name for path in files]})
    else:
        click.echo(f"{folder}: the model of step {chosen.step}, {dtype}, {len(files)} files")
