"""The world that a recipe's episodes are played in."""

from typing import Any

from earl.agents.chat import Chat
from earl.config import Config
from earl.rollout.episode import Rules
from earl.rollout.tasks import World


def world_of(config: Config, tokenizer: Any, limit: int | None = None) -> World:
    """The episodes of a recipe, for a tokenizer; `limit` replaces the recipe's first context limit."""
    agent_config = config.agent
    rules = Rules(
        history=agent_config.history,
        retries=agent_config.retries,
        thinking=agent_config.thinking,
        instructions=agent_config.instructions,
        max_turns=agent_config.max_turns,
        max_turn_tokens=agent_config.max_turn_tokens,
        summary_tokens=agent_config.summary_tokens or Rules().summary_tokens,
        context_limit=limit or config.context.first_limit,
        forfeit_reward=agent_config.forfeit_reward,
    )
    return World(config.env.name, config.env.options, Chat(tokenizer), rules, config.env.delay_seconds)
