"""What tests of several rooms share. Heavy libraries load inside the fixtures that need them."""

import os
import secrets
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: how long an example takes says nothing.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

if "RAY_AUTH_MODE" not in os.environ:
    # Ray reads how it is opened once in a process, when it is imported: one token for all clusters of these tests.
    TOKEN = Path(tempfile.mkdtemp(prefix="earl-tests-")) / "token"
    TOKEN.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(TOKEN)}

DEFAULT_SYSTEM = "You are a helpful assistant."

# The shape of Qwen2.5's template: a default system prompt, and tool answers inside a user message.
CHATML = (
    "{%- if messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role in ('user', 'assistant') %}"
    "{{- '<|im_start|>' + message.role + '\n' + CONTENT + '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
PLAIN = CHATML.replace("CONTENT", "message.content")
TRIMMING = CHATML.replace("CONTENT", "message.content | trim")
# As Qwen3 does: what an earlier reply thought is left out of the history.
FORGETTING = CHATML.replace("CONTENT", "message.content.split('</think>')[-1].lstrip('\n')")


def bpe_tokenizer(template, merges):
    """Characters and merges of two, so that a text has more than one tokenisation."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from earl.envs.base import CHARACTERS

    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    words = [*special, *CHARACTERS, *merges]
    pairs = [(word[:-1], word[-1]) for word in merges]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[^\n]+"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def chatml():
    """Makes a ChatML tokenizer in which "12", "th" and "the" are single tokens."""
    templates = {"plain": PLAIN, "trimming": TRIMMING, "forgetting": FORGETTING}
    return lambda kind="plain": bpe_tokenizer(templates[kind], ["12", "th", "the"])


@pytest.fixture(scope="session")
def characters():
    """Earl's own tokenizer."""
    from earl.engine.tokenizer import character_tokenizer

    return character_tokenizer()


RECIPE = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0, "perfect@0.5": 1.0}},
    "agent": {"retries": 1},
    "model": {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "intermediate": 24},
    "warm_start": {"steps": 3, "teacher": "expert", "episodes": 12, "minibatches": 2},
    "rollout": {"episodes": 16, "group_size": 4},
    "learner": {"minibatches": 2, "epochs": 2, "final_learning_rate": 1e-4},
    "evaluate": {"every": 2, "opponents": ["random"], "episodes": 5, "final_episodes": 7},
    "run": {"steps": 3, "seed": 5, "processes": 1, "checkpoint_every": 2, "keep_trajectories_every": 1},
}


@pytest.fixture(scope="session")
def tiny():
    """Makes the recipe of a run of seconds, with some settings changed, section by section."""
    from earl.recipe import build

    return lambda **sections: build(
        {name: {**RECIPE.get(name, {}), **sections.get(name, {})} for name in {*RECIPE, *sections}}
    )
