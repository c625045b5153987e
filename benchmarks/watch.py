"""Measures `gdpo.integrations.trl.watch` on TRL's own trainers, with tiny policies on a CPU.

    python -m benchmarks.watch equal --steps 50     # gradients and metrics with and without watch
    python -m benchmarks.watch cost --steps 20      # time of the watch per step
    python -m benchmarks.watch found --seeds 20     # step in which an ignored reward is reported
    python -m benchmarks.watch alone --seeds 20     # the same without the trainer
    python -m benchmarks.watch shown                # what appears on the screen

In `found`, a `rollout_func` makes up the completions, and TRL's trainer does the rest. The policy
is trained, but the completions do not depend on it, because generation would take too long.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from tests.integrations.watched import TRAINERS, differences, train
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from gdpo.demo._policy import PolicySettings, make_policy
from gdpo.diagnostics import Watch, diagnose
from gdpo.integrations.trl import _watching, watch

TINY = PolicySettings(layers=1, width=32, heads=2, inner_width=32, vocabulary=300, steps=3)
SMALL = PolicySettings(layers=8, width=384, heads=6, inner_width=1024, vocabulary=300, steps=3)
"""A step with this policy takes about a second or more."""


def large(completion_ids, **_columns):
    """Return a reward from 0 to 96."""
    return [float(sum(ids) % 97) for ids in completion_ids]


def small(completion_ids, **_columns):
    """Return a reward of 0 or 1, unrelated to the other."""
    return [float(ids[0] % 2) for ids in completion_ids]


class MadeUp:
    """Returns random completions of 8 tokens, as TRL's `rollout_func`."""

    def __init__(self, seed):
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, prompts, trainer):
        ids = torch.randint(4, 200, [len(prompts), 8], generator=self._generator)
        tokenizer = trainer.processing_class
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids.tolist(),
            "logprobs": None,
        }


def make(policy, folder, *, groups, samples, steps, rollout_func=None, **changed):
    """Return TRL's GRPOTrainer with an ignored reward."""
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=groups * samples,
        num_generations=samples,
        max_steps=steps,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **changed,
    )
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(policy),
        [large, small],
        config,
        train_dataset=Dataset.from_dict({"prompt": [f"problem {i}" for i in range(256)]}),
        processing_class=AutoTokenizer.from_pretrained(policy),
        rollout_func=rollout_func,
    )
    trainer.remove_callback(PrinterCallback)  # it prints all metrics of every step
    return trainer


