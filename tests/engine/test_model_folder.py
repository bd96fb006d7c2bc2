"""Model folders of strangers: no code of theirs runs, nothing outside is read or asked, and what is broken is said."""

import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from safetensors.torch import load_file, save_file

from earl.config import ModelConfig
from earl.engine.checkpoint_tensors import Stored
from earl.engine.export import export
from earl.engine.model import load, make, meta_policy, shape, tokenizer_of
from earl.engine.served import served_sampler
from earl.engine.source import folder_of
from earl.errors import EarlError
from earl.reports.data import model_facts
from earl.runs.storage import step_name

READERS = {
    "load": load,
    "shape": lambda folder: shape(ModelConfig(path=str(folder))),
    "outline": lambda folder: meta_policy(ModelConfig(path=str(folder))),
    "tokenizer_of": lambda folder: tokenizer_of(ModelConfig(path=str(folder))),
    "served": lambda folder: served_sampler("http://127.0.0.1:1/v1", str(folder), "any"),
}
CODE = "import pathlib; pathlib.Path({!r}).touch()\n"
KERNEL = "kernels-community/flash-attn"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make(ModelConfig(hidden=16, layers=1, heads=2, head_dim=8, intermediate=24), seed=1).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A whole model, to be spoilt."""
    return shutil.copytree(saved, tmp_path / "model")


def change(path, **values):
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, **values}))


def spoil_with_code(folder, file, values):
    change(folder / file, **values)
    canary = folder.parent / "canary"
    for name in (
        "modeling_evil",
        "configuration_evil",
        "tokenization_evil",
        "json",
        "torch",
        "safetensors",
        "generate",
    ):
        (folder / f"{name}.py").write_text(CODE.format(str(canary)))
    return canary


AUTO_MAP = {
    "AutoConfig": "configuration_evil.Evil",
    "AutoModelForCausalLM": "modeling_evil.Evil",
    "AutoTokenizer": ["tokenization_evil.Evil", None],
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer_config.json", "processor_config.json", "generation_config.json"]
)
def test_a_models_own_code_is_refused_and_not_run(folder, monkeypatch, reader, file):
    canary = spoil_with_code(folder, file, {"model_type": "evil", "auto_map": AUTO_MAP})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(EarlError, match=rf"{file}: 'auto_map' names Python code .* choose a model"):
        reader(folder)
    assert not canary.exists()


def test_a_models_own_code_within_another_section_is_refused(folder):
    change(folder / "config.json", text_config={"auto_map": AUTO_MAP})
    with pytest.raises(EarlError, match="'auto_map' names Python code"):
        load(folder)


def test_python_files_beside_a_good_model_are_not_run(folder, monkeypatch):
    canary = spoil_with_code(folder, "config.json", {})
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(str(canary)))
    monkeypatch.chdir(folder)
    load(folder)
    assert not canary.exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_weights_are_refused_and_not_read(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Evil(str(folder.parent / "canary"))))
    with pytest.raises(EarlError, match=rf"{name} can run code when it is loaded, .* convert this one"):
        load(folder)
    assert not (folder.parent / "canary").exists()


def test_pickled_weights_beside_safetensors_are_not_read(folder):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(str(folder.parent / "canary"))))
    load(folder)
    assert not (folder.parent / "canary").exists()


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(EarlError, match=r"it has no \.safetensors file"):
        load(folder)


SETTINGS = [
    (
        "config.json",
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "quantized weights",
    ),
    ("config.json", {"compression_config": {"quant_method": "x"}}, "compressed weights"),
    ("config.json", {"speculators_config": {"verifier": {"name_or_path": "a/b"}}}, "names another model"),
    ("config.json", {"attn_implementation": KERNEL}, "code from the hub"),
    ("config.json", {"_attn_implementation": KERNEL}, "code from the hub"),
    ("config.json", {"text_config": {"attn_implementation": {"": KERNEL}}}, "code from the hub"),
    ("config.json", {"experts_implementation": KERNEL}, "code from the hub"),
    ("config.json", {"configuration_files": ["../config.9.9.9.json"]}, "names another configuration"),
    ("config.json", {"transformers_weights": "adapter_model.bin"}, "names other weights"),
    ("adapter_config.json", {"base_model_name_or_path": "a/b", "peft_type": "LORA"}, "adapter of another model"),
    ("tokenizer_config.json", {"merges_file": "/dev/zero"}, "names other files"),
    ("tokenizer_config.json", {"vocab_file": "/etc/passwd"}, "names other files"),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.json"]}, "names other files"),
]


@pytest.mark.parametrize(("file", "values", "complaint"), SETTINGS)
def test_settings_that_load_what_is_elsewhere_are_refused(folder, file, values, complaint):
    change(folder / file, **values)
    with pytest.raises(EarlError, match=complaint):
        load(folder)


@pytest.mark.parametrize(
    "places",
    [
        {"model.embed_tokens.weight": "../../other.safetensors"},
        {"model.embed_tokens.weight": "/etc/passwd"},
        {"model.embed_tokens.weight": ".."},
        {"model.embed_tokens.weight": "pytorch_model.bin"},
        {"model.embed_tokens.weight": ["model.safetensors"]},
        [],
        None,
    ],
)
def test_an_index_that_leads_out_of_the_folder_is_refused(folder, places):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    with pytest.raises(EarlError, match=r"'weight_map' names .*, no .safetensors of the folder"):
        load(folder)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "additional_chat_templates/tool.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ],
)
def test_pipes_and_devices_are_refused_without_being_opened(folder, file, kind):
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(EarlError, match=r"no regular file|no config\.json"):
        load(folder)
    if file == "model.safetensors":
        with pytest.raises(EarlError, match="no regular file"):
            Stored(folder)


def test_links_to_regular_files_are_followed_as_in_the_hubs_cache(folder):
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for path in [*folder.iterdir()]:
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    (folder / "README.md").symlink_to(blobs / "not downloaded")
    load(folder)


@pytest.mark.parametrize(
    ("file", "size"), [("config.json", 10 << 30), ("tokenizer.json", 10 << 30), ("chat_template.jinja", 2 << 20)]
)
def test_huge_files_are_refused_before_they_are_read(folder, file, size):
    with (folder / file).open("a") as sparse:
        sparse.truncate(size)
    with pytest.raises(EarlError, match=rf"{file} has {size} bytes, and earl reads up to"):
        load(folder)


BROKEN = [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_broken_json_is_a_clear_error(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(EarlError, match=r"no model can be loaded"):
        load(folder)


CONFIGS = [
    {"hidden_size": 10**9},
    {"num_hidden_layers": 10**6},
    {"num_hidden_layers": 10**30},
    {"vocab_size": 10**12},
    {"vocab_size": 10**7},
    {"intermediate_size": 10**8},
    {"num_attention_heads": 10**6},
    {"head_dim": 10**8},
    {"num_hidden_layers": 900},
    {"hidden_size": -1},
    {"hidden_size": 0},
    {"hidden_size": "16"},
    {"hidden_size": [16]},
    {"hidden_size": None},
    {"hidden_size": 17},
    {"vocab_size": 5},
    {"num_attention_heads": 0},
    {"num_key_value_heads": 0},
    {"num_hidden_layers": "many"},
    {"layer_types": ["full_attention"] * 9},
    {"layer_types": 7},
    {"rope_parameters": {"rope_type": "nonsense"}},
    {"rope_parameters": 7},
    {"hidden_act": "os.system"},
    {"max_position_embeddings": "x"},
    {"get_text_config": 7},
    {"to_dict": 7},
    {"__class__": 7},
    {"model_type": "no-such-model"},
    {"model_type": "bert"},
    {"model_type": ["qwen3"]},
    {"model_type": "../../qwen3"},
    {"architectures": 7},
    {"dtype": "os.system"},
    {"dtype": 7},
    {"eos_token_id": "x"},
    {"text_config": {"model_type": "evil"}},
    {"tie_word_embeddings": "x"},
]


@pytest.mark.parametrize("values", CONFIGS, ids=str)
@pytest.mark.parametrize("reader", ["load", "shape", "outline"])
def test_an_odd_configuration_is_read_or_a_clear_error(folder, reader, values):
    change(folder / "config.json", **values)
    try:
        READERS[reader](folder)
    except EarlError as error:
        assert str(folder) in str(error)


@pytest.mark.parametrize("values", CONFIGS[:7], ids=str)
def test_absurd_shapes_are_refused_before_memory_is_taken(folder, values):
    change(folder / "config.json", **values)
    with pytest.raises(EarlError, match=r"and earl takes up to|are \d+ numbers of \d+"):
        load(folder)


TOKENIZERS = [
    {"tokenizer_class": "os.system"},
    {"tokenizer_class": "NoSuchTokenizer"},
    {"tokenizer_class": 7},
    {"chat_template": 7},
    {"chat_template": {"tool": "x"}},
    {"eos_token": None},
    {"eos_token": 7},
    {"eos_token": "<|new|>"},
    {"added_tokens_decoder": 7},
    {"added_tokens_decoder": {"900000000": {"content": "<|far|>", "special": True}}},
    {"extra_special_tokens": 7},
    {"model_max_length": "x"},
    {"init_inputs": [1, 2, 3]},
    {"__class__": 7},
    {"_tokenizer": 7},
    {"backend": "mistral"},
]


@pytest.mark.parametrize("values", TOKENIZERS, ids=str)
@pytest.mark.parametrize("reader", ["load", "tokenizer_of"])
def test_an_odd_tokenizer_is_read_or_a_clear_error(folder, reader, values):
    change(folder / "tokenizer_config.json", **values)
    try:
        READERS[reader](folder)
    except EarlError as error:
        assert str(folder) in str(error)


def test_a_tokenizer_without_an_end_is_refused(folder):
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(EarlError, match="no token that ends a reply"):
        load(folder)


def mutated(text, rng):
    """One value somewhere is replaced."""
    document = json.loads(text)
    place = document
    while True:
        key = rng.choice([*place] if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    place[key] = rng.choice([None, -1, 1 << 40, 0.5, "", "x" * 9, [], {}, [[]], {"type": "x"}, True])
    return json.dumps(document)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_mutated_descriptions_are_read_or_clear_errors(folder, file):
    rng, text = random.Random(file), (folder / file).read_text()
    for _ in range(60):
        (folder / file).write_text(mutated(text, rng))
        with suppress(EarlError):
            load(folder)


def header(document, body=b"", length=None):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"model.norm.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


WEIGHTS = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "a header without end": header({}, length=(1 << 63) - 1),
    "a header longer than the file": header({}, length=1 << 20),
    "a header of 200 MB": header({}, b" " * 10, length=200_000_000),
    "no JSON": header(b"nonsense"),
    "a deep header": header(b"[" * 100_000),
    "a list": header([]),
    "offsets beyond the file": header(tensor(offsets=(0, 1 << 40))),
    "offsets backwards": header(tensor(offsets=(4, 0)), b"1234"),
    "a shape that lies": header(tensor(shape=(1 << 40,)), b"1234"),
    "a shape that overflows": header(tensor(shape=(1 << 40, 1 << 40)), b"1234"),
    "a shape below 0": header(tensor(shape=(-1,)), b"1234"),
    "an unknown type": header(tensor(dtype="PICKLE"), b"1234"),
    "overlaps": header({**tensor(), "x": tensor()["model.norm.weight"]}, b"1234"),
    "places without end": header({"__metadata__": {"places": "[" * 100_000}, **tensor()}, b"1234"),
    "places of text": header({"__metadata__": {"places": '{"model.norm.weight": "x"}'}, **tensor()}, b"1234"),
    "places that are none": header({"__metadata__": {"places": "7"}, **tensor()}, b"1234"),
    "places below 0": header(
        {"__metadata__": {"places": '{"model.norm.weight": {"shape": [1], "offset": [-1]}}'}, **tensor()}, b"1234"
    ),
    "places of other dimensions": header(
        {"__metadata__": {"places": '{"model.norm.weight": {"shape": [1, 2], "offset": [0, 0]}}'}, **tensor()}, b"1234"
    ),
    "places outside": header(
        {"__metadata__": {"places": '{"model.norm.weight": {"shape": [1], "offset": [9]}}'}, **tensor()}, b"1234"
    ),
}


@pytest.mark.parametrize("content", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_lie_are_a_clear_error(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(EarlError, match=r"cannot be read as safetensors: "):
        Stored(folder)
    with pytest.raises(EarlError, match=r"cannot be read as safetensors|no model can be loaded"):
        load(folder)


def test_weights_of_a_terabyte_that_are_no_bytes_are_not_read(folder):
    with (folder / "model.safetensors").open("wb") as sparse:
        sparse.write(header({"x": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}))
        sparse.truncate(sparse.tell() + (1 << 40))
    with pytest.raises(EarlError, match=r"lack|no model can be loaded"):
        load(folder)


def test_weights_with_other_names_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({f"x.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EarlError, match=r"lack 'lm_head\.weight'"):
        load(folder)


def test_an_export_takes_no_file_that_a_link_leads_to(folder, tmp_path):
    (tmp_path / "secret").write_text("mine")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(EarlError, match=r"notes\.txt is a link, and a checkpoint has none"):
        export(folder, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_an_export_in_half_the_bytes_says_so(folder, tmp_path):
    export(folder, tmp_path / "exported", "bfloat16")
    whole, half = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "exported"))
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}
    assert all(torch.equal(half[name], tensor.bfloat16()) for name, tensor in whole.items())
    assert json.loads((tmp_path / "exported/config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_report_does_not_wait_for_a_pipe_in_a_checkpoint(folder, tmp_path, file):
    (tmp_path / "checkpoints").mkdir()
    checkpoint = folder.rename(tmp_path / "checkpoints" / step_name(3))
    (checkpoint / file).unlink()
    os.mkfifo(checkpoint / file)
    with suppress(EarlError):
        model_facts(tmp_path / "checkpoints")


@pytest.mark.parametrize("content", [b"[" * 100_000, b" " * (17 << 20)], ids=["deep", "huge"])
def test_a_report_of_a_deep_or_huge_description_is_a_clear_error(folder, tmp_path, content):
    (tmp_path / "checkpoints").mkdir()
    checkpoint = folder.rename(tmp_path / "checkpoints" / step_name(3))
    (checkpoint / "config.json").write_bytes(content)
    with pytest.raises(EarlError, match="the checkpoint is damaged"):
        model_facts(tmp_path / "checkpoints")


NETWORK = """
import sys
from earl.cli.main import run
from earl.engine.model import load
from earl.errors import EarlError
for folder in sys.argv[1:]:
    try:
        load(folder)
        print("loaded")
    except EarlError as error:
        print(str(error)[:200])
