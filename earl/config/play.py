"""Who plays where, and what may be said: [env], [agent], [context], [rollout]."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from earl.config.section import Section, Share

DEFAULT_LIMIT = 256
HISTORY = re.compile(r"full|board_only|(last_turns|summary):[1-9][0-9]{0,5}")


def _a_limit(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise PydanticCustomError("limit", "Input should be a number of tokens, 1 or more, or 'auto'")


def _a_history(value: str) -> str:
    if HISTORY.fullmatch(value):
        return value
    raise PydanticCustomError(
        "history", "Input should be 'full', 'board_only', 'last_turns:K' or 'summary:K', such as 'last_turns:2'"
    )


class EnvConfig(Section):
    """[env]: the world, and who is met in it."""

    name: str
    """Name in the environment registry."""
    options: dict[str, bool | int | float | str] = Field({})
    """Arguments of the environment."""
    grow: dict[str, int] = Field({})
    """Options that grow with the run: what each is at the last step, from what `options` says at the first. Matches
    are played under `options`."""
    opponents: dict[str, Share] = Field({})
    """Opponent → share of the episodes; shares are relative. Empty in tool tasks."""
    delay_seconds: float = Field(0.0, ge=0)
    """Median of a simulated heavy-tailed wait before every answer of the environment: a rehearsal of slow tools."""

    @model_validator(mode="after")
    def _grown_options_begin(self) -> "EnvConfig":
        for name in self.grow:
            if type(self.options.get(name)) is not int:
                raise ValueError(f"env.grow.{name} has no beginning; set env.options.{name} to a whole number too")
        return self

    def options_at(self, share: float) -> dict[str, bool | int | float | str]:
        """The options once that share of the run is done.

        Example:
            options {"num_operations": 2}, grow {"num_operations": 10}, share 0.25 -> {"num_operations": 4}
        """
        grown = {name: round((1 - share) * int(self.options[name]) + share * last) for name, last in self.grow.items()}
        return {**self.options, **grown}


class AgentConfig(Section):
    """[agent]: how the model plays."""

    history: Annotated[str, AfterValidator(_a_history)] = "full"
    """What the model still sees: `full`: everything. `last_turns:K`: the last K rounds. `board_only`: the last
    observation. `summary:K`: after every K rounds the model writes a summary that stands for all before."""
    retries: int = Field(0, ge=0)
    """Replies that may break the rule before the episode is forfeited."""
    forfeit_reward: float = -1.0
    """Added to the last turn's reward when an episode ends by forfeit or by a limit."""
    thinking: bool = False
    """Whether a reply may begin with a <think>…</think> span."""
    instructions: bool = False
    """Whether the conversation begins with the environment's rules in words."""
    max_turn_tokens: int = Field(8, ge=1)
    """Tokens of one reply, thinking included."""
    summary_tokens: int | None = Field(None, ge=1)
    """With `history = "summary:K"`: tokens of one summary; absent: 64."""
    max_turns: int | None = Field(None, ge=1)
    """Replies per episode; absent: what the environment needs plus the retries."""

    @model_validator(mode="after")
    def _summaries_are_asked_for(self) -> "AgentConfig":
        if self.summary_tokens and not self.history.startswith("summary:"):
            raise ValueError(f"summary_tokens has no use beside history = {self.history!r}; leave it out")
        return self


class ContextConfig(Section):
    """[context]: how long contexts may grow, and what becomes of episodes that were cut off."""

    limit: Annotated[int | Literal["auto"], BeforeValidator(_a_limit)] = DEFAULT_LIMIT
    """Tokens of the longest context, the reply included. `"auto"`: raised ahead of growth."""
    initial: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the first limit; absent: 256, or the ceiling where that is lower."""
    ceiling: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the highest; absent: what the model's positions, a micro-batch and memory allow."""
    learn_truncated: bool = True
    """Whether episodes that a token limit cut off are learned from; if not, they are counted only."""
    length_penalty: float = Field(0.0, ge=0)
    """Taken off an episode's return, as it is learned from, for every token that the model sampled."""

    @property
    def automatic(self) -> bool:
        """Whether the limit follows the growth."""
        return self.limit == "auto"

    @property
    def first_limit(self) -> int:
        """The limit of the first step."""
        if isinstance(self.limit, int):
            return self.limit
        return self.initial or min(DEFAULT_LIMIT, self.ceiling or DEFAULT_LIMIT)

    @model_validator(mode="after")
    def _limits_agree(self) -> "ContextConfig":
        if not self.automatic and (self.initial or self.ceiling):
            name = "initial" if self.initial else "ceiling"
            raise ValueError(
                f"context.{name} has no use beside limit = {self.limit}; leave it out or set limit = 'auto'"
            )
        if self.ceiling and self.first_limit > self.ceiling:
            raise ValueError(
                f"initial = {self.first_limit} is above ceiling = {self.ceiling}; lower it or raise the ceiling"
            )
        return self


class RolloutConfig(Section):
    """[rollout]: episodes = prompts × group_size."""

    episodes: int = Field(384, ge=1)
    """Episodes per step."""
    group_size: int = Field(16, ge=1)
    """Episodes that start alike."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Divides the logits when episodes are sampled, and alike when they are learned from."""

    @property
    def prompts(self) -> int:
        """Groups per step."""
        return self.episodes // self.group_size

    @model_validator(mode="after")
    def _groups_fill(self) -> "RolloutConfig":
        if self.group_size > self.episodes or self.episodes % self.group_size:
            raise ValueError(
                f"episodes = {self.episodes} must be a multiple of group_size = {self.group_size} "
                f"(prompts × group_size = episodes); set episodes to {self.group_size * max(1, self.prompts)}"
            )
        return self
