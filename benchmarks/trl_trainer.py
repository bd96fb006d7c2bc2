"""What `earl bench trl` runs in TRL's own environment, as a program: its argument names a job in JSON, which names the
file that takes the result. The task of both sides stands here; TRL is imported by the jobs alone."""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.recipe import load_toml

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The small model's own, with the calls of messages, of which TRL wants to see that they are rendered."""
RESPONSE = load_toml(Path(__file__).with_name("trl.toml"))["response"]
"""How a reply is read: TRL's template for Qwen3, with this model's control tokens."""


class JsonArithmetic(ArithmeticEnv):
    """`arithmetic`, whose teacher calls in the format that TRL reads."""

    def solve(self, rng: Random) -> str:
        call = self.next_operation
        if call is None:
            return super().solve(rng)
        return f'<tool_call>{{"name": "calc", "arguments": {{"expression": "{call}"}}}}</tool_call>'


class Calculator:
    """The same as TRL's `environment_factory` takes it: public methods are tools."""

    def __init__(self, **options: int) -> None:
        self.env = JsonArithmetic(**options)

    def reset(self, seed: int, **_: object) -> str:
        return self.env.reset(seed=seed)[0]

    def calc(self, expression: str) -> str:
        """Work out one operation of whole numbers: +, - or *.

        Args:
            expression: One operation, such as 2+3.
        """
        return str(self.env.calc(expression))


def answered(completions: Sequence[Any], environments: Sequence[Calculator], **_: object) -> list[float]:
    """The score of each episode's last message, where that is an answer."""
    scores = []
    for messages, environment in zip(completions, environments, strict=True):
        text = "" if messages[-1].get("tool_calls") else messages[-1].get("content", "")
        match = re.fullmatch(ArithmeticEnv.answer_form, text)
        scores.append(environment.env.score(match[1]) if match else 0.0)
    return scores


class StageTimes:
    """Seconds by stage, a stage being a method of an object, without those of timed methods that it calls."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def time(self, owner: object, method: str, stage: str) -> None:
        own: Callable[..., Any] = getattr(owner, method)

        def timed(*given: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return own(*given, **named)
            finally:
                took = time.perf_counter() - begin
                self.spent[stage] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, method, timed)


STAGES = {
    "_generate_single_turn": "generation",
    "_generate": "tools_and_chat",
    "_generate_and_score_completions": "rewards_and_padding",
    "_compute_loss": "forward",
    "training_step": "backward",
}


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train by GRPOTrainer with an environment, from the model in `job["model"]`; it is saved in `job["out"]`."""
    import transformers
    import trl
    from datasets import Dataset

    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    tokenizer.save_pretrained(job["out"])  # as it is
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
    model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype="float32")
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in job["seeds"]]
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=answered,
        args=trl.GRPOConfig(output_dir=job["out"], **job["settings"]),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=lambda: Calculator(**job["options"]),
    )
    clock = StageTimes()
    for method, stage in STAGES.items():
        clock.time(trainer, method, stage)
    ends: list[tuple[float, float]] = []

    class TrainerEnds(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append((time.perf_counter(), time.process_time()))
            if len(ends) == 1:
                clock.spent.clear()  # the first step warms up

    trainer.add_callback(TrainerEnds())
    trainer.train()
    model.save_pretrained(job["out"])
    return {
        "ends": ends,
        "stages": clock.spent,
        "rewards": [line["reward"] for line in trainer.state.log_history if "reward" in line],
        "versions": {one.__name__: one.__version__ for one in (trl, transformers)},
    }


def losses(job: Mapping[str, Any]) -> dict[str, Any]:
    """What TRL's trainers make of batches: losses with gradients by case, and advantages by scale."""
    import torch

    found: dict[str, Any] = {}
    for name, settings in job["cases"].items():
        trainer = _trainer("GRPO", job, settings)
        found[name] = [_loss(trainer, batch) for batch in job["batches"]]
    for name, (kind, settings) in job["scales"].items():
        trainer, found[name] = _trainer(kind, job, settings), []
        row = ([1], [2])
        for rewards in job["rewards"]:
            size = len(rewards)
            more: tuple[Any, ...] = ([[1]] * size, [[{"content": ""}]] * size, None, {}, None, [[]] * size)
            whole = ([row[0]] * size, [row[1]] * size, *(more if kind == "GRPO" else more[1:2]))
            trainer._generate = lambda _, whole=whole: whole
            inputs = [{"prompt": "", "reward": reward} for reward in rewards]
            with torch.no_grad():
                found[name].append(trainer._generate_and_score_completions(inputs)["advantages"].tolist())
    return found


def _trainer(kind: str, job: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    import transformers
    import trl
    from datasets import Dataset

    common = {
        "per_device_train_batch_size": job["size"],
        "num_generations": job["group"],
        "use_cpu": True,
        "bf16": False,
    }
    trainer = getattr(trl, f"{kind}Trainer")(
        model=transformers.AutoModelForCausalLM.from_pretrained(job["model"]),
        reward_funcs=lambda reward, **_: reward,
        args=getattr(trl, f"{kind}Config")(output_dir=job["out"], report_to=[], **common, **settings),
        train_dataset=Dataset.from_list([{"prompt": "", "reward": 0.0}] * job["group"]),
        processing_class=transformers.AutoTokenizer.from_pretrained(job["model"], padding_side="left"),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _loss(trainer: Any, batch: Mapping[str, Any]) -> tuple[float, list[list[float]]]:
    import torch

    columns = {
        name: torch.tensor(batch[name], dtype=torch.float64) for name in ("now", "old", "reference", "advantages")
    }
    now, mask = columns["now"].requires_grad_(), torch.tensor(batch["mask"])
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (now, torch.zeros_like(now), None)
    loss = trainer._compute_loss(
        SimpleNamespace(),
        {
            "prompt_ids": mask[:, :1],
            "prompt_mask": mask[:, :1],
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": columns["advantages"],
            "old_per_token_logps": columns["old"],
            "ref_per_token_logps": columns["reference"],
            "num_items_in_batch": mask.sum(),
        },
    )
    [gradient] = torch.autograd.grad(loss, [now])
    return float(loss), gradient.tolist()


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(globals()[job["kind"]](job)), encoding="utf-8")
