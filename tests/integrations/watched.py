"""Short trainings with TRL's own trainers, with and without `watch`, on a tiny policy."""

import torch
from tests.integrations.prepared import Run
from tests.integrations.variants import (
    CHECKPOINTING,
    PROMPTS,
    bytes_written,
    dataset,
    digits,
    settings,
    sometimes_vowels,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from gdpo.integrations.trl import watch

TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig, {}),
    "gdpo": (GRPOTrainer, GRPOConfig, {"multi_objective_aggregation": "normalize_then_sum"}),
    "rloo": (RLOOTrainer, RLOOConfig, {}),
}
"""TRL's trainers: GRPO with two aggregations, and RLOO."""

TIMES = ("_runtime", "_per_second", "step_time")
"""Parts of the names of TRL's metrics that are times."""


class Trained(Run):
    """Stores what a training did, and TRL's logged numbers."""

    @property
    def numbers(self):
        """Return the logged numbers without the times."""
        return [
            {key: value for key, value in row.items() if not any(t in key for t in TIMES)}
            for row in self.trainer.state.log_history
        ]


def make(name, policy, folder, *, callbacks=(), **changed):
    """Return one of `TRAINERS`. It accumulates gradients over two batches of 4 rollouts."""
    trainer_class, config_class, own = TRAINERS[name]
    torch.manual_seed(0)
    rewards = changed.pop("rewards", [bytes_written, digits, sometimes_vowels])
    wanted = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "max_steps": 6,
    }
    config = settings(folder, **{**wanted, **own, **changed})
    config["reward_weights"] = config["reward_weights"][: len(rewards)]
    config.pop(CHECKPOINTING)
    return trainer_class(
        AutoModelForCausalLM.from_pretrained(policy),
        rewards,
        config_class(**config),
        train_dataset=dataset(48),
        eval_dataset=dataset(len(PROMPTS)),
        processing_class=AutoTokenizer.from_pretrained(policy),
        callbacks=list(callbacks),
    )


def watch_and_train(trainer, **options):
    """Train under a watch with these options, and return the trainer."""
    watch(trainer, **options)
    trainer.train()
    return trainer


def train(name, policy, folder, *, watched, estimators=(), **changed):
    """Train and return what happened."""
    run = Trained()
    trainer = make(name, policy, folder, callbacks=[run], **changed)
    if watched:
        watch(trainer, rollouts_dir=folder / "rollouts", estimators=estimators)
    trainer.train()
    return run.finish(trainer)


def differences(alone, watched):
    """Return what differs between a training and the same training with `watch`."""
    assert len(alone.gradients) == len(watched.gradients) == alone.trainer.args.max_steps
    if any(not torch.equal(a, b) for a, b in zip(alone.gradients, watched.gradients, strict=True)):
        yield "gradients"
    if not torch.equal(alone.parameters, watched.parameters):
        yield "parameters"
    assert len(alone.numbers) == len(watched.numbers)
    for theirs, both in zip(alone.numbers, watched.numbers, strict=True):
        for key, value in theirs.items():
            if both[key] != value:
                yield f"step {theirs['step']}: {key}"


def one_rank_off(policy, folder):
    """Train with a `watch` that fails on rank 1 in the first step. Return the recorded steps."""
    trainer = make("grpo", policy, folder, gradient_accumulation_steps=1, max_steps=3)
    watch(trainer, rollouts_dir=folder / "rollouts")
    (watched,) = (e for e in trainer.callback_handler.callbacks if hasattr(e, "advantages"))
    if trainer.accelerator.process_index == 1:
        watched._observe = None
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    return sorted(path.stem for path in (folder / "rollouts").glob("*.parquet"))


def on_two_ranks(policy, folder):
    """Train on this rank with and without `watch`. Return what differs, and the logged shares."""
    alone, watched = (
        train("grpo", policy, folder / str(watched), watched=watched, max_steps=2)
        for watched in (False, True)
    )
    shares = [
        [row[f"rewards/{name}/influence_share"] for name in watched.trainer.reward_func_names]
        for row in watched.numbers[:1]
    ]
    return {"differences": list(differences(alone, watched)), "shares": shares}
