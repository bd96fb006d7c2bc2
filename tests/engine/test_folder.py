"""A model written in several files, and only parts of them read."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import torch
from transformers import AutoModelForCausalLM

from earl.config import LearnerConfig
from earl.engine import checkpoint_tensors
from earl.engine.checkpoint_tensors import Stored, TensorPart, weight_files
from earl.engine.learner import Learner
from earl.engine.ranks import Ranks
from earl.parallel.layout import Box, Layout
from earl.placement.peers import Peers


def test_files_have_a_largest_size_and_transformers_reads_them(small, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_tensors, "FILE_BYTES", 4000)
    model = small().model
    learner_of(small()).snapshot()(tmp_path)
    tensors = model.state_dict()
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[-1].name == f"model-{len(files):05}-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    read = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_one_rank_writes_what_save_pretrained_writes(small, tmp_path):
    model = small().model
    learner_of(small()).snapshot()(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    assert (tmp_path / "ours/model.safetensors").read_bytes() == (tmp_path / "theirs/model.safetensors").read_bytes()


def test_tensors_are_dealt_out_by_their_bytes():
    # 9, 6, 4 and 1 numbers over two ranks: 9 to the first, 6 and 4 to the second, 1 to the first: 10 and 10.
    shapes = {"words": (9,), "layer": (2, 3), "norm": (), "head": (4,)}
    parts = {name: TensorPart(torch.zeros(0), Box((), ()), shape) for name, shape in shapes.items()}
    first, second = weight_files(parts, 2)
    assert (first.name, first.rank, [*first.tensors]) == ("model-00001-of-00002.safetensors", 0, ["words", "norm"])
    assert (second.rank, second.tensors) == (1, {"layer": 24, "head": 16})
    assert [file.rank for file in weight_files({"words": parts["words"]}, 3)] == [0], "the others have nothing"


def test_a_snapshot_in_host_memory_is_copied_when_the_learner_moves_on(small, tmp_path):
    learner = learner_of(small())
    first, second = learner.snapshot(), learner.snapshot()
    own = next(learner.scorer.parameters())
    assert shares(first, own) and shares(second, own)
    first(tmp_path / "before")
    learner.restore(tmp_path / "before")  # sets all tensors
    assert not shares(second, own)
    with torch.no_grad():
        own.zero_()
    second(tmp_path / "after")
    names = ("model.safetensors", "learner/rank-00000.safetensors")
    assert all((tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes() for name in names)


def test_a_learner_waits_for_a_snapshot_that_is_being_written(small, tmp_path, monkeypatch):
    learner, begun, ended = learner_of(small()), Event(), Event()
    snapshot, save = learner.snapshot(), checkpoint_tensors.save_file
    monkeypatch.setattr(
        checkpoint_tensors, "save_file", lambda *_, **told: (begun.set(), ended.wait(10), save(*_, **told))
    )
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(snapshot, tmp_path)
        assert begun.wait(10)
        moving = threads.submit(snapshot.keep)
        assert wait([moving], 0.2).not_done
        ended.set()
        writing.result(10), moving.result(10)


def shares(snapshot, parameter):
    return any(
        tensor.data_ptr() == parameter.data_ptr() for file in snapshot._files for tensor in file.tensors.values()
    )


def learner_of(policy):
    return Learner(policy, LearnerConfig(), 1.0, Ranks(Peers()), values=True)


def test_parts_of_a_hugging_face_folder(small, tmp_path):
    policy = small()
    policy.save(tmp_path)
    stored, words = Stored(tmp_path), policy.model.get_input_embeddings().weight
    box = Layout(2, 2).box(words.shape, 0, 3)  # 106 words: 53 by tp, then 27 + 26 by dp
    assert (box.offset[0], box.shape[0]) == (53 + 27, 26)
    assert torch.equal(stored.read("model.embed_tokens.weight", box), words[80:106])
