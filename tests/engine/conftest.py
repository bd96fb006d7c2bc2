"""Small models of five architectures, one of them twice, and a made-up world in which every reply is taken."""

from random import Random

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from earl.agents.chat import Chat
from earl.config import ModelConfig
from earl.engine.attention import ATTENTION
from earl.engine.model import Policy, character_tokenizer, make
from earl.envs.base import TextEnv
from earl.rollout.episode import Episode, Rules
from earl.trajectory import Task

torch.set_num_threads(1)  # as in a run; on a busy machine a second thread only waits

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 512}


def spread_out(model, seed=0):
    """Weights so large that the distribution is far from uniform and contexts matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15, generator=generator)
    model.set_attn_implementation(ATTENTION)
    return model.eval()


def with_characters(model, seed):
    """A policy that writes characters, of which its settings name the last of a reply."""
    tokenizer = character_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Policy(spread_out(model, seed), tokenizer)


def qwen3(seed=0):
    policy = make(ModelConfig(hidden=16, layers=2, heads=2, head_dim=8, intermediate=24), seed)
    return Policy(spread_out(policy.model, seed), policy.tokenizer)


def grouped(seed=0):
    """Four query heads share two key-value heads, as in those of Qwen3 that are downloaded."""
    config = Qwen3Config(vocab_size=106, num_attention_heads=4, num_key_value_heads=2, head_dim=8, **SHAPE)
    return with_characters(Qwen3ForCausalLM(config), seed)


def llama(seed=0):
    config = LlamaConfig(vocab_size=106, num_attention_heads=4, num_key_value_heads=4, **SHAPE)
    return with_characters(LlamaForCausalLM(config), seed)


def qwen2(seed=0):
    """Four query heads share two key-value heads, and the output layer shares the embeddings' weights."""
    config = Qwen2Config(
        vocab_size=106, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **SHAPE
    )
    return with_characters(Qwen2ForCausalLM(config), seed)


def gpt2(seed=0):
    """Learned positions: there is none behind the 512th."""
    config = GPT2Config(vocab_size=106, n_embd=32, n_layer=2, n_head=4, n_positions=512)
    return with_characters(GPT2LMHeadModel(config), seed)


def gemma(seed=0):
    """Embeddings are scaled by a buffer."""
    config = GemmaConfig(vocab_size=106, num_attention_heads=4, num_key_value_heads=2, head_dim=8, **SHAPE)
    return with_characters(GemmaForCausalLM(config), seed)


ARCHITECTURES = {"qwen3": qwen3, "grouped": grouped, "llama": llama, "qwen2": qwen2, "gpt2": gpt2, "gemma": gemma}


@pytest.fixture(params=sorted(ARCHITECTURES))
def policy(request):
    """A policy of each architecture in turn."""
    return ARCHITECTURES[request.param]()


@pytest.fixture
def small():
    """Makes earl's own architecture, small; other seeds give other weights."""
    return qwen3


class Babble(TextEnv):
    """Takes any reply and answers with noise of its own: up to 6 turns of up to 30 characters."""

    instructions, max_turns = "Talk.", 6

    def reset(self, *, seed=None, options=None):
        self.rng = Random(options["opponent_seed"])
        self.left = self.rng.randint(1, self.max_turns)
        return self.noise(), {"role": "user"}

    def noise(self):
        return "".join(self.rng.choices("0123456789 XO\n", k=self.rng.randint(1, 30)))

    def rule(self, action):
        return None

    def step(self, action):
        self.left -= 1
        info = {"role": self.rng.choice(["user", "tool"]), "outcome": "draw"}
        return self.noise(), 0.0, self.left == 0, False, info


@pytest.fixture
def episodes():
    """Makes episodes of babble with sessions 0, 1, …; other `first` seeds give other games."""

    def make_episodes(policy, count, first=0, **rules):
        chat = Chat(policy.tokenizer)
        settings = Rules(**{"retries": 3, "max_turn_tokens": 9, "context_limit": 500} | rules)
        return [Episode(Babble(), chat, settings, Task("babble", seed=0), first + i, session=i) for i in range(count)]

    return make_episodes


@torch.no_grad()
def plain_logprobs(model, tokens, temperature=1.0):
    """Log-probs [T, V] after each token of one row: `transformers` alone, without cache, padding or batch."""
    model = model.eval()
    logits = model(input_ids=torch.tensor([list(map(int, tokens))]), use_cache=False).logits[0]
    return torch.log_softmax(logits.float() / temperature, dim=-1)


@pytest.fixture
def plain():
    """`plain_logprobs`, what everything is compared with."""
    return plain_logprobs


@pytest.fixture
def architectures():
    """Makes a policy of each architecture, by name."""
    return ARCHITECTURES
