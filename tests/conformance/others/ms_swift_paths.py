"""Runs ms-swift's own trainer method from rewards to advantages, with our estimator.

    python tests/conformance/others/ms_swift_paths.py

Prints one line of JSON per path and number of rewards. `--own` leaves `--scale_rewards gdpo` to
ms-swift.
"""

import sys
from collections import defaultdict, deque
from types import SimpleNamespace

import torch
from adapters import adapter
from batches import print_lines
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

OWN = "--own" in sys.argv
SAMPLES = 6


class Trainer:
    """Stands in for a trainer, with what `GRPOTrainer._compute_advantages` reads."""

    kl_in_reward, beta, scale_rewards = False, 0.04, "gdpo"
    model = SimpleNamespace(training=True)
    accelerator = SimpleNamespace(device="cpu")
    num_generations = num_generations_eval = SAMPLES

    def __init__(self, batch, *, dynamic, estimator):
        self.dynamic_num_samples, self.advantage_estimator = dynamic, estimator
        self.reward_weights = torch.tensor(batch.weights)
        self.reward_func_names = batch.names
        self._metrics = {"train": defaultdict(list)}
        self._logs = {"rewards": defaultdict(deque)}
        self._get_last_indices = lambda ids: GRPOTrainer._get_last_indices(self, ids)


def advantages(batch, *, dynamic=False, estimator="grpo"):
    """Return the advantages. Dynamic: every third rollout is several samples of one request."""
    trainer = Trainer(batch, dynamic=dynamic, estimator=estimator)
    rows = [i for i in range(len(batch.values)) for _ in range(1 + (dynamic and i % 3 == 0))]
    samples = [SimpleNamespace(prompt_id=f"p{batch.prompts[i]}", request_id=f"r{i}") for i in rows]
    rewards = torch.tensor(batch.values, dtype=torch.float32)[rows]
    computed = GRPOTrainer._compute_advantages(trainer, samples, rewards, [])
    by_rollout = dict(zip(rows, computed.tolist(), strict=True))
    assert computed.tolist() == [by_rollout[i] for i in rows]
    return [by_rollout[i] for i in range(len(batch.values))]


def several_turns(batch):
    return advantages(batch, dynamic=True)


def reinforce(batch):
    return advantages(batch, estimator="reinforce_plus_plus")


if __name__ == "__main__":
    if not OWN:
        adapter("ms_swift").use_estimator()
    paths = {"groups": advantages, "request-aware": several_turns, "reinforce_plus_plus": reinforce}
    print_lines("ms-swift", paths, sizes=(SAMPLES, SAMPLES))
