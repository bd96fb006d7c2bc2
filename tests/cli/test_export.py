"""`earl export`: a folder that transformers loads, without anything of the learner's."""

from pathlib import Path

import torch


def test_the_best_model_of_a_run(earl, trained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said = earl("export", trained, tmp_path / "model", "--json")
    assert said.code == 0, said.err
    checkpoint = trained / "checkpoints" / f"step-{said.json['step']:06}"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    kept = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), kept.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
    assert said.json["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert not {"state.json", "learner", "reference"} & set(said.json["files"])


def test_half_the_size(earl, trained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    (tmp_path / ".model-0123456789abcdef.tmp" / "part").mkdir(parents=True)  # of an export that was killed
    assert earl("export", trained, tmp_path / "model", "--checkpoint", "last", "--dtype", "bfloat16").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").dtype == torch.bfloat16


def test_what_is_there_is_not_overwritten(earl, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    said = earl("export", trained, tmp_path)
    assert (said.code, said.out) == (2, "")
    assert "is there already; name a new or an empty folder" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
