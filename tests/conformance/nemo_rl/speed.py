"""Times NeMo-RL's own GDPO and ours for one batch, called as its trainer calls them.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/speed.py

1,024 prompts x 16 rollouts, 3 rewards, prompts of 64 tokens, 1,024 tokens to train: medians of 5,
in seconds, alternating. gdpo's time includes its metrics.
"""

import json
import os
import sys
from statistics import median
from time import perf_counter

import torch
from paths import BatchedDataDict, configured, grpo, nemo_rl

from gdpo.integrations.nemo_rl import AdvantageEstimator

PROMPTS, SAMPLES, TOKENS, PROMPT_TOKENS = 1024, 16, 1024, 64
NAMES = ["correct", "format", "length"]


def made():
    torch.manual_seed(0)
    rows = PROMPTS * SAMPLES
    rewards = {f"reward/{name}": torch.rand(rows) for name in NAMES}
    prompts = torch.randint(0, 50_000, (PROMPTS, PROMPT_TOKENS))
    return {
        "prompt_ids": prompts.repeat_interleave(SAMPLES, dim=0),
        "rewards": sum(rewards.values()),
        "mask": (torch.arange(TOKENS) < torch.randint(1, TOKENS + 1, (rows, 1))).float(),
        "repeated_batch": BatchedDataDict(rewards),
    }


def main():
    batch, theirs = made(), grpo._create_advantage_estimator
    estimators = {
        "NeMo-RL": theirs(configured()),
        "gdpo": AdvantageEstimator(configured(gdpo_reward_keys=NAMES).grpo.adv_estimator),
    }
    seconds = {"NeMo-RL": [], "gdpo": []}
    for _ in range(5):
        for name, estimator in estimators.items():
            start = perf_counter()
            estimator.compute_advantage(**batch)
            seconds[name].append(perf_counter() - start)
    result = {name: round(median(times), 4) for name, times in seconds.items()}
    result |= {"times faster": round(median(seconds["NeMo-RL"]) / median(seconds["gdpo"]), 1)}
    result |= {"NeMo-RL version": nemo_rl.__version__, "torch": torch.__version__}
    result |= {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
