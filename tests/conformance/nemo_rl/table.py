"""Prints how far NeMo-RL's own GDPO is from the formula, as a Markdown table of cases.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/table.py

Both are called as its trainer calls them: 12 prompts, 3 rewards, seed 0, from `paths.py`.
"""

import sys

import torch
from paths import Batch, BatchedDataDict, configured, grpo

from gdpo.integrations.nemo_rl import AdvantageEstimator

CASES = {
    "groups of 4": {"sizes": (4, 4)},
    "groups of 1 to 5": {},
    "groups of 4, one reward missing": {"sizes": (4, 4), "missing": True},
    "groups of 6, every reward constant in each": {"sizes": (6, 6), "silent": True},
    "groups of 4, one rollout masked": {"sizes": (4, 4), "masked": 5},
}


def advantages(batch, create, masked=None, **adv_estimator):
    """Return the advantages of trained tokens; 0 elsewhere."""
    mask = batch.mask.clone()
    if masked is not None:
        mask[masked] = 0
    batch.order = range(len(mask))
    rewards = BatchedDataDict(batch.rewards())
    estimator = create(configured(**adv_estimator))
    values = estimator.compute_advantage(
        prompt_ids=batch.prompt_ids(),
        rewards=rewards["total_reward"],
        mask=mask,
        repeated_batch=rewards,
    )
    return values * mask


def ours(config):
    return AdvantageEstimator(config.grpo.adv_estimator)


def largest(values):
    return "NaN" if torch.isnan(values).any() else f"{float(values.abs().max()):.2g}"


def main():
    theirs = grpo._create_advantage_estimator
    write = sys.stdout.write
    write("| batch | largest advantage: gdpo | NeMo-RL | largest difference | with its default |\n")
    write("|---|---|---|---|---|\n")
    for name, case in CASES.items():
        case = dict(case)
        masked = case.pop("masked", None)
        batch = Batch(3, **case)
        keys = {"gdpo_reward_keys": batch.names, "gdpo_reward_weights": batch.weights}
        a = advantages(batch, ours, masked, **keys)
        b = advantages(batch, theirs, masked, reward_weights=batch.weights)
        default = {"reward_weights": batch.weights, "use_leave_one_out_baseline": True}
        c = advantages(batch, theirs, masked, **default)
        cells = [largest(x) for x in (a, b, a - b, a - c)]
        write(f"| {name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
