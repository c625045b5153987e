"""Trains the same short run with our trainer and with TRL's, and records both."""

import os

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.rollouts import read_rollouts, rollout_file

PROMPTS = ["count to ten", "say hi", "what", "now then", "go", "name a bird"]
SAMPLES = 4
WEIGHTS = [1.0, 0.5, 0.25]
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in GRPOConfig.__dataclass_fields__
)
"""The name of the field depends on the release of transformers."""


def bytes_written(completions, **columns):
    """Return a reward with a large range."""
    return [float(sum(map(ord, text)) % 97) for text in completions]


def digits(completions, **columns):
    """Return a reward of 0 or 1."""
    return [float(any(c.isdigit() for c in text)) for text in completions]


def vowels(completions, **columns):
    """Narrow, and missing for some."""
    return [sum(c in "aeiou" for c in text) / 100 for text in completions]


def sometimes_vowels(completions, **columns):
    """Narrow, and missing for some."""
    return [None if "a" in text else sum(c in "eiou" for c in text) / 100 for text in completions]


def scored_again(completion):
    """Return the rewards of a completion by name, as the reward functions return them."""
    functions = [bytes_written, digits, sometimes_vowels]
    return {function.__name__: function([completion])[0] for function in functions}


def logged(trainer, key):
    """Return the values that a run logged under a key."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def rollouts_of(folder, step=1):
    """Return the recorded rollouts of a step."""
    return read_rollouts(rollout_file(folder / "rollouts", step))


class _Recording:
    """Records the gathered rewards and the local advantages of every generation batch."""

    def _calculate_rewards(self, *args):
        self.seen_rewards = super()._calculate_rewards(*args)
        return self.seen_rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.record.append(
            {
                "rewards": self.seen_rewards.tolist(),
                "advantages": output["advantages"].tolist(),
                "training": self.model.training,
            }
        )
        return output


class Ours(_Recording, GDPOTrainer):
    """Records GDPOTrainer's batches."""


class Theirs(_Recording, GRPOTrainer):
    """Records TRL's batches."""


def dataset(rows=24):
    """Return prompts in a fixed order."""
    return Dataset.from_dict({"prompt": [PROMPTS[i % len(PROMPTS)] for i in range(rows)]})


def settings(folder, **changed):
    """Return the shared settings. A learning rate of 0 keeps the completions equal."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 12,
        "num_generations": SAMPLES,
        "max_completion_length": 12,
        "max_steps": 3,
        "learning_rate": 0.0,
        "logging_steps": 1,
        "seed": 7,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": os.environ.get("GDPO_TEST_ON_GPU") != "1",
        "bf16": False,
        "disable_tqdm": True,
        CHECKPOINTING: False,
        "reward_weights": WEIGHTS,
        **changed,
    }


def trainer_of(
    trainer_class, config_class, policy, folder, *, model=None, rewards=None, how=None, **options
):
    """Return a trainer with two rewards of weight 1. `how` has other arguments of the class."""
    return trainer_class(
        model or AutoModelForCausalLM.from_pretrained(policy),
        rewards or [bytes_written, digits],
        config_class(**settings(folder, **{"reward_weights": None, **options})),
        processing_class=AutoTokenizer.from_pretrained(policy),
        **{"train_dataset": dataset(), **(how or {})},
    )


SAMPLED_BY_TRL = {"fast_generation": False}
"""Our generation samples other tokens for the same seed."""

VARIANTS = {
    "ours": (Ours, GDPOConfig, {"advantage": "gdpo", **SAMPLED_BY_TRL}),
    "theirs": (Theirs, GRPOConfig, {"multi_objective_aggregation": "normalize_then_sum"}),
    "ours_grpo": (Ours, GDPOConfig, {"advantage": "grpo", **SAMPLED_BY_TRL}),
    "theirs_grpo": (Theirs, GRPOConfig, {}),
    "ours_grpo_no_std": (Ours, GDPOConfig, {"advantage": "grpo_no_std", **SAMPLED_BY_TRL}),
    "ours_grpo_batch_std": (Ours, GDPOConfig, {"advantage": "grpo_batch_std", **SAMPLED_BY_TRL}),
    "theirs_grpo_batch_std": (Theirs, GRPOConfig, {"scale_rewards": "batch"}),
    "theirs_grpo_no_std": (Theirs, GRPOConfig, {"scale_rewards": "none"}),
}


def make(variant, policy, folder, *, rewards=None, **changed):
    """Return a trainer of this variant."""
    trainer_class, config_class, own = VARIANTS[variant]
    torch.manual_seed(0)
    default = [bytes_written, digits, vowels if "grpo" in variant else sometimes_vowels]
    options = {"reward_weights": WEIGHTS, **own, **changed}
    how = {"eval_dataset": dataset(6)}
    trainer = trainer_of(
        trainer_class, config_class, policy, folder, rewards=rewards or default, how=how, **options
    )
    trainer.record = []
    return trainer


def trained(variant, policy, folder, **changed):
    """Train three steps and return the trainer, which recorded them."""
    trainer = make(variant, policy, folder, **changed)
    trainer.train()
    return trainer
