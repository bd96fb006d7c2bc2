"""A tokenizer of single characters, a sampler that follows a script, a made-up world: no torch here."""

from collections import namedtuple

import pytest

from earl.agents.chat import Chat
from earl.envs import registry
from earl.envs.base import TextEnv
from earl.rollout.episode import Episode, Rules
from earl.trajectory import Completion, Task


@pytest.fixture(autouse=True)
def own_environments(monkeypatch):
    """What a test registers is gone with it: others list the environments there are."""
    for names in ("_targets", "_loaded"):
        monkeypatch.setattr(registry, names, dict(getattr(registry, names)))


END = "$"
MARKS = {"system": "{", "user": "(", "assistant": "[", "tool": "|"}


class Encoded(dict):
    @property
    def encodings(self):
        return [self]

    def token_to_chars(self, place):
        return place, place + 1


class Characters:
    """Token ids are code points; a message is its role's mark, its text and "$"."""

    eos_token = END
    eos_token_id = ord(END)

    def __call__(self, text, *, add_special_tokens, return_attention_mask):
        return Encoded(input_ids=[ord(character) for character in text])

    special_tokens_map = {"marks": MARKS}  # noqa: RUF012

    def get_chat_template(self):
        return "{% for m in messages %}{{ marks[m.role] + m.content }}${% endfor %}{{ marks.assistant }}"

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(map(chr, token_ids))


class Script:
    """A sampler that gives every session its replies in turn, cut at max_tokens as a real one would."""

    def __init__(self, *replies, version=3):
        self.replies = {session: list(texts) for session, texts in enumerate(replies)}
        self.version, self.prompts, self.released = version, [], []

    def generate(self, prompts):
        self.prompts.append(prompts)
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        tokens = [ord(character) for character in self.replies[prompt.session].pop(0) + END][: prompt.max_tokens]
        logprobs = [-0.5 - place for place in range(len(tokens))]
        return Completion(tokens, logprobs, [self.version] * len(tokens), finished=tokens[-1] == ord(END))

    def release(self, sessions):
        self.released += sessions


Step = namedtuple("Step", "observation reward terminated truncated info")


class Counting(TextEnv):
    """Asks for 1, 2, … up to `goal`; each right answer is worth 0.25. An action may also name a fault."""

    instructions = "Count."

    def __init__(self, goal=3, role="user"):
        self.goal, self.role, self.max_turns = goal, role, goal

    def reset(self, *, seed=None, options=None):
        self.seeds = (seed, (options or {}).get("opponent_seed"))
        self.count = 0
        return "0", {"role": "user"}

    def rule(self, action):
        return None if action in ("1", "2", "3", "fail", "stop", "odd") else "a number"

    def step(self, action):
        if action == "fail":
            raise RuntimeError("out of numbers")
        if action == "odd":
            return Step("?", 0.0, True, False, {"outcome": "tie"})
        if action == "stop":
            return Step("enough", 0.0, False, True, {"role": self.role})
        self.count += 1
        done = self.count >= self.goal
        return Step(str(self.count), 0.25, done, False, {"role": self.role, **({"outcome": "win"} if done else {})})


@pytest.fixture(scope="session")
def script():
    return Script


@pytest.fixture(scope="session")
def chat():
    return Chat(Characters())


@pytest.fixture(scope="session")
def episode(chat):
    """Makes an episode of counting; keywords are those of Rules, and `env`."""

    def make(session=0, env=None, seed=11, delay_seconds=0.0, **rules):
        task = Task("counting", seed=7)
        return Episode(env or Counting(), chat, Rules(**rules), task, seed, session, delay_seconds)

    return make


@pytest.fixture(scope="session")
def counting():
    return Counting


class Timed(Counting):
    """Does not charge an episode that it stops."""

    charges_truncation = False


@pytest.fixture(scope="session")
def timed():
    return Timed


@pytest.fixture(scope="session")
def text():
    """The tokens as text."""
    return lambda tokens: "".join(map(chr, tokens))
