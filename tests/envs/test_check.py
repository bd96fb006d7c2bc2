import random

import pytest

from earl.envs import registry
from earl.envs.check import check
from earl.envs.games.env import BoardGameEnv
from earl.envs.games.mnk import TICTACTOE
from earl.errors import EarlError


@pytest.mark.parametrize("name", registry.names())
def test_every_registered_environment_keeps_the_contract(name, monkeypatch):
    if name in ("code", "table"):  # a random action starts a program in a sandbox
        monkeypatch.setattr("earl.envs.check.EPISODES", 20)
        monkeypatch.setattr("earl.envs.check.SEEDS", range(5))
    findings = check(name)
    assert len(findings) == 8
    assert [finding for finding in findings if not finding.passed] == []
    assert "%" in findings[-1].detail  # the random agent's success rate


def test_unknown_environments_are_refused():
    with pytest.raises(EarlError, match="unknown environment"):
        check("nothing")


class GlobalChance(BoardGameEnv):
    def _go_on(self):
        if self.state.player != self.seat and (legal := self.game.legal(self.state)):
            self.state = self.game.play(self.state, random.choice(legal))


class Strips(BoardGameEnv):
    def rule(self, action):
        return super().rule(action.strip())

    def step(self, action):
        return super().step(action.strip())


class PunishesIllegal(BoardGameEnv):
    def step(self, action):
        if self.legal and self.rule(action):
            self.state = self.game.play(self.state, self.game.legal(self.state)[0])
        return super().step(action)


class ForgetsOutcome(BoardGameEnv):
    def step(self, action):
        *result, info = super().step(action)
        info.pop("outcome", None)
        return *result, info


class Shouts(BoardGameEnv):
    def seen_by(self, seat):
        observation, *rest = super().seen_by(seat)
        return observation + " ¡", *rest


class NeverEnds(BoardGameEnv):
    def step(self, action):
        observation, *_, info = super().step("1" if self.rule("1") is None else self.legal[0])
        if "outcome" in info:
            observation, info = self.reset(seed=1)
        return observation, 0.0, False, False, info


class IgnoresSeeds(BoardGameEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0)


class Crashes(BoardGameEnv):
    def reset(self, *, seed=None, options=None):
        raise KeyError("board")


# The broken environment and a rule that must notice.
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (GlobalChance, "chance comes from the seed alone, not from the process"),
        (GlobalChance, "the same seeds give the same episode, in another object and between other episodes"),
        (Strips, "an illegal action changes nothing and is answered with the rule"),
        (PunishesIllegal, "an illegal action changes nothing and is answered with the rule"),
        (
            ForgetsOutcome,
            "legal play ends within max_turns, with an outcome exactly when the episode ends by itself",
        ),
        (
            NeverEnds,
            "legal play ends within max_turns, with an outcome exactly when the episode ends by itself",
        ),
        (NeverEnds, "a step before the reset or after the end is refused with EarlError"),
        (Shouts, "observations and actions lie in their spaces, and every step names its role"),
        (IgnoresSeeds, "other seeds give other episodes"),
        (Crashes, "a random agent plays 200 episodes"),
    ],
)
def test_what_breaks_a_rule_is_found(monkeypatch, kind, rule):
    monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    monkeypatch.setattr(registry, "_loaded", {})
    registry.register("broken", lambda seat=0: kind(TICTACTOE, seat))
    broken = {finding.rule: finding.detail for finding in check("broken") if not finding.passed}
    assert broken.get(rule)
