"""The training phase of GDPOTrainer against TRL's own, on the same completions in one process.

    python benchmarks/training_speed.py [--rounds 5] [--setting "half dead"]

A rollout function returns prepared completions, so that generation takes no time. In each round the
arms train one optimizer step each after one to warm up, in turn, from the same seed. The figure is
the ratio of TRL's CPU seconds to ours within a round: other load on the machine does not touch it.
The interval is a bootstrap over rounds. Peak memory is the growth of the resident set during
training, in a process of its own for every arm (Linux only). Prints a Markdown table.

The model has 4 layers of 256; 64 completions, 8 micro-batches, lengths at the quantiles of a
log-normal distribution (mean 126, longest 513), prompts of 5 to 20 tokens; groups of 4.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

STEPS, WARM_UP = 1, 1
LONGEST = 513
BYTES = 256


@dataclass(frozen=True)
class Setting:
    """What is trained on; `dead` groups of those there are have rewards that do not vary."""

    rollouts: int = 64
    micro_batches: int = 8
    samples: int = 4
    dead: int = 0
    equal_lengths: bool = False
    vocabulary: int = BYTES + 1
    trainer: tuple[tuple[str, object], ...] = ()


SETTINGS = {
    "nothing dead": Setting(),
    "half dead": Setting(dead=8),
    "81 % dead": Setting(dead=13),
    "nothing dead, with a KL term": Setting(trainer=(("beta", 0.04),)),
    "nothing dead, 2 iterations": Setting(trainer=(("num_iterations", 2),)),
    "nothing dead, vocabulary of 49,152": Setting(vocabulary=49_152),
    "all lengths equal": Setting(equal_lengths=True),
    "one group, one micro-batch": Setting(rollouts=8, micro_batches=1, samples=8),
    "one group, equal lengths": Setting(8, 1, 8, equal_lengths=True),
}

OFF = {"pack_micro_batches": False, "completion_only_head": False}
ARMS = {
    "TRL": (GRPOTrainer, GRPOConfig, {"scale_rewards": "none"}),
    "both off": (GDPOTrainer, GDPOConfig, {"advantage": "grpo_no_std", **OFF}),
    "head": (
        GDPOTrainer,
        GDPOConfig,
        {"advantage": "grpo_no_std", **OFF, "completion_only_head": True},
    ),
    "packed": (
        GDPOTrainer,
        GDPOConfig,
        {"advantage": "grpo_no_std", **OFF, "pack_micro_batches": True},
    ),
    "both": (GDPOTrainer, GDPOConfig, {"advantage": "grpo_no_std"}),
}


class Clock(TrainerCallback):
    """CPU seconds of each optimizer step."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.start = time.process_time()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.process_time() - self.start)


def lengths(setting):
    """Of all completions, in an order that is the same for every arm."""
    if setting.equal_lengths:
        return [126] * setting.rollouts
    ranks = (np.arange(setting.rollouts) + 0.5) / setting.rollouts
    normal = statistics.NormalDist()
    drawn = np.exp(0.675 * np.array([normal.inv_cdf(q) for q in ranks]))
    drawn = np.minimum(LONGEST, np.round(126 * drawn / drawn.mean())).astype(int)
    return np.random.default_rng(0).permutation(drawn).tolist()


def rollouts_of(setting):
    def rollout(prompts, trainer):
        generator = torch.Generator().manual_seed(1)
        return {
            "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [
                [*torch.randint(1, BYTES, [length - 1], generator=generator).tolist(), 0]
                for length in lengths(setting)
            ],
            "logprobs": None,
        }

    return rollout


def rewards_of(setting):
    def reward(completion_ids, **_):
        alive = setting.dead * setting.samples
        return [1.0 if i < alive else float(i % 2) for i in range(len(completion_ids))]

    return reward


def policy(setting):
    alphabet = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="<|end|>", pad_token="<|end|>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=setting.vocabulary,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=1024,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config), tokenizer


def make(arm, setting, folder):
    trainer_class, config_class, own = ARMS[arm]
    torch.manual_seed(0)
    model, tokenizer = policy(setting)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    clock = Clock()
    config = config_class(
        output_dir=folder,
        per_device_train_batch_size=setting.rollouts // setting.micro_batches,
        gradient_accumulation_steps=setting.micro_batches,
        num_generations=setting.samples,
        max_completion_length=LONGEST,
        max_steps=STEPS + WARM_UP,
        seed=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
        activation_checkpointing=False,
        logging_strategy="no",
        **dict(setting.trainer),
        **own,
    )
    prompts = ["?" * (5 + 3 * i % 16) for i in range(64)]
    trainer = trainer_class(
        model,
        [rewards_of(setting)],
        config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        rollout_func=rollouts_of(setting),
        callbacks=[clock],
    )
    return trainer, clock


def seconds_per_step(arm, setting):
    with tempfile.TemporaryDirectory() as folder:
        trainer, clock = make(arm, setting, folder)
        trainer.train()
    return float(np.mean(clock.seconds[WARM_UP:]))


def resident(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def peak(arm, setting):
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = make(arm, setting, folder)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        trainer.train()
        return resident("VmHWM") - before


def peak_apart(arm, name):
    """In megabytes; None where there is no /proc."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, __file__, "--peak-of", arm, "--setting", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]) / 2**20


def interval(ratios):
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    return np.quantile(np.median(draws, axis=1), [0.025, 0.975])


def measure(name, arms, rounds):
    setting = SETTINGS[name]
    seconds = {arm: [] for arm in arms}
    for i in range(rounds):
        for arm in arms if i % 2 == 0 else reversed(arms):
            seconds[arm].append(seconds_per_step(arm, setting))
    peaks = {arm: peak_apart(arm, name) for arm in arms}
    for arm in arms:
        ratios = np.array(seconds["TRL"]) / seconds[arm]
        low, high = interval(ratios)
        memory = "" if peaks[arm] is None else f"{peaks[arm]:.0f}"
        print(
            f"| {name} | {arm} | {np.median(seconds[arm]):.3f} | {np.median(ratios):.2f} "
            f"| {low:.2f} to {high:.2f} | {memory} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    parser.add_argument("--arm", choices=list(ARMS)[1:], action="append")
    parser.add_argument("--peak-of", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if options.peak_of:
        print(json.dumps(peak(options.peak_of, SETTINGS[options.setting[0]])))
        return
    print(
        f"torch {torch.__version__}, TRL {trl.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}, one thread, float32; "
        f"{options.rounds} rounds\n"
    )
    print("| setting | arm | CPU s per step | TRL / it | 95 % interval | peak memory, MB |")
    print("|---|---|---:|---:|---|---:|")
    for name in options.setting or SETTINGS:
        measure(name, ["TRL", *(options.arm or ["both off", "both"])], options.rounds)


if __name__ == "__main__":
    main()
