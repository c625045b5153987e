"""Runs TRL's own trainer on recorded batches, with our estimator and without.

    python tests/conformance/others/trl_paths.py [--own]

`--own` leaves the advantages to TRL. Prints one line of JSON per path and number of rewards. A
random policy generates a few tokens, which are ignored: the rewards are those of the batch. Needs
the extra `train`.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

from batches import print_lines
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

sys.path.append(str(Path(__file__).parents[2] / "engines"))

from policy import byte_tokenizer, make_policy

SAMPLES = 4
"""TRL needs groups of equal size."""


def reward_functions(batch):
    """Return one function per reward, which looks up each rollout's value."""
    rows = batch.rewards()

    def named(name):
        def function(completions, **columns):
            assert len(completions) == len(rows)
            return [row[name] for row in rows]

        function.__name__ = name
        return function

    return [named(name) for name in batch.names]


def with_trainer(trainer_class, config_class, **options):
    """Return a path: one generation batch through the trainer's own code."""

    def path(batch):
        prompts = [f"w{prompt}" for prompt in batch.prompts[::SAMPLES]]
        with tempfile.TemporaryDirectory() as folder:
            config = config_class(
                output_dir=folder,
                per_device_train_batch_size=len(batch.prompts),
                num_generations=SAMPLES,
                max_completion_length=2,
                reward_weights=batch.weights,
                use_cpu=True,
                bf16=False,
                report_to=[],
                shuffle_dataset=False,
                **options,
            )
            trainer = trainer_class(
                model=str(make_policy(Path(folder, "policy"))),
                reward_funcs=reward_functions(batch),
                args=config,
                train_dataset=Dataset.from_dict({"prompt": prompts}),
                processing_class=byte_tokenizer(),
            )
            inputs = [{"prompt": prompt} for prompt in prompts for _ in range(SAMPLES)]
            return trainer._generate_and_score_completions(inputs)["advantages"].numpy()

    return path


OURS = {"GDPOTrainer": with_trainer(GDPOTrainer, GDPOConfig)}
OWN = {
    "GRPOTrainer": with_trainer(
        GRPOTrainer, GRPOConfig, multi_objective_aggregation="normalize_then_sum"
    )
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print_lines("trl", OWN if "--own" in sys.argv else OURS, sizes=(SAMPLES, SAMPLES))
