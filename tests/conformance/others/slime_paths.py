"""Runs slime's or miles's own conversion of samples to training data, with our `post_process`.

    PYTHONPATH=<checkout> python tests/conformance/others/slime_paths.py slime|miles

Prints one line of JSON per path and number of rewards. `--own` leaves the advantages to slime, over
the number that `--reward-key` names. SGLang, Megatron and W&B are replaced by empty modules.
"""

import sys
from argparse import Namespace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import torch
import yaml
from adapters import adapter
from batches import print_lines
from stand_ins import empty

FRAMEWORK = sys.argv[1]
OWN = "--own" in sys.argv
HOOK = "gdpo_slime.post_process"
ABSENT = ("sglang", "sglang_router", "megatron", "wandb")


empty(ABSENT)
adapter("slime")  # slime imports the hook by its name
Sample = import_module(f"{FRAMEWORK}.utils.types").Sample


def arguments(batch):
    """Return the arguments of the command line and of the `--custom-config-path` file."""
    args = Namespace(
        advantage_estimator="grpo",
        normalize_advantages=False,
        reward_key="score",
        rewards_normalization=True,
        grpo_std_normalization=True,
        n_samples_per_prompt=4,
        rollout_batch_size=len(batch.sizes),
        custom_reward_post_process_path=None if OWN else HOOK,
        use_dynamic_global_batch_size=False,
    )
    text = f"gdpo_reward_keys: {batch.names}\ngdpo_reward_weights: {batch.weights}\n"
    for key, value in yaml.safe_load(text).items():
        setattr(args, key, value)
    return args


def samples(batch, outputs=1):
    """Return each rollout as one sample, or as several samples of one `rollout_id`."""
    return [
        Sample(
            group_index=int(prompt),
            index=row,
            rollout_id=row if outputs > 1 else None,
            tokens=[1] * int(length + 1),
            response_length=int(length),
            reward={**rewards, "score": float(np.nansum(batch.values[row]))},
        )
        for row, (prompt, rewards, length) in enumerate(
            zip(batch.prompts, batch.rewards(), batch.lengths, strict=True)
        )
        for _ in range(1 + row % outputs)
    ]


def converted(batch, outputs=1):
    args, given = arguments(batch), samples(batch, outputs)
    load = import_module(f"{FRAMEWORK}.utils.misc").load_function
    hook = None if OWN else load(args.custom_reward_post_process_path)
    if FRAMEWORK == "miles":
        conversion = import_module("miles.ray.rollout.train_data_conversion")
        data = conversion.convert_samples_to_train_data(args, given, {}, None, hook)
    else:
        manager = import_module("slime.ray.rollout").RolloutManager
        manager = manager.__ray_metadata__.modified_class
        own = SimpleNamespace(
            args=args,
            custom_reward_post_process_func=hook,
            custom_convert_samples_to_train_data_func=None,
            _post_process_rewards=lambda s: manager._post_process_rewards(own, s),
        )
        data = manager._convert_samples_to_train_data(own, given)
    assert data["raw_reward"] == [sample.reward["score"] for sample in given]
    by_rollout = dict(zip(data["sample_indices"], data["rewards"], strict=True))
    if not OWN:  # as slime and miles put them on the tokens
        assert data["rewards"] == [by_rollout[row] for row in data["sample_indices"]]
    return torch.tensor([by_rollout[row] for row in range(len(batch.values))])


def several(batch):
    return converted(batch, outputs=3)


if __name__ == "__main__":
    print_lines(FRAMEWORK, {"samples": converted, "several samples of one rollout": several})
