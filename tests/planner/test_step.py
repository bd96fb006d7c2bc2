"""A step of a recipe: its batch goes through the stages, and what that costs."""

import pytest

from earl.planner.plan import plan
from tests.planner.asked import asked


def step(context: int = 8192, gpus: str = "16x8xH100", recipe: dict | None = None, **wish: float):
    return plan(asked(gpus, recipe=recipe, contexts=str(context), **wish)).steps[0]


def parts(**arguments) -> dict:
    return {part.stage: part for part in step(**arguments).parts}


def test_stages_follow_each_other() -> None:
    found = step()
    assert [part.stage for part in found.parts] == ["rollout", "dispatch", "experience", "update", "weights"]
    assert found.seconds.value == sum(part.seconds.value for part in found.parts)
    assert found.seconds.low < found.seconds.value < found.seconds.high
    assert found.gpu_hours.value == pytest.approx(found.seconds.value * 128 / 3600 * 1000 / 384)


def test_experience_takes_a_pass_for_each_that_is_asked_for() -> None:
    def seconds(**algorithm: float | str) -> float:
        return parts(recipe={"algorithm": algorithm})["experience"].seconds.value

    assert seconds(correction="none") == 0  # neither a reference nor values, nor the learner's own log-probs
    one = seconds(correction="none", kl=0.1)
    # 145.4 GB over 25 GB/s, of which a replica of 8 hosts has an eighth on each
    assert one == pytest.approx(145.4e9 * 7 / 8 / 25e9, rel=0.01)
    assert seconds(correction="none", kl=0.1, name="ppo") == pytest.approx(2 * one)
    assert seconds(kl=0.1) == pytest.approx(2 * one)  # vLLM samples in bf16, so that a run corrects unless told not to


def test_epochs_take_their_time() -> None:
    once, twice = (parts(recipe={"learner": {"epochs": epochs}})["update"].seconds.value for epochs in (1, 2))
    assert twice == pytest.approx(2 * once)


def test_prompts_are_what_copies_share() -> None:
    # 384 episodes in groups of 16 are 24 prompts: no more copies than that, though 128 GPUs hold 32 of TP 4
    layout = parts()["rollout"].layout
    assert layout.dp <= 24
    assert layout.dp == min(24, 128 // layout.tp)


def test_weights_cross_the_links_between_hosts() -> None:
    slow, fast = (parts(network_gbps=gbps)["weights"].seconds.value for gbps in (100.0, 200.0))
    # 145 GB x 15 / 16 hosts over 12.5 GB/s, against 25 GB/s; what then goes to each GPU is the same
    assert slow - fast == pytest.approx(145.4e9 * 15 / 16 * (1 / 12.5e9 - 1 / 25e9), rel=0.01)
    apart = parts(recipe={"placement": {"kind": "disaggregated"}})["weights"].seconds.value
    assert apart > parts()["weights"].seconds.value  # nothing lies there already


def test_dispatch_sends_what_a_run_sends() -> None:
    found = step(recipe={"placement": {"kind": "disaggregated"}})
    # tokens 4, mask 1, log-probs 4, turns 4, value mask 1: 14 bytes a token
    assert found.dispatch.bytes == 14 * found.tokens
    assert found.dispatch.across_bytes >= found.dispatch.bytes
    assert [time.gbps for time in found.dispatch.times] == [25, 200, 400, 200]


def test_a_step_that_does_not_fit_says_which_stage() -> None:
    found = step(gpus="8xH100")
    assert (found.parts, found.seconds, found.gpu_hours, found.dispatch) == ((), None, None, None)
    assert found.verdict == "update: no layout fits"


def test_longer_episodes_take_longer() -> None:
    times = [step(context).seconds.value for context in (1024, 4096, 16_384)]
    assert times == sorted(times)
