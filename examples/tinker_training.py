"""Trains on two rewards through a Tinker-compatible server.

    python examples/tinker_training.py --model MODEL --url http://127.0.0.1:8000 --rollouts out

The server may be Thinking Machines' or one with the same API, such as SkyRL's. `--model` also names
the tokenizer, for `from_pretrained`. Afterwards: gdpo analyze out
"""

import argparse
from pathlib import Path

import tinker
from adapters.tinker import train_step
from transformers import AutoTokenizer

from gdpo.advantages import AdvantageRule
from gdpo.rollouts import Rollout, rollout_file, write_rollouts

NAMES, WEIGHTS = ["digits", "brevity"], [1.0, 0.25]


def rewards_of(text):
    """Return the share of digits, and a brevity that falls from 1 (empty text) to 0."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1), max(0.0, 1 - len(text) / 200)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="name or folder of the model")
    parser.add_argument("--url", required=True, help="address of the server")
    parser.add_argument("--rollouts", type=Path, required=True, help="folder for the rollouts")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps. Default: 20")
    parser.add_argument("--estimator", default="gdpo", help="name of an estimator. Default: gdpo")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    service = tinker.ServiceClient(base_url=options.url)
    client = service.create_lora_training_client(base_model=options.model, rank=8)
    rule = AdvantageRule(options.estimator, NAMES)
    prompts = [f"What is {i} + {i + 1}?" for i in range(4)]
    for step in range(1, options.steps + 1):
        done = train_step(
            client,
            [tokenizer.encode(prompt) for prompt in prompts],
            lambda groups: [[rewards_of(tokenizer.decode(c)) for c in group] for group in groups],
            rule,
            WEIGHTS,
            sampling={
                "num_samples": 4,
                "sampling_params": tinker.SamplingParams(max_tokens=16, temperature=1.0, seed=step),
            },
            learning_rate=5e-3,
        )
        means = ", ".join(
            f"{n} {m:.3f}" for n, m in zip(NAMES, done.rewards.mean((0, 1)), strict=True)
        )
        print(f"step {step}: {means}; sampler and trainer differ by {done.logprob_difference:.4f}")
        record(options.rollouts, step, prompts, done, tokenizer)


def record(folder, step, prompts, done, tokenizer):
    """Write the rollouts of a step, for `gdpo analyze`."""
    rollouts = [
        Rollout(
            run="tinker",
            step=step,
            group_id=p,
            sample_id=s,
            prompt=prompts[p],
            completion=tokenizer.decode(tokens),
            rewards=dict(zip(NAMES, done.rewards[p, s].tolist(), strict=True)),
            weights=dict(zip(NAMES, WEIGHTS, strict=True)),
            advantage=float(done.advantages[p, s]),
            num_tokens=len(tokens),
            finish_reason=done.finish_reasons[p][s],
        )
        for p, group in enumerate(done.completions)
        for s, tokens in enumerate(group)
    ]
    write_rollouts(rollout_file(folder, step), rollouts)


if __name__ == "__main__":
    main()
