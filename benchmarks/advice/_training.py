"""Trains a script with the trainer that users have, and measures every feature of its answers."""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.advice._scenarios import FEATURES, Scenario, Scripted, question_rows
from benchmarks.tool_policy._policy import PolicySettings, make_policy, no_progress_bars

STEPS = 40
"""Steps before the analysis, and again after it."""

LAST = 10
"""The result of a training is the mean over so many last steps."""

_ROLLOUTS = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes what a user may change in a script."""

    rewards: Mapping[str, Scripted]
    weights: Mapping[str, float]
    estimator: str = "grpo"
    samples: int = 8

    @staticmethod
    def of(scenario: Scenario) -> "Setting":
        """Return the script as it was written: GRPO, with weights of 1 unless it gives others."""
        weights = scenario.weights or dict.fromkeys(scenario.rewards, 1.0)
        return Setting(scenario.rewards, weights)

    def without(self, name: str) -> "Setting":
        """Return the setting without a reward."""
        return replace(
            self,
            rewards={each: made for each, made in self.rewards.items() if each != name},
            weights={each: weight for each, weight in self.weights.items() if each != name},
        )


def policy(scenario: Scenario, seed: int) -> Path:
    """Return the folder of a warm start."""
    settings = PolicySettings(
        texts=scenario.start, width=64, inner_width=128, steps=800, batch=32, seed=seed
    )
    return make_policy(settings)


def train(setting: Setting, model: Path, folder: Path, *, steps: int, seed: int) -> Any:
    """Train, and return the mean of every feature at every step, `[step, feature]`.

    The folder then has the completions, as TRL writes them, and a checkpoint after `STEPS` steps.
    """
    import torch
    from datasets import Dataset

    from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

    torch.set_num_threads(1)
    seen: list[list[float]] = []

    def measured(completions: Any, answer: Any) -> None:
        texts = [completion[0]["content"] for completion in completions]
        pairs = list(zip(texts, answer, strict=True))
        seen.append([float(np.mean([f(*pair) for pair in pairs])) for f in FEATURES.values()])

    args = GDPOConfig(
        output_dir=str(folder),
        advantage=setting.estimator,
        reward_weights=list(setting.weights.values()),
        num_generations=setting.samples,
        per_device_train_batch_size=_ROLLOUTS,
        max_completion_length=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_steps=steps,
        save_steps=STEPS,
        save_only_model=True,
        seed=seed,
        log_completions=True,
        num_completions_to_print=0,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    rows = question_rows(np.random.default_rng(seed), 1024)
    with no_progress_bars(), contextlib.redirect_stdout(io.StringIO()):
        trainer = GDPOTrainer(
            model=str(model),
            args=args,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=_functions(setting, measured),
        )
        trainer.train()
    return np.array(seen[:steps])


def _functions(setting: Setting, measured: Any) -> list[Any]:
    def function(name: str, reward: Scripted, *, first: bool) -> Any:
        def score(completions: Any, answer: Any, **_: Any) -> list[float | None]:
            if first:
                measured(completions, answer)
            return [reward(c[0]["content"], a) for c, a in zip(completions, answer, strict=True)]

        score.__name__ = name
        return score

    return [
        function(name, reward, first=not place)
        for place, (name, reward) in enumerate(setting.rewards.items())
    ]


def at_the_end(seen: Any) -> dict[str, float]:
    """Return the mean of every feature over the last steps."""
    return dict(zip(FEATURES, np.mean(seen[-LAST:], axis=0).tolist(), strict=True))
