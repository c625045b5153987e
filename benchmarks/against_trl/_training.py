"""Measures only the training phase: a rollout function returns prepared completions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from benchmarks.against_trl._measure import LIMIT, NEWER, ON_GPU, THEIRS, Clock, Part, now
from benchmarks.against_trl._policies import (
    BYTES,
    END,
    byte_tokenizer,
    log_normal,
    qwen_1_5b,
    small_llama,
)
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer


@dataclass(frozen=True)
class Setting:
    """Describes the training batch. `constant` is the number of zero-variance groups."""

    rollouts: int = 64
    micro_batches: int = 8
    samples: int = 4
    constant: int = 0
    equal_lengths: bool = False
    vocabulary: int = BYTES + 1
    iterations: int = 1
    beta: float = 0.0
    mean: int = 126
    longest: int = 513
    prompt: int | None = None
    """Length of the prompts. None: 5 to 20 tokens."""
    model: Callable[[int], Any] = small_llama
    """Makes a model with a vocabulary of this size."""
    bf16: bool = False
    checkpointing: bool = False
    steps: int = 2
    """Generations. Of several, the first is not timed: its step has the trials of the speed-ups."""


SETTINGS = {
    "every group has signal": Setting(),
    "half of the groups without signal": Setting(constant=8),
    "81 % without signal": Setting(constant=13),
    "with a KL term": Setting(beta=0.04),
    "2 iterations": Setting(iterations=2),
    "16 rollouts, vocabulary of 49,152": Setting(16, 2, vocabulary=49_152),
    "all lengths equal": Setting(equal_lengths=True),
    "one group in one micro-batch": Setting(rollouts=8, micro_batches=1, samples=8),
    "one group, equal lengths": Setting(8, 1, 8, equal_lengths=True),
    "one rollout in a micro-batch, equal lengths": Setting(16, 16, 2, equal_lengths=True),
}
TOOL_CALLING = Setting(mean=100, longest=400, prompt=600)
LONGER = replace(TOOL_CALLING, mean=150, longest=600, prompt=900)
GSM8K = Setting(samples=8, mean=300, longest=1000, prompt=150)
MATHS = Setting(samples=16, mean=1000, longest=3000, prompt=64, micro_batches=4)
for name, setting in (
    ("tool calling 600/100/4", TOOL_CALLING),
    ("tool calling 900/150/4", LONGER),
    ("gsm8k 150/300/8", GSM8K),
    ("maths 64/1000/16", MATHS),
):
    half = setting.rollouts // setting.samples // 2
    SETTINGS[name] = setting
    SETTINGS[f"{name}, half without signal"] = replace(setting, constant=half)
LARGE = Setting(
    rollouts=128,
    micro_batches=16,
    samples=8,
    mean=300,
    longest=1024,
    prompt=512,
    vocabulary=151_936,
    model=qwen_1_5b,
    bf16=True,
)
LARGE_TOOLS = replace(LARGE, samples=4, mean=100, longest=400, prompt=600)
if ON_GPU:
    SETTINGS = {
        "shape of Qwen2.5-1.5B": LARGE,
        "tool calling, shape of Qwen2.5-1.5B": LARGE_TOOLS,
        "tool calling, shape of Qwen2.5-1.5B, half without signal": replace(
            LARGE_TOOLS, constant=16
        ),
        "tool calling, shape of Qwen2.5-1.5B, 16 rollouts in a micro-batch": replace(
            LARGE_TOOLS, micro_batches=8
        ),
        "shape of Qwen2.5-1.5B, gradient checkpointing": replace(LARGE, checkpointing=True),
    }

OFF = {"advantage": "grpo_no_std", "pack_micro_batches": False, "completion_only_head": False}
OURS = {
    "all off": OFF,
    "head": {**OFF, "completion_only_head": True},
    "packed": {**OFF, "pack_micro_batches": True, "share_prompts": False},
    "not shared": {"advantage": "grpo_no_std", "share_prompts": False},
    "all": {"advantage": "grpo_no_std"},
}


def lengths(setting):
    if setting.equal_lengths:
        return [setting.mean] * setting.rollouts
    return log_normal(setting.mean, setting.longest, setting.rollouts)


def rollouts_of(setting):
    def rollout(prompts, trainer):
        generator = torch.Generator().manual_seed(1)
        return {
            "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [
                [*torch.randint(1, BYTES, [length - 1], generator=generator).tolist(), END]
                for length in lengths(setting)
            ],
            "logprobs": None,
        }

    return rollout


def rewards_of(setting):
    def reward(completion_ids, **_):
        constant = setting.constant * setting.samples
        return [1.0 if i < constant else float(i % 2) for i in range(len(completion_ids))]

    return reward


def prompts_of(setting):
    """Return prompts of which no two are equal, as equal ones would be read once."""
    return [chr(48 + i).ljust(setting.prompt or 5 + 3 * i % 16, "?") for i in range(64)]


def limit(setting):
    """Return the work that no trainer can avoid: the bare model reads the tokens that are needed.

    Forward and backward, with as many rollouts at a time as a micro-batch has, and at least a
    group: the model reads the prompt of each group once, then all completions, which attend to it.
    All completions have the mean length of those with signal, so there is no padding.
    """
    with torch.device("cuda" if ON_GPU else "cpu"):
        model = setting.model(setting.vocabulary).train()
        needed = lengths(setting)[setting.constant * setting.samples :]
        completion = round(sum(needed) / len(needed))
        rows = max(setting.samples, setting.rollouts // setting.micro_batches)
        prompts = torch.randint(1, BYTES, (rows // setting.samples, setting.prompt or 12))
        ids = torch.randint(1, BYTES, (rows, completion))

    def work():
        start = now()
        counts = [min(rows, len(needed) - first) for first in range(0, len(needed), rows)]
        for count in counts * setting.iterations:
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=setting.bf16):
                read = model(prompts[: count // setting.samples], logits_to_keep=1, use_cache=True)
                read.past_key_values.batch_repeat_interleave(setting.samples)
                logits = model(ids[:count], past_key_values=read.past_key_values).logits
            cross_entropy = torch.nn.functional.cross_entropy
            cross_entropy(logits.flatten(0, 1).float(), ids[:count].flatten()).backward()
        return now() - start

    return work


def prepare(variant, setting, folder):
    if variant == LIMIT:
        return limit(setting)
    clock = Clock()
    config_class = GRPOConfig if variant == THEIRS else GDPOConfig
    config = config_class(
        output_dir=folder,
        per_device_train_batch_size=setting.rollouts // setting.micro_batches,
        gradient_accumulation_steps=setting.micro_batches,
        num_generations=setting.samples,
        max_completion_length=setting.longest,
        max_steps=setting.steps * setting.iterations,
        num_iterations=setting.iterations,
        beta=setting.beta,
        seed=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not ON_GPU,
        bf16=setting.bf16,
        disable_tqdm=True,
        gradient_checkpointing=setting.checkpointing,
        logging_strategy="no",
        **NEWER,
        **({"scale_rewards": "none"} if variant == THEIRS else OURS[variant]),
    )
    with torch.device("cuda" if ON_GPU else "cpu"):
        model = setting.model(setting.vocabulary)
    tokenizer = byte_tokenizer()
    if setting.beta:  # TRL loads the reference model from a folder
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model = type(model).from_pretrained(folder)
    trainer = (GRPOTrainer if variant == THEIRS else GDPOTrainer)(
        model,
        [rewards_of(setting)],
        config,
        train_dataset=Dataset.from_dict({"prompt": prompts_of(setting)}),
        processing_class=tokenizer,
        rollout_func=rollouts_of(setting),
        callbacks=[clock],
    )

    def work():
        trainer.train()
        return float(np.mean(clock.seconds[setting.iterations if setting.steps > 1 else 0 :]))

    return work


TRAINING = Part("training", "an optimizer step", SETTINGS, (THEIRS, LIMIT, *OURS), prepare)
