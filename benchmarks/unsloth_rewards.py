"""Writes rollouts for `gdpo analyze`, with the four rewards of Unsloth's GRPO notebook.

    python -m benchmarks.unsloth_rewards [--steps 60] [--seed 0] [--output runs/unsloth]
    gdpo analyze runs/unsloth/rollouts --estimators recorded,grpo_no_std,grpo,gdpo

The rewards have the ranges of the notebook and the tags of the study's stories: the whole format (0
or 3), three of its tags (-3 to 1.5), the answer (-4.5 to 5) and the number in it (-2.5 to 3.5). The
policy is the study's, with 0.4 M parameters. The trainer is TRL's GRPOTrainer as in the notebook,
plus one line: `watch`. 16 prompts x 4 samples per step, on the CPU.
"""

import argparse
import re
from pathlib import Path

from benchmarks.study._maths import Careless, story_rows
from benchmarks.tool_policy._policy import PolicySettings, make_policy
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import watch

TAGS = ("</think>", "<answer>", "</answer>")
WHOLE = re.compile(r"^\s*<think>[^<]*</think>\s*<answer>([^<]*)</answer>\s*$")
ANSWER = re.compile(r"<answer>([^<]{0,40})")
NUMBER = re.compile(r"<answer>[^<\d]{0,40}(-?\d{1,9})")


def texts(completions):
    return [completion[0]["content"] for completion in completions]


def match_format_exactly(completions, **_):
    """Score 3 for the complete format, else 0."""
    return [3.0 if WHOLE.match(text) else 0.0 for text in texts(completions)]


def match_format_approximately(completions, **_):
    """Add 0.5 for each tag after the first that appears exactly once, else -1."""
    return [
        sum(0.5 if text.count(tag) == 1 else -1.0 for tag in TAGS) for text in texts(completions)
    ]


def check_answer(completions, answer, **_):
    """Score 5 for the right answer, less if it is near, -2.5 if far off, -4.5 without a number."""
    return [
        _judged(ANSWER.search(text), right)
        for text, right in zip(texts(completions), answer, strict=True)
    ]


def _judged(found, right):
    if found is None:
        return -2.5
    if found[1] == right:
        return 5.0
    if found[1].strip() == right:
        return 3.5
    try:
        ratio = float(found[1]) / float(right)
    except (ValueError, ZeroDivisionError):
        return -4.5
    if 0.9 <= ratio <= 1.1:
        return 2.0
    return 1.5 if 0.8 <= ratio <= 1.2 else -2.5


def check_numbers(completions, answer, **_):
    """Score 3.5 if the first number of the answer is right, -1.5 if wrong, -2.5 without one."""
    found = [NUMBER.search(text) for text in texts(completions)]
    return [
        -2.5 if number is None else 3.5 if number[1] == right else -1.5
        for number, right in zip(found, answer, strict=True)
    ]


REWARDS = (match_format_exactly, match_format_approximately, check_answer, check_numbers)


def rows():
    """Return story problems with their answers as text."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["question"]}],
                "answer": row["answer"].removeprefix("#### "),
            }
            for row in story_rows(4096, seed=2000)
        ]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/unsloth"))
    parser.add_argument(
        "--trl-record",
        action="store_true",
        help="Also write TRL's own record of completions (takes minutes).",
    )
    options = parser.parse_args()
    policy = make_policy(PolicySettings(texts=Careless(), steps=1200))
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(policy),
        list(REWARDS),
        GRPOConfig(
            output_dir=str(options.output),
            per_device_train_batch_size=64,
            num_generations=4,
            max_completion_length=48,
            max_steps=options.steps,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            seed=options.seed,
            logging_steps=1,
            log_completions=options.trl_record,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=rows(),
        processing_class=AutoTokenizer.from_pretrained(policy, padding_side="left"),
    )
    watch(trainer, rollouts_dir=options.output / "rollouts")
    trainer.train()


if __name__ == "__main__":
    main()