"""


@pytest.mark.slow
def test_a_local_folder_asks_nobody(folder, tmp_path):
    """Every kind of reference to the hub in one process; HF_ENDPOINT is a server that notes what it is asked."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_):
            pass

    hub = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    folders = [folder]
    for number, (file, values) in enumerate(
        [
            *((file, values) for file, values, _ in SETTINGS),
            ("config.json", {"_name_or_path": "a/b", "model_type": "mistral"}),
            ("config.json", {"attn_implementation": "flash_attention_2"}),
            ("config.json", {"auto_map": {"AutoConfig": "a/b--configuration_evil.Evil"}}),
            ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "name_or_path": "a/b"}),
            ("tokenizer_config.json", {"tokenizer_class": "MistralCommonBackend"}),
            ("processor_config.json", {"processor_class": "EvilProcessor"}),
            ("generation_config.json", {"assistant_model": "a/b"}),
        ]
    ):
        folders.append(shutil.copytree(folder, tmp_path / f"n{number}"))
        change(folders[-1] / file, **values)
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "home"),
    }
    command = [sys.executable, "-c", NETWORK, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, input="y\n" * 99, check=True)
    hub.shutdown()
    assert len(done.stdout.splitlines()) == len(folders), done.stdout + done.stderr
    assert done.stdout.startswith("loaded\n")
    assert not asked


@pytest.mark.parametrize("weights", [True, False])
def test_a_folder_that_cannot_be_listed_is_a_clear_error(folder, weights, monkeypatch):
    monkeypatch.setattr("pathlib.Path.iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "denied", "there")))
    with pytest.raises(EarlError, match="there cannot be read: denied; check the folder"):
        folder_of(folder, weights)


def test_an_export_from_a_folder_whose_name_is_no_text_is_a_clear_error(folder, tmp_path):
    odd = folder.rename(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(EarlError, match="no model can be loaded"):
        export(odd, tmp_path / "exported", "bfloat16")
    assert not (tmp_path / "exported").exists()
