"""Models by hub id, from a hub of the test's own: found, downloaded, kept, and refused in words."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.cli.hub import Hub

NAME = "tiny-lab/tiny-chat"
LINE = [
    *("train", "tictactoe", "--steps", 1, "--seed", 3, "--set", "rollout.episodes=4", "--set", "rollout.group_size=2"),
    *("--set", "evaluate.patience=0"),
    *("--set", "evaluate.opponents=['random']", "--set", "evaluate.exact=false", "--set", "evaluate.episodes=1"),
    *("--set", "evaluate.final_episodes=1", "--set", "run.processes=1", "--set", "agent.max_turn_tokens=6"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, chatml: Callable) -> Path:
    tokenizer = chatml()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=2048, **shape)
    folder = tmp_path_factory.mktemp("hub")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"nobody downloads me")
    return folder


@pytest.fixture
def train(earl: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """`earl train` with a model from a hub, which is told to the library as HF_ENDPOINT tells it."""

    def call(hub: Hub, name: str, *more: str):
        place = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        told = {"HUGGINGFACE_CO_URL_TEMPLATE": place, "ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
        for key, value in {**told, "HF_HUB_DISABLE_XET": True, "HF_HUB_OFFLINE": False}.items():
            monkeypatch.setattr(constants, key, value)
        return earl(*LINE, "--model", name, "--runs", tmp_path / "runs", *more)

    return call


@pytest.mark.slow
def test_a_model_is_downloaded_once_and_without_its_pickles(train: Callable, model: Path) -> None:
    with Hub({NAME: model}, cut="model.safetensors") as hub:
        first = train(hub, NAME)
        assert first.code == 0, first.err
        fetched = {line.split("/")[-1] for line in hub.asked if line.startswith("GET") and "/resolve/" in line}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
        assert "pytorch_model.bin" not in fetched
    assert train(hub, NAME).code == 0  # nobody answers there any more


def test_a_dry_run_asks_nobody(train: Callable, model: Path) -> None:
    with Hub({NAME: model}) as hub:
        said = train(hub, NAME, "--dry-run")
        assert (said.code, hub.asked) == (2, [])
    assert f"hf download {NAME}" in said.err


@pytest.mark.parametrize("name", ["tiny-lab/other", "tiny-lab/private"])
def test_a_model_that_the_hub_does_not_give_is_named(train: Callable, model: Path, tmp_path: Path, name: str) -> None:
    with Hub({NAME: model}, private=("tiny-lab/private",)) as hub:
        said = train(hub, name)
    assert said.code == 2, said.err
    assert f"no model at {name!r}: there is no such folder, and the hub gives none" in said.err
    assert not (tmp_path / "runs").exists()


def test_a_model_of_the_hub_with_pickles_alone_is_refused(train: Callable, model: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            (pickled / path.name).write_bytes(path.read_bytes())
    with Hub({NAME: pickled}) as hub:
        said = train(hub, NAME)
        assert not any("pytorch_model.bin" in line for line in hub.asked)
    assert said.code == 2
    assert "has no .safetensors file" in said.err
