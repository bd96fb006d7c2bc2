"""What a log-prob or a draw proves, token by token; the verdicts of an audit; and which weights may have sampled."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from earl.audit import audit, checks, evidence
from earl.audit.evidence import Evidence, Sampled, TokenPosition, by_siblings, gather
from earl.audit.findings import Fault, Finding, Unchecked, Verdict
from earl.audit.run import AuditedRun
from earl.errors import EarlError
from earl.recipe import build
from earl.runs.folder import RunFolder
from earl.seeds import derive, uniforms
from tests.audit.test_case import SOUND, episode, replay_of

NAN = float("nan")


def sampled_of(logprobs, draws=None, tokens=None, contexts=None, versions=None):
    """One token in each episode."""
    count = len(logprobs)
    return Sampled(
        [TokenPosition(number, 0, 3) for number in range(count)],
        np.array(tokens or [5] * count),
        np.array(logprobs),
        np.array(draws or [0.5] * count),
        contexts or [b""] * count,
        np.array(versions or [2] * count),
    )


def evidence_of(logprobs, low=0.0, high=1.0):
    return Evidence(*(np.broadcast_to(np.array(values, float), (len(logprobs),)) for values in (logprobs, low, high)))


def test_a_log_prob_may_differ_by_a_ten_thousandth_of_its_size():
    # 1e-4 x (1 + 3) around -3; what is unknown is never wrong, and what is no number always.
    stored = sampled_of([-3.0003, -3.0005, -2.9997, -2.9995, -9.0, NAN])
    assert evidence_of([-3.0, -3.0, -3.0, -3.0, NAN, -3.0]).off(stored).tolist() == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_draw_lies_in_its_token_s_interval():
    stored = sampled_of([-1.0] * 5, draws=[0.2, 0.19995, 0.1998, 0.60005, 0.6002])
    assert evidence_of([-1.0] * 5, 0.2, 0.6).misdrawn(stored).tolist() == [False, False, True, False, True]
    assert not evidence_of([NAN] * 5, NAN, NAN).misdrawn(stored).any()


def test_evidence_is_left_out_where_it_is_not_asked_for():
    known = evidence_of([-1.0, -2.0], 0.1, 0.4).where(np.array([True, False]))
    assert (
        np.isnan(known.logprobs).tolist()
        == np.isnan(known.low).tolist()
        == np.isnan(known.high).tolist()
        == [False, True]
    )
    assert (known.logprobs[0], known.low[0], known.high[0]) == (-1.0, 0.1, 0.4)


def test_sampled_tokens_with_their_draws_and_contexts():
    other = episode(">ab1.cd3.", versions=np.where(SOUND.sampled, 4, -1))
    found = gather([(0, SOUND), (3, SOUND), (7, other)])
    assert found.places[:4] == [(0, 0, 3), (0, 0, 4), (0, 1, 7), (0, 1, 8)]
    assert found.places[-1] == (7, 1, 8)
    assert bytes(found.tokens.tolist()) == b"1.2.1.2.1.3."
    assert found.logprobs.tolist() == [-0.5] * 12
    assert found.versions.tolist() == [2] * 8 + [4] * 4
    assert found.contexts[:4] == found.contexts[4:8] and len(set(found.contexts)) == 8  # by version, too
    # The draws of a reply follow from the episode's seed and where it begins.
    seeds = [np.array([derive(7, begin)], np.uint64) for begin in (3, 7)]
    assert found.draws[:4].tolist() == [float(uniforms(seed, place)[0]) for seed in seeds for place in (0, 1)]
    assert np.isnan(gather([(0, SOUND)], drawn=False).draws).all()
    forgetful = replace(SOUND, turns=(SOUND.turns[0], replace(SOUND.turns[1], context_start=5)))
    assert gather([(0, forgetful)]).contexts[2] != found.contexts[2]


def test_episodes_with_the_same_context_tell_each_other_s_tokens():
    here, there = [b"a"] * 5, [b"b"] * 2
    stored = sampled_of([-1.0, -1.2, -1.1, -2.0, -3.0, -0.5, -0.7], tokens=[5, 5, 5, 7, 2, 5, 5], contexts=here + there)
    known = by_siblings(stored)
    # Three gave token 5, with a median of -1.1; two may differ, and nobody knows which is right.
    assert known.logprobs[:3].tolist() == [-1.1] * 3 and np.isnan(known.logprobs[3:]).all()
    assert known.low == pytest.approx([0, 0, 0, np.exp(-1.1), 0, 0, 0])
    assert known.high == pytest.approx([1, 1, 1, 1, 1 - np.exp(-1.1), 1, 1])


def found_by(check, replays, **run):
    case = SimpleNamespace(
        sound=replays,
        replays=replays,
        step=3,
        run=SimpleNamespace(**run),
        finding=lambda fault, message, index=None: Finding(fault, message, 3, index),
    )
    return [(str(one.fault), one.episode, one.token, one.message) for one in check(case)]


def test_log_probs_of_impossible_values():
    raised = replace(SOUND, logprobs=np.where(SOUND.sampled, 0.25, 0))
    told = "the log-prob is 0.25, but only one of at most 0 is possible (and 3 more tokens)"
    assert found_by(evidence.shape, [replay_of(raised, SOUND)]) == [("altered log-prob", 1, 3, told)]
    unknown = replace(SOUND, logprobs=np.where(np.arange(9) == 7, np.nan, SOUND.logprobs))
    told = "the log-prob is nan, but only one of at most 0 is possible"
    assert found_by(evidence.shape, [replay_of(unknown, SOUND)]) == [("altered log-prob", 1, 7, told)]
    certain = replace(SOUND, logprobs=np.zeros(9))
    assert found_by(evidence.shape, [replay_of(certain, SOUND)]) == []


def by_versions(*versions):
    """Replays of episodes whose two replies were sampled by such versions."""
    made = []
    for index, (first, second) in enumerate(versions):
        own = np.where(SOUND.sampled, np.where(np.arange(9) < 5, first, second), -1)
        made.append(replace(replay_of(replace(SOUND, versions=own), SOUND), index=index))
    return made


def test_versions_that_may_not_have_sampled_a_step():
    last = {"versions": lambda step: range(step - 1, step)}
    assert found_by(evidence.versions, by_versions((2, 2)), **last) == []
    told = "tokens were sampled by the weights of step {}, not by those of step 2"
    seen = found_by(evidence.versions, by_versions((1, 2), (2, 2), (2, 3), (2, 2)), **last)
    assert seen == [("stale weights", 0, None, told.format(1)), ("stale weights", 2, None, told.format(3))]
    most = found_by(evidence.versions, by_versions((1, 1), (0, 2), (1, 2), (2, 2)), **last)
    assert most == [
        ("stale weights", None, None, "2 episodes were sampled by the weights of step 1, not by those of step 2")
    ]
    ahead = {"versions": lambda step: range(step - 2, step)}
    assert found_by(evidence.versions, by_versions((1, 2)), **ahead) == []
    told = "tokens were sampled by older weights than tokens before them in the episode"
    assert found_by(evidence.versions, by_versions((2, 1)), **ahead) == [("stale weights", 0, None, told)]
    told = "tokens were sampled by the weights of step 0, not by those of the steps 1 to 2"
    assert found_by(evidence.versions, by_versions((0, 1)), **ahead) == [("stale weights", 0, None, told)]


def test_log_probs_that_other_weights_explain(monkeypatch):
    """Four episodes of one token, whose log-probs were stored as -1; version 2 should have sampled them."""

    def stale(version, others, draws=None):
        monkeypatch.setattr(evidence, "_by_weights", lambda case, episodes, step: evidence_of(others[step]))
        case = SimpleNamespace(
            run=SimpleNamespace(checkpoints=[*others, 2]),
            finding=lambda fault, message, index=None: (str(fault), index, message),
        )
        return list(evidence._stale(case, [None] * 4, sampled_of([-1.0] * 4, draws), evidence_of(version, 0.2, 0.8), 2))

    assert stale([-1.0] * 4, {1: [-1.0] * 4}) == []
    told = "the log-probs are those of the weights of step {}, not of step 2"
    assert stale([-2.0] * 4, {0: [-2.0] * 4, 1: [-1.0] * 4}) == [
        ("stale weights", None, f"{told.format(1)}, in 4 of 4 episodes")
    ]
    # Two of four are not the step's but theirs, each by the first weights that explain it.
    assert stale([-1.0, -1.0, -2.0, -2.0], {0: [-1.0, -1.0, -2.0, -1.0], 1: [-1.0] * 4}) == [
        ("stale weights", 3, told.format(0)),
        ("stale weights", 2, told.format(1)),
    ]
    # Nothing explains them: only their draws show that it was not another program's arithmetic.
    lost = (
        "stale weights",
        None,
        "4 of 4 episodes were not sampled by the weights of step 2, nor by others that are kept",
    )
    assert stale([-2.0] * 4, {1: [-3.0] * 4}, draws=[0.9] * 4) == [lost]
    assert stale([-2.0] * 4, {1: [-3.0] * 4}, draws=[0.5] * 4) == []
    assert stale([-2.0, -1.0, -1.0, -2.0], {1: [-3.0] * 4}, draws=[0.9] * 4) == []  # and most have to be strange


def test_what_could_not_be_compared_says_why():
    stored = sampled_of([-1.0] * 3, versions=[6, 4, 2])
    some = evidence._unchecked(stored, np.array([True, True, False]), alone=False)
    told = "2 of 3 tokens were sampled by weights that are not kept (of step 4, 6)"
    assert str(some) == f"{told}; compared among the step's episodes only"
    told = "no weights of the step before are kept; compared among the step's episodes only"
    assert str(evidence._unchecked(stored, np.ones(3, bool), alone=True)) == told


def test_the_state_of_a_verdict():
    verdict = Verdict("mask", "is it right?", 2)
    assert verdict.state == "passed"
    verdict.add(Unchecked("no weights"))
    assert (verdict.state, verdict.unchecked) == ("partly", {"no weights": 1})
    verdict.add(Unchecked("no weights"))
    assert (verdict.state, verdict.unchecked) == ("not checked", {"no weights": 2})
    verdict.add(Finding(Fault.WRONG_MASK, "it is wrong"))
    assert verdict.state == "failed"


@pytest.mark.slow
def test_an_audit_says_what_it_checked(sound):
    watched = []
    said = audit(sound("grpo"), watch=watched.append)
    assert watched == ["step-000021.parquet", "step-000022.parquet", "step-000023.parquet"]
    assert said.run == "grpo"
    assert all(event.startswith("step ") for event in said.idle)
    states = {verdict.check: (verdict.state, verdict.files) for verdict in said.verdicts}
    checks = {"seeds", "tokens", "turns", "authors", "rewards", "endings", "mask", "versions", "places", "advantages"}
    assert states == dict.fromkeys(checks | {"numbers", "seals", "files"}, ("passed", 3)) | {
        "log-probs": ("partly", 3),
        "learned": ("partly", 3),
        "signatures": states["signatures"],
    }
    reasons = {verdict.check: verdict.unchecked for verdict in said.verdicts if verdict.unchecked}
    assert reasons["log-probs"] == {
        "no weights of the step before are kept; compared among the step's episodes only": 2
    }
    assert reasons["learned"] == {"no weights of the step are kept": 1}
    [one] = audit(sound("grpo"), 22).verdicts[:1]
    assert (one.files, one.question) == (1, "every file is whole and is what its name says")


def test_steps_that_are_not_kept(sound, tmp_path):
    with pytest.raises(EarlError) as error:
        audit(sound("grpo"), 77)
    assert str(error.value) == "run 'grpo' keeps no episodes of step 77; kept are the steps 21, 22, 23"
    shutil.copytree(sound("grpo").path, tmp_path / "none", ignore=shutil.ignore_patterns("*.parquet"))
    for step in (None, 22):
        with pytest.raises(EarlError) as error:
            audit(RunFolder(tmp_path / "none"), step)
        told = "has no stored episodes yet; they are kept every run.keep_trajectories_every steps"
        assert str(error.value) == f"run 'none' {told}"


def run_of(staleness, metrics=None):
    config = SimpleNamespace(placement=SimpleNamespace(max_staleness=staleness), warm_start=SimpleNamespace(steps=20))
    return SimpleNamespace(config=config, metrics=metrics or {}, world="world")


def test_the_weights_that_may_have_sampled_a_step():
    assert [AuditedRun.versions(run_of(0), step) for step in (1, 20, 30)] == [range(0, 1), range(19, 20), range(29, 30)]
    # Rollout is up to two steps ahead, but not before the warm start has ended.
    steps = [AuditedRun.versions(run_of(2), step) for step in (10, 21, 22, 23, 30)]
    assert steps == [range(9, 10), range(20, 21), range(20, 22), range(20, 23), range(27, 30)]


def test_the_context_limit_when_a_step_s_episodes_began(monkeypatch):
    monkeypatch.setattr("earl.audit.run.with_context_limit", lambda world, limit: (world, limit))
    metrics = {step: {"context/limit": float(step)} for step in range(5, 30)}
    for staleness, step, began in ((0, 25, 25), (2, 25, 23), (2, 22, 21), (2, 10, 10)):
        assert AuditedRun.world_at(run_of(staleness, metrics), step) == ("world", began)
    for limit in (None, 0.0, 1e12):
        known = {25: {} if limit is None else {"context/limit": limit}}
        assert AuditedRun.world_at(run_of(0, known), 25) == "world"
    assert AuditedRun.world_at(run_of(0, {25: {"context/limit": 1.0}}), 25) == ("world", 1)


def test_values_come_from_the_head_of_the_step_before(monkeypatch):
    calls = []
    placement = SimpleNamespace(
        learner=SimpleNamespace(restore=lambda weights: calls.append(("restored", weights))),
        dispatch=lambda groups: ("rows", groups),
        prepare=lambda groups, rows: ("batch", groups, rows),
        recorded=lambda groups, batch: ("numbers", [SimpleNamespace(advantages=(groups, batch))]),
    )
    monkeypatch.setattr(
        checks, "embedded_pipeline", lambda config, peers, policy: calls.append((config, policy)) or placement
    )
    monkeypatch.setattr(checks, "load", lambda weights: ("policy", weights))
    given = checks.prepared_advantages("config", "weights", "groups")
    assert given == [("groups", ("batch", "groups", ("rows", "groups")))]
    assert calls == [("config", ("policy", "weights")), ("restored", "weights")]


def test_advantages_that_cannot_be_checked(monkeypatch):
    def case_of(name, kept, replays=(1,)):
        config = build({"env": {"name": "tictactoe"}, "algorithm": {"name": name}})
        run = SimpleNamespace(config=config, checkpoints={22: SimpleNamespace(path="weights")} if kept else {23: None})
        return SimpleNamespace(run=run, step=23, experiences=(1,), replays=replays, true_groups=lambda: "groups")

    told = r"^ppo needs the value head or the reference of the step before, which is not kept$"
    with pytest.raises(Unchecked, match=told):
        list(checks.check_advantages(case_of("ppo", kept=False)))
    with pytest.raises(Unchecked, match=r"^not all episodes of the step can be told$"):
        list(checks.check_advantages(case_of("grpo", kept=True, replays=(1, 2))))
    compared = []
    monkeypatch.setattr(
        checks, "_compare", lambda case, expected, tolerance: compared.append((expected, tolerance)) or []
    )
    monkeypatch.setattr(checks, "prepared_advantages", lambda config, weights, groups: ("by values", weights, groups))
    monkeypatch.setattr(checks, "expected_advantages", lambda config, groups: ("by rewards", groups))
    list(checks.check_advantages(case_of("ppo", kept=True)))
    list(checks.check_advantages(case_of("grpo", kept=True)))
    assert compared == [(("by values", "weights", "groups"), 1e-3), (("by rewards", "groups"), 1e-5)]
