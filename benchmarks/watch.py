"""Measures `gdpo.integrations.trl.watch` on TRL's own trainers, with tiny policies on a CPU.

    python -m benchmarks.watch equal --steps 50     # gradients and metrics with and without watch
    python -m benchmarks.watch cost --steps 12      # time of a step with and without the watch
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
from benchmarks._shown import interval
from benchmarks.tool_policy._policy import PolicySettings, make_policy
from datasets import Dataset
from tests.integrations.watched import TRAINERS, differences, train
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from gdpo.diagnostics import Watch, diagnose
from gdpo.integrations._harmless import Harmless
from gdpo.integrations.trl import watch

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
    policy = make_policy(TINY)
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
    """Measures the processor time of every step."""

    def __init__(self):
        self.steps = []

    def on_step_begin(self, *_args, **_kwargs):
        self._started = time.process_time()

    def on_log(self, *_args, logs, **_kwargs):  # after on_step_end, where the watch saves its state
        if "loss" in logs:
            self.steps.append(time.process_time() - self._started)


class OfWatch:
    """Measures the processor time of the watch in all trainers of this process."""

    def __init__(self):
        self.seconds = 0.0
        attempt = Harmless.attempt

        def timed(harmless, *args, **kwargs):
            started = time.process_time()
            try:
                return attempt(harmless, *args, **kwargs)
            finally:
                self.seconds += time.process_time() - started

        Harmless.attempt = timed


def cost(options, folder):
    """Print the processor time of the watch, and of a step with and without it.

    The two trainings of a pair have the same weights and data. Their order changes from pair to
    pair.
    """
    clock = OfWatch()
    cases = [("toy", TINY, 4, 3), ("toy", TINY, 8, 8), ("small", SMALL, 8, 24)]
    for name, settings, groups, tokens in cases:
        policy = make_policy(settings)
        wanted = {"groups": groups, "samples": 8, "steps": options.steps}
        pairs = []
        for pair in range(options.pairs):
            means = {}
            for watched in (pair % 2 == 0, pair % 2 == 1):
                trainer = make(policy, folder / name, **wanted, max_completion_length=tokens)
                means[watched] = mean_step(trainer, clock, watched=watched)
            (without, _), (step, ours) = means[False], means[True]
            pairs.append((without, 100 * (step / without - 1), 100 * ours / (step - ours)))
        steps, differences, shares = np.array(pairs).T
        print(
            f"{name} policy, {groups} groups of 8: a step takes {steps.mean():.3f} s of processor "
            f"time; with the watch {interval(differences)} % more; the watch itself "
            f"{interval(shares)} % ({options.pairs} pairs of {options.steps} steps)",
            flush=True,
        )


def mean_step(trainer, of_watch, *, watched):
    """Train, and return the mean processor time of a step, and that of the watch in it."""
    if watched:
        watch(trainer)
    clock, before = Clock(), of_watch.seconds
    trainer.add_callback(clock)
    trainer.train()
    return np.mean(clock.steps[2:]), (of_watch.seconds - before) / len(clock.steps)


class Reported(logging.Handler):
    """Stores the step in which the watch reports the ignored reward."""

    def __init__(self, trainer):
        super().__init__()
        self._trainer = trainer
        self.steps = []

    def emit(self, record):
        if "`small`" in record.getMessage():
            self.steps.append(self._trainer.state.global_step + 1)


def found(options, folder):
    """Print in how many seeds an ignored reward is reported, and in which step."""
    policy = make_policy(TINY)
    for groups, samples, steps in ((8, 8, 40), (8, 16, 40), (2, 8, 120)):
        firsts = []
        for seed in range(options.seeds):
            trainer = make(
                policy, folder, groups=groups, samples=samples, steps=steps,
                rollout_func=MadeUp(seed), seed=seed, max_completion_length=8,
            )  # fmt: skip
            watch(trainer)
            reported = Reported(trainer)
            logging.getLogger(watch.__module__).addHandler(reported)
            trainer.train()
            logging.getLogger(watch.__module__).removeHandler(reported)
            firsts += reported.steps[:1]
        print(
            f"{groups} groups of {samples}: reported in {len(firsts)} of {options.seeds} seeds "
            f"within {steps} steps; steps {sorted(firsts)}",
            flush=True,
        )


def alone(options, _folder):
    """Print the same as `found` from the same completions, without the trainer."""
    for groups, samples, steps in ((8, 8, 40), (2, 8, 120)):
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
    policy = make_policy(TINY)
    trainer = make(
        policy, folder, groups=8, samples=8, steps=17,
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
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder:
            globals()[what](options, Path(folder))


if __name__ == "__main__":
    main()
