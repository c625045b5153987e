"""Computes advantages for slime and miles: `--custom-reward-post-process-path`.

Copy this file as gdpo_slime.py into a folder on PYTHONPATH. docs/how-to/slime.md has the settings.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gdpo import ConfigError, DataError
from gdpo.integrations.rows import Settings, advantages_of_rows, make_settings

KEYS = ("gdpo_estimator", "gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options")
"""The keys of the `--custom-config-path` file."""

BROADCAST = ("grpo", "gspo", "cispo")
"""Values of `--advantage-estimator` for which slime copies the advantages to every token."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the scalar rewards that slime logs, and the advantages, one per sample.

    The `reward` of a sample is a dict with one number per reward, and the scalar reward under the
    name given by `--reward-key`. Samples with the same `rollout_id` count as one rollout.
    """
    settings = checked(args)
    for sample in samples:
        if not isinstance(sample.reward, dict) or sample.group_index is None:
            raise DataError(
                f"sample {sample.index} has group_index {sample.group_index} and the reward "
                f"{sample.reward!r:.80}: set group_index, and return a dict with one number per "
                "reward"
            )
    advantages = advantages_of_rows(
        [sample.reward for sample in samples],
        settings,
        [sample.group_index for sample in samples],
        [sample.effective_response_length for sample in samples],
        rollout_ids=[sample.rollout_id for sample in samples],
        asked_by="gdpo_reward_keys",
        given_by="the function of --custom-rm-path",
    )
    return [sample.get_reward_value(args) for sample in samples], advantages.tolist()


def checked(args: Any) -> Settings:
    """Return the settings in slime's arguments. Refuse arguments that change the advantages."""
    if args.normalize_advantages:
        raise ConfigError(
            "--normalize-advantages whitens the advantages a second time, over the tokens of all "
            "ranks, which changes the estimator: remove this option"
        )
    if args.advantage_estimator not in BROADCAST or not args.reward_key:
        raise ConfigError(
            f"--advantage-estimator {args.advantage_estimator} with --reward-key {args.reward_key} "
            f"is not supported: set --advantage-estimator to {' or '.join(BROADCAST)}, which use "
            "the advantages unchanged, and --reward-key to the entry of the reward dict that slime "
            "logs and filters by"
        )
    given = {key: value for key, value in vars(args).items() if key.startswith("gdpo_")}
    if unknown := set(given) - set(KEYS):
        raise ConfigError(f"unknown key {min(unknown)}. Allowed: {', '.join(KEYS)}")
    return settings_of(json.dumps([given.get(key) for key in KEYS]))


@lru_cache  # slime passes the arguments with each batch, and an estimator may have a state
def settings_of(values: str) -> Settings:
    """Return the settings for the values of `KEYS`, as JSON."""
    estimator, keys, weights, options = json.loads(values)
    return make_settings(estimator or "gdpo", keys, weights, options, place="gdpo_")
