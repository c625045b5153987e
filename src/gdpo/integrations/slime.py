"""Computes advantages for slime and miles (`--custom-reward-post-process-path`).

Also reads their rollout files: `load_dump` is here because `gdpo.rollouts` never imports torch.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError, MissingExtraError
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import advantages_of, as_groups, by_name, reward_columns

_DEFAULTS = {"estimator": "gdpo", "reward_keys": None, "reward_weights": None, "options": None}
_BROADCAST = ("grpo", "gspo", "cispo")
"""Values of `--advantage-estimator` that put the returned advantages unchanged on every token."""


_UNPACKED = 2**27
"""Unpacked size in bytes that is always accepted for a `.pt` file, as for a line of JSON."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the reward that slime logs and the advantage, for each sample of a rollout batch.

    The file of `--custom-config-path` sets `gdpo_reward_keys`, and optionally
    `gdpo_reward_weights`, `gdpo_estimator` and `gdpo_options`.

    Args:
        args: slime's arguments.
        samples: Samples whose `reward` is a dict with one number per reward and the number that
            `--reward-key` names. A reward of None or NaN does not apply. Samples of one
            `rollout_id` count once.

    Returns:
        The numbers that `--reward-key` names, and the advantages.

    Raises:
        ConfigError: If a setting is invalid, or an argument of slime would change the advantages
            again.
        DataError: If a sample's reward is not a dict, a reward is infinite, or samples of one
            `rollout_id` have different rewards.
    """
    settings = _settings_of(args)
    for sample in samples:
        if not isinstance(sample.reward, dict) or sample.group_index is None:
            raise DataError(
                f"sample {sample.index} has group_index {sample.group_index} and the reward "
                f"{sample.reward!r:.80}: set group_index, and return a dict with one number per "
                "reward"
            )
    rewards = reward_columns(
        by_name([sample.reward for sample in samples]),
        settings.names,
        asked_by="gdpo_reward_keys",
        given_by="the function of --custom-rm-path",
    )
    ids = [sample.rollout_id for sample in samples]
    last = {name: row for row, name in enumerate(ids) if name is not None}
    outputs = [last.get(name, row) for row, name in enumerate(ids)]
    if not np.array_equal(rewards, rewards[outputs], equal_nan=True):
        raise DataError(
            "samples with the same rollout_id have different rewards: give them the same reward "
            "dict, or different rollout_ids"
        )
    lengths = np.array([sample.effective_response_length for sample in samples])
    prompts = [sample.group_index for sample in samples]
    groups = as_groups(rewards, prompts, lengths, outputs=outputs)
    advantages = groups.per_row(advantages_of(groups, settings))
    return [sample.get_reward_value(args) for sample in samples], advantages.tolist()


def _settings_of(args: Any) -> Settings:
    if args.normalize_advantages:
        raise ConfigError(
            "--normalize-advantages whitens the advantages a second time, over the tokens of all "
            "ranks, which changes the estimator: remove it"
        )
    if args.advantage_estimator not in _BROADCAST or not args.reward_key:
        raise ConfigError(
            f"--advantage-estimator {args.advantage_estimator} --reward-key {args.reward_key}: set "
            f"--advantage-estimator to {' or '.join(_BROADCAST)}, which use the advantages "
            "unchanged, and --reward-key to the entry of the reward dict that slime logs and "
            "filters by"
        )
    given = {k.removeprefix("gdpo_"): v for k, v in vars(args).items() if k.startswith("gdpo_")}
    for key in given:
        if key not in _DEFAULTS:
            allowed = [f"gdpo_{name}" for name in _DEFAULTS]
            raise ConfigError(f"unknown key gdpo_{key}: {did_you_mean(f'gdpo_{key}', allowed)}")
    return _settings(json.dumps(_DEFAULTS | given))


@lru_cache
def _settings(described: str) -> Settings:
    """Return the same object, with its state, for equal settings."""
    estimator, keys, weights, options = json.loads(described).values()
    return make_settings(estimator, keys, weights, options, place="gdpo_")


def load_dump(path: Path) -> Any:
    """Return the contents of a `.pt` file. Only tensors, numbers and text are ever unpickled.

    Args:
        path: A file written by `--save-debug-rollout-data`.

    Raises:
        MissingExtraError: If torch is not installed.
        DataError: If the file contains anything else, or is much larger unpacked than on disk.
    """
    _refuse_packed(path)
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train", "to read .pt files") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        kind = type(error).__name__
        raise DataError(
            f"it is not a torch file with only tensors, numbers and text ({kind}): write it with "
            "--save-debug-rollout-data"
        ) from error


def _refuse_packed(path: Path) -> None:
    """Raise a DataError for a compressed file, which could unpack to an enormous size.

    torch does not compress, so its files are as large on disk as unpacked.
    """
    try:
        with ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, NotImplementedError):  # torch reports what is wrong with it
        return
    if size > max(path.stat().st_size, _UNPACKED):
        raise DataError(
            f"it unpacks to {size:,} bytes from {path.stat().st_size:,} on disk, but torch does "
            "not compress: save it again with torch.save"
        )
