"""Measures one generation batch: 8 prompts of 47 tokens, temperature 1, the whole vocabulary."""

import time

import numpy as np
import torch
from benchmarks.against_trl._measure import THEIRS, Part
from benchmarks.against_trl._policies import (
    FIRST,
    log_normal,
    numbered_tokenizer,
    small_llama,
    with_given_lengths,
)
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl.generation import complete, fast_rollouts
from gdpo.lab.recipes.models import convert_smollm2

PROMPTS, PROMPT_LENGTH = 8, 47


def random_model():
    return small_llama(1024)


def smollm2():
    return AutoModelForCausalLM.from_pretrained(convert_smollm2(), dtype=torch.float32)


# Model, samples per prompt, lengths.
SETTINGS = {
    "4 x 256, 8 x 8, log-normal": (random_model, 8, log_normal(126, 513)),
    "4 x 256, 8 x 8, all 126": (random_model, 8, [126] * 64),
    "4 x 256, 8 x 1, all 126": (random_model, 1, [126] * 8),
    "SmolLM2-135M, 8 x 8, log-normal": (smollm2, 8, log_normal(64, 256)),
}


def prompt_ids(prompts=PROMPTS, length=PROMPT_LENGTH):
    return np.random.default_rng(1).integers(FIRST, 1000, (prompts, length)).tolist()


def prepare(variant, setting, folder):
    make, samples, lengths = setting
    torch.manual_seed(0)
    model = make()
    trainer = GRPOTrainer(
        model,
        lambda completions, **_: [0.0] * len(completions),
        GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=PROMPTS * samples,
            num_generations=max(samples, 2),
            max_completion_length=max(lengths),
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["<2>"]}),
        processing_class=numbered_tokenizer(model.config.vocab_size),
    )
    assert fast_rollouts(trainer) is not None
    with_given_lengths(model, lengths)  # after the trial of `fast_rollouts`
    model.train()
    batch = [prompt for prompt in prompt_ids() for _ in range(samples)]

    def work():
        start = time.process_time()
        if variant == THEIRS:
            completions, _ = trainer._generate_single_turn(batch, None, {}, samples)
        else:
            completions = complete(batch, trainer)
        seconds = time.process_time() - start
        assert [len(ids) for ids in completions] == lengths
        return seconds

    return work


GENERATION = Part("generation", "a generation batch", SETTINGS, (THEIRS, "ours"), prepare)