def equal(options, folder):
    """Print what differs between a training and the same training with `watch`."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 10, "num_generations_eval": 2}
    policy = make_policy(TINY, lambda _: None)
    for name in TRAINERS:
        runs = [
            train(
                name,
                policy,
                folder / name / str(watched),
                watched=watched,
                estimators=["gdpo"],
                max_steps=options.steps,
                **evaluated,
            )
            for watched in (False, True)
        ]
        numbers = sum(map(len, runs[0].logged))
        moved = sum(bool(gradient.any()) for gradient in runs[0].gradients)
        print(
            f"{name}: {options.steps} steps, {moved} gradients other than 0, {numbers} logged "
            f"numbers; different: {list(differences(*runs)) or 'nothing'}",
            flush=True,
        )


class Clock(TrainerCallback):
    """Measures the processor time of every step, and of the watch in it."""

    def __init__(self):
        self.steps, self.watch = [], [0.0]
        safely = _watching._Watched._safely

        def timed(watched, *args, **kwargs):
            started = time.process_time()
            safely(watched, *args, **kwargs)
            self.watch[-1] += time.process_time() - started

        _watching._Watched._safely = timed

    def on_step_begin(self, *_args, **_kwargs):
        self._started = time.process_time()

    def on_log(self, *_args, logs, **_kwargs):  # after on_step_end, where the watch saves its state
        if "loss" in logs:
            self.steps.append(time.process_time() - self._started)
            self.watch.append(0.0)


def cost(options, folder):
    """Print the processor time of the watch as a share of the rest of its step."""
    clock = Clock()
    cases = [("toy", TINY, 4, 3), ("toy", TINY, 8, 8), ("small", SMALL, 8, 24)]
    for name, settings, groups, tokens in cases:
        policy = make_policy(settings, lambda _: None)
        trainer = make(
            policy,
            folder / f"{name}-{groups}",
            groups=groups,
            samples=8,
            steps=options.steps,
            max_completion_length=tokens,
        )
        clock.steps, clock.watch = [], [0.0]
        watch(trainer)
        trainer.add_callback(clock)
        trainer.train()
        steps, ours = np.array(clock.steps[2:]), np.array(clock.watch[2:-1])
        shares = 100 * ours / (steps - ours)
        drawn = np.random.default_rng(0).choice(shares, (2000, len(shares)))
        low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
        print(
            f"{name} policy, {groups} groups of 8: processor time of a step "
            f"{np.median(steps):.3f} s, of the watch {1000 * np.median(ours):.1f} ms; share "
            f"{np.median(shares):.2f} % [{low:.2f}, {high:.2f}], {len(steps)} steps",
            flush=True,
        )


class Reported(logging.Handler):
    """Stores the step in which the watch reports the ignored reward."""

    def __init__(self, trainer):
        super().__init__()
        self._trainer = trainer
        self.steps = []

    def emit(self, record):
        if "`small` is ignored" in record.getMessage():
            self.steps.append(self._trainer.state.global_step + 1)


def found(options, folder):
    """Print in how many seeds an ignored reward is reported, and in which step."""
    policy = make_policy(TINY, lambda _: None)
    for groups, samples, steps in ((8, 8, 20), (8, 16, 20), (2, 8, 60)):
        firsts = []
        for seed in range(options.seeds):
            trainer = make(
                policy, folder, groups=groups, samples=samples, steps=steps,
                rollout_func=MadeUp(seed), seed=seed, max_completion_length=8,
            )  # fmt: skip
            watch(trainer)
            reported = Reported(trainer)
            logging.getLogger(_watching.__name__).addHandler(reported)
            trainer.train()
            logging.getLogger(_watching.__name__).removeHandler(reported)
            firsts += reported.steps[:1]
        by_ten = sum(first <= 10 for first in firsts)
        print(
            f"{groups} groups of {samples}: reported in {len(firsts)} of {options.seeds} seeds "
            f"within {steps} steps, in {by_ten} by step 10; steps {sorted(firsts)}",
            flush=True,
        )


def alone(options, _folder):
    """Print the same as `found` from the same completions, without the trainer."""
    for groups, samples, steps in ((8, 8, 20), (2, 8, 60)):
        firsts = [_first(seed, groups, samples, steps) for seed in range(options.seeds)]
        print(f"{groups} groups of {samples}: steps {sorted(firsts)}", flush=True)


def _first(seed, groups, samples, steps):
    generator, findings = torch.Generator().manual_seed(seed), Watch()
    for step in range(1, steps + 1):
        ids = torch.randint(4, 200, [groups * samples, 8], generator=generator).tolist()
        rewards = np.array([large(ids), small(ids)], np.float32).T.reshape(groups, samples, 2)
        findings.update(diagnose(rewards, None, ["large", "small"], estimator="grpo"))
        if any(finding.rewards == ("small",) for finding in findings.due):
            return step
    return steps + 1


def shown(_options, folder):
    """Print what the watch shows while an ignored reward is trained."""
    logging.basicConfig(format="%(message)s")
    policy = make_policy(TINY, lambda _: None)
    trainer = make(
        policy, folder, groups=8, samples=8, steps=10,
        rollout_func=MadeUp(0), max_completion_length=8,
    )  # fmt: skip
    watch(trainer)
    trainer.train()
    print({key: value for key, value in trainer.state.log_history[-2].items() if "share" in key})


def main() -> None:
    """Read the options and run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["equal", "cost", "found", "alone", "shown"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder:
            globals()[what](options, Path(folder))


if __name__ == "__main__":
    main()
