"""What tests of several rooms share. Heavy libraries load inside the fixtures that need them."""

import gc
import multiprocessing.spawn
import os
import secrets
import signal
import socket
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import warm
from tests.shared_ray import open_cluster, ray, ray_cluster, shared_ray  # noqa: F401

# Machines are shared: how long an example takes says nothing. `make test-exhaustive` tries ten times as many.
settings.register_profile("shared", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exhaustive", settings.get_profile("shared"), max_examples=250)
settings.load_profile("shared")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="earl-tests-")  # tests are a user without keys

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes what it starts with `&` ignore Ctrl-C, and that would pass on to the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "RAY_AUTH_MODE" not in os.environ:
    # Ray reads how it is opened once in a process, when it is imported: one token for all clusters of these tests.
    TOKEN = Path(tempfile.mkdtemp(prefix="earl-tests-")) / "token"
    TOKEN.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(TOKEN)}

os.environ |= {"RAY_worker_niceness": "0"}  # at Ray's 15 its workers starve beside another test
PYTHON = warm.shared_executable()
sys.executable = warm.COLD  # this process may be a fork itself

ON_RAY: set[Path] = set()
"""Files with tests on the shared Ray."""

gc.disable()  # all that is collected stays: looking through it again and again takes a third of the time


def pytest_configure(config):
    """Leave out what is marked `exhaustive`, unless it is asked for."""
    asked = config.option.markexpr
    if "exhaustive" not in asked:
        config.option.markexpr = f"({asked}) and not exhaustive" if asked else "not exhaustive"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs):
    """The processes of pytest-xdist are forks as well."""
    for spec in specs:
        spec.python = str(PYTHON)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Put files on the shared Ray first, of these and of the others those with the most slow tests. Processes of `make
    test` take files in this order, so that short files fill the end, and no process works there at a long one alone."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    ON_RAY.update(item.path for item in items if "ray_cluster" in item.fixturenames)
    items.sort(key=lambda item: (item.path not in ON_RAY, -slow[item.path]))
    _skip_without_devices(items)


def _skip_without_devices(items):
    """Skip what is marked `gpu`, or `gpu(2)`, where there are fewer CUDA devices."""
    asked = {item: (mark.args or (1,))[0] for item in items if (mark := item.get_closest_marker("gpu"))}
    if asked:
        import torch

        there = torch.cuda.device_count()
        for item, count in asked.items():
            if there < count:
                reason = "needs a CUDA device" if count == 1 else f"needs {count} CUDA devices"
                item.add_marker(pytest.mark.skip(reason=f"{reason}, and there are {there}" if there else reason))


@pytest.fixture(scope="module", autouse=True)
def warm_children(request):
    """Python processes that a test or earl starts are forks of one that has imported what they need, but where a
    module is marked `cold`."""
    preloaded = "LD_PRELOAD" in os.environ
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("cold") is None:
            patch.setattr(sys, "executable", str(PYTHON))
            patch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(PYTHON))
        yield
    if not preloaded:
        os.environ.pop("LD_PRELOAD", None)  # an engine of vLLM leaves it behind
    if "vllm.distributed" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        sys.modules["vllm.distributed"].cleanup_dist_env_and_memory()  # an engine in this process left its group behind


@pytest.fixture(scope="module", autouse=True)
def no_idle_ray(request):
    """Ends the shared Ray before files without it: idle, it takes a 20th of a core."""
    if request.path not in ON_RAY:
        open_cluster.close()


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
    from earl.engine.model import character_tokenizer

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


@pytest.fixture(scope="session")
def processes_of():
    """The numbers of a process and of all that it has started."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("this machine has no /proc")
    return _tree


@pytest.fixture(scope="session")
def listening():
    """Says at which addresses and ports a process and all that it has started listen, as the kernel tells it."""
    if not Path("/proc/self/net/tcp").exists():
        pytest.skip("the kernel of this machine does not say who listens")
    return lambda process: {place for member in _tree(process) for place in _listening(member)}


def _tree(root):
    """A process and all that it has started, forks of the warm one included."""
    children = {}
    for path in warm.children_of(PYTHON.with_name("warm")).glob("*"):
        children[int(path.name)] = [int(path.read_text() or 0)]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def _listening(process):
    """Addresses and ports that a process listens at, in its own network namespace."""
    try:
        own = {str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_socket()}
        lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()
        lines += Path(f"/proc/{process}/net/tcp6").read_text().splitlines()
    except OSError:
        return  # it has ended
    for fields in map(str.split, lines):
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            address, port = fields[1].split(":")
            yield _address(bytes.fromhex(address)), int(port, 16)


def _address(data):
    words = b"".join(word[::-1] for word in struct.iter_unpack("4s", data) for word in word)
    text = socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, words)
    return text.removeprefix("::ffff:")
