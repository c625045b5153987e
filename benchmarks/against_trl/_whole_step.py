"""Measures whole optimizer steps: generation, three rewards, old log-probabilities, training."""

import numpy as np
import torch
from benchmarks.against_trl._generation import prompt_ids, smollm2
from benchmarks.against_trl._measure import NEWER, THEIRS, Clock, Part
from benchmarks.against_trl._policies import (
    byte_tokenizer,
    log_normal,
    numbered_tokenizer,
    small_llama,
    with_given_lengths,
)
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

STEPS, WARM_UP = 4, 1
SWITCHES = ("pack_micro_batches", "completion_only_head", "fast_generation")


def letters(completions, **_):
    return [sum(c.isalpha() for c in text) / 32 for text in completions]


def digits(completions, **_):
    return [float(any(c.isdigit() for c in text)) for text in completions]


def short(completion_ids, **_):
    return [float(i % 3) + len(ids) / 1000 for i, ids in enumerate(completion_ids)]


def trainer_of(variant, folder, **kwargs):
    torch.manual_seed(0)
    own = {"multi_objective_aggregation": "normalize_then_sum"}
    if variant != THEIRS:
        own = {} if variant == "ours" else dict.fromkeys(SWITCHES, False)
        own["rollouts_dir"] = f"{folder}/rollouts" if "records" in variant else None
    settings = kwargs.pop("settings")
    config = (GRPOConfig if variant == THEIRS else GDPOConfig)(
        output_dir=folder,
        seed=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
        **NEWER,
        logging_strategy="no",
        **settings,
        **own,
    )
    trainer = GRPOTrainer if variant == THEIRS else GDPOTrainer
    return trainer(reward_funcs=[letters, digits, short], args=config, **kwargs)


def prepare_overhead(variant, rows, folder):
    clock = Clock()
    trainer = trainer_of(
        variant,
        folder,
        model=small_llama(257),
        train_dataset=Dataset.from_dict({"prompt": [f"prompt {i}" for i in range(64)]}),
        processing_class=byte_tokenizer(),
        callbacks=[clock],
        settings={
            "per_device_train_batch_size": rows,
            "num_generations": 8,
            "max_completion_length": 32,
            "max_steps": WARM_UP + STEPS,
        },
    )

    def work():
        trainer.train()
        return float(np.mean(clock.seconds[WARM_UP:]))

    return work


def prepare_smollm2(variant, setting, folder):
    clock = Clock()
    prompts, length, lengths = setting
    model = smollm2()
    texts = [" ".join(f"<{i}>" for i in ids) for ids in prompt_ids(prompts, length)]
    trainer = trainer_of(
        variant,
        folder,
        model=model,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=numbered_tokenizer(model.config.vocab_size),
        callbacks=[clock],
        settings={
            "per_device_train_batch_size": len(lengths) // prompts,
            "gradient_accumulation_steps": prompts,
            "num_generations": len(lengths) // prompts,
            "max_completion_length": max(lengths),
            "max_steps": 1,
        },
    )
    with_given_lengths(model, lengths)  # after the trials of the trainer

    def work():
        trainer.train()
        return clock.seconds[0]

    return work


STEP = Part(
    "step",
    "an optimizer step",
    {  # Prompts, their length, lengths of the completions.
        "SmolLM2-135M, 8 x 8, up to 256 tokens": (8, 47, log_normal(64, 256)),
        "tool calling 600/100/4, SmolLM2-135M": (4, 600, log_normal(100, 400, 16)),
    },
    (THEIRS, "ours"),
    prepare_smollm2,
)
OVERHEAD = Part(
    "overhead",
    "an optimizer step",
    {"4 x 256, 64 rollouts of up to 32 tokens": 64},
    (THEIRS, "all off", "all off, with records"),
    prepare_overhead,
)
