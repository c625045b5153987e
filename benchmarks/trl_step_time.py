"""Step time of GDPOTrainer against TRL's own GDPO, on the same work in one process.

    python benchmarks/trl_step_time.py [--rounds 10]

Each round trains a few steps with TRL (`multi_objective_aggregation="normalize_then_sum"`), with
ours, and with ours writing rollout records, in turn and from the same seed. The figure is the ratio
of CPU seconds per optimizer step within a round: other load on the machine does not touch it. The
interval is a bootstrap over rounds.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

STEPS, WARM_UP = 4, 1


def letters(completions, **_):
    return [sum(c.isalpha() for c in text) / 32 for text in completions]


def digits(completions, **_):
    return [float(any(c.isdigit() for c in text)) for text in completions]


def short(completions, **_):
    return [float(len(text) < 28) for text in completions]


class Clock(TrainerCallback):
    """CPU seconds of each optimizer step, generation and rewards included."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.start = time.process_time()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.process_time() - self.start)


def policy():
    alphabet = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="<|end|>", pad_token="<|end|>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), tokenizer


def seconds_per_step(trainer_class, config_class, folder, **own):
    torch.manual_seed(0)
    model, tokenizer = policy()
    clock = Clock()
    config = config_class(
        output_dir=folder,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=32,
        max_steps=STEPS + WARM_UP,
        seed=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        activation_checkpointing=False,
        **own,
    )
    trainer = trainer_class(
        model,
        [letters, digits, short],
        config,
        train_dataset=Dataset.from_dict({"prompt": [f"prompt {i}" for i in range(64)]}),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return float(np.mean(clock.seconds[WARM_UP:]))


def interval(ratios):
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    return np.quantile(np.median(draws, axis=1), [0.025, 0.975])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    arms = {
        "TRL": (GRPOTrainer, GRPOConfig, {"multi_objective_aggregation": "normalize_then_sum"}),
        "ours": (GDPOTrainer, GDPOConfig, {}),
        "ours, with records": (GDPOTrainer, GDPOConfig, {"rollouts_dir": "rollouts"}),
    }
    seconds = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            names = list(arms) if i % 2 == 0 else list(reversed(arms))
            for name in names:
                trainer_class, config_class, own = arms[name]
                if "rollouts_dir" in own:
                    own = {"rollouts_dir": str(Path(folder) / f"rollouts-{i}")}
                seconds[name].append(seconds_per_step(trainer_class, config_class, folder, **own))
    base = np.array(seconds["TRL"])
    print(f"{'arm':<20} {'CPU s/step':>10} {'ratio to TRL':>13}   95 % interval")
    for name, values in seconds.items():
        ratios = np.array(values) / base
        low, high = interval(ratios)
        each, ratio = np.median(values), np.median(ratios)
        print(f"{name:<20} {each:>10.3f} {ratio:>13.4f}   [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
