"""A model written in several files, and only parts of them read."""

import json

import torch
from transformers import AutoModelForCausalLM

from earl.engine import checkpoint_tensors
from earl.engine.checkpoint_tensors import Stored, write_model
from earl.parallel.layout import Layout


def test_files_have_a_largest_size_and_transformers_reads_them(small, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_tensors, "FILE_BYTES", 4000)
    model = small().model
    tensors = model.state_dict()
    write_model(tmp_path, model, tensors)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[-1].name == f"model-{len(files):05}-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    read = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_parts_of_a_hugging_face_folder(small, tmp_path):
    policy = small()
    policy.save(tmp_path)
    stored, words = Stored(tmp_path), policy.model.get_input_embeddings().weight
    box = Layout(2, 2).box(words.shape, 0, 3)  # 106 words: 53 by tp, then 27 + 26 by dp
    assert (box.offset[0], box.shape[0]) == (53 + 27, 26)
    assert torch.equal(stored.read("model.embed_tokens.weight", box), words[80:106])
