"""Runs tunix's own GRPO learner from completions to advantages, with our estimator.

    python tests/conformance/others/tunix_paths.py

The cluster that generates is replaced by recorded completions. Prints one line of JSON per path and
number of rewards. `--own` leaves both to tunix: "grpo" over the sum of the rewards.
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import numpy as np
from adapters import adapter
from batches import HALF_LIFE, ONE_BY_ONE, print_lines, version_of
from tunix.rl import function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import Mode

register = adapter("tunix").register
OWN = "--own" in sys.argv
SAMPLES = 6


def reward_functions(batch):
    def made(name, place):
        def function(prompts, completions, **kwargs):
            return [float(batch.values[int(text), place]) for text in completions]

        function.__name__ = name
        return function

    return [made(name, place) for place, name in enumerate(batch.names)]


class Cluster:
    """Stands in for the cluster: generates the row numbers."""

    def __init__(self, rows):
        self.rows, self.global_steps = rows, 0
        self.cluster_config = SimpleNamespace(
            rollout_config=SimpleNamespace(max_tokens_to_generate=4)
        )
        self.rollout = SimpleNamespace(pad_id=lambda: 0, eos_id=lambda: 1)
        self.perf = self.perf_v2 = SimpleNamespace(span=lambda *a, **k: nullcontext())
        self.logged = {}

    def generate(self, **kwargs):
        return SimpleNamespace(
            tokens=[np.array([5, 1])] * len(self.rows),
            left_padded_prompt_tokens=np.full((len(self.rows), 2), 7),
            text=[str(row) for row in self.rows],
        )

    def buffer_metrics(self, metrics, mode):
        self.logged |= metrics


def learner(batch, options=None):
    names = {} if OWN else {"advantage_estimator": "gdpo", "reward_manager": "gdpo"}
    if not OWN:
        register(reward_keys=batch.names, reward_weights=batch.weights, options=options)
    made = object.__new__(GRPOLearner)
    made.algo_config = GRPOConfig(num_generations=SAMPLES, beta=0.0, **names)
    manager = function_registry.get_reward_manager(made.algo_config.reward_manager)
    made.reward_manager = manager(reward_functions(batch), made.algo_config)
    made.rl_cluster = Cluster(range(len(batch.values)))
    made._rollout_micro_batch_size, made.metric_fns = 1, []
    return made


def grpo_learner(batch):
    example = learner(batch)._generate_and_compute_advantage({"prompts": ["p"] * len(batch.values)})
    assert isinstance(example.advantages, jax.Array)
    return example.advantages


def one_by_one(batch):
    """Generate one group at a time, each of them first in an evaluation."""
    made, found = learner(batch, HALF_LIFE), []
    for prompt in range(len(batch.sizes)):
        made.rl_cluster.rows = np.flatnonzero(batch.prompts == prompt)
        inputs = {"prompts": ["p"] * SAMPLES}
        made._generate_and_compute_advantage(inputs, mode=Mode.EVAL)
        found.append(made._generate_and_compute_advantage(inputs, mode=Mode.TRAIN).advantages)
    return np.concatenate(found)


if __name__ == "__main__":
    paths = {"GRPOLearner": grpo_learner, f"GRPOLearner, {ONE_BY_ONE}": one_by_one}
    version = version_of("google-tunix")
    print_lines("tunix", paths, version=version, sizes=(SAMPLES, SAMPLES))
