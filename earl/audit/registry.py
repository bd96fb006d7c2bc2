"""The checks by name, in the order of their findings: the first are nearest to the cause."""

from dataclasses import dataclass

from earl.audit.case import Check
from earl.audit.checks import advantages, episodes, learned, logprobs, mask, numbers, seals, seeds, versions


@dataclass(frozen=True, slots=True)
class CheckEntry:
    check: Check
    question: str


FILES = "files"
"""The check that files are readable, done first."""
FILES_QUESTION = "every file is whole and is what its name says"

SIGNATURES = "signatures"
"""The check of signatures, done once per run."""
SIGNATURES_QUESTION = "the run and its checkpoints are as a trusted key signed them"

CHECKS = {
    "seeds": CheckEntry(seeds.check, "every episode is one that the run's seed asks for, and stands there once"),
    "tokens": CheckEntry(episodes.about(*episodes.TOKENS), "prompts grow from the start, replayed to the same tokens"),
    "turns": CheckEntry(episodes.about(*episodes.TURNS), "every reply is a turn, and no turn is missing"),
    "authors": CheckEntry(episodes.about(*episodes.AUTHORS), "every token names who wrote it"),
    "rewards": CheckEntry(episodes.about(*episodes.REWARDS), "the environment, replayed, gives the same rewards"),
    "endings": CheckEntry(episodes.about(*episodes.ENDINGS), "episodes end as stored; no reply breaks off unseen"),
    "mask": CheckEntry(mask.check, "learned from is what was sampled: no template, no environment"),
    "versions": CheckEntry(
        versions.versions, "the weights of the step before sampled every token, or as old ones as may be"
    ),
    "places": CheckEntry(versions.shape, "log-probs stand at sampled tokens, at most 0"),
    "log-probs": CheckEntry(logprobs.check, "log-probs and draws are those of the stored weights"),
    "learned": CheckEntry(learned.check, "the learner's log-probs are those of the weights that it left"),
    "advantages": CheckEntry(advantages.check, "advantages follow from the rewards"),
    "numbers": CheckEntry(numbers.check, "the database counts what the episodes show"),
    "seals": CheckEntry(seals.check, "what no other check can tell is as it was written"),
}
