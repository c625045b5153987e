"""Computes advantages for slime and miles (`--custom-reward-post-process-path`).

`load_dump` reads rollout files from slime and miles. `gdpo.rollouts` itself never imports torch.
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
"""Values of `--advantage-estimator` for which slime copies the advantages to every token."""


_UNPACKED = 2**27
"""Maximum size, in bytes after decompression, of a compressed `.pt` file."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the scalar rewards that slime logs, and the advantages, one per sample.

    The file given by `--custom-config-path` must set `gdpo_reward_keys`. The settings
    `gdpo_reward_weights`, `gdpo_estimator` and `gdpo_options` are optional.

    Args:
        args: slime's arguments.
        samples: The samples of a rollout batch. The `reward` of a sample is a dict with one number
            per reward, and the scalar reward under the name given by `--reward-key`. None or NaN
            means that a reward does not apply. Samples with the same `rollout_id` count as one
            rollout.

    Returns:
        The scalar rewards, and the advantages.

    Raises:
        ConfigError: If a setting is invalid, or if a slime argument would modify the advantages.
        DataError: If a sample's reward is not a dict, if a reward is infinite, or if samples with
            the same `rollout_id` have different rewards.
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
            "ranks, which changes the estimator: remove this option"
        )
    if args.advantage_estimator not in _BROADCAST or not args.reward_key:
        raise ConfigError(
            f"--advantage-estimator {args.advantage_estimator} with --reward-key {args.reward_key} "
            f"is not supported: set --advantage-estimator to {' or '.join(_BROADCAST)}, which use "
            "the advantages unchanged, and --reward-key to the entry of the reward dict that slime "
            "logs and filters by"
        )
    given = {k.removeprefix("gdpo_"): v for k, v in vars(args).items() if k.startswith("gdpo_")}
    for key in given:
        if key not in _DEFAULTS:
            allowed = [f"gdpo_{name}" for name in _DEFAULTS]
            raise ConfigError(f"unknown key gdpo_{key}: {did_you_mean(f'gdpo_{key}', allowed)}")
    return _settings(json.dumps(_DEFAULTS | given))


@lru_cache
def _settings(described: str) -> Settings:
    """Return the settings for a JSON string. Identical strings return the same object."""
    estimator, keys, weights, options = json.loads(described).values()
    return make_settings(estimator, keys, weights, options, place="gdpo_")


def load_dump(path: Path) -> Any:
    """Return the contents of a `.pt` file. Only tensors, numbers and text are unpickled.

    Args:
        path: A file written by `--save-debug-rollout-data`.

    Raises:
        MissingExtraError: If torch is not installed.
        DataError: If the file contains anything except tensors, numbers and text, or if it is
            compressed and is very large when decompressed.
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
            f"the file is not a torch file with only tensors, numbers and text ({kind}): write the "
            "file with --save-debug-rollout-data"
        ) from error


def _refuse_packed(path: Path) -> None:
    """Raise a DataError for a compressed file, which could decompress to an enormous size.

    torch does not compress its files, so a valid file takes up its full size on disk.
    """
    try:
        with ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, NotImplementedError):  # torch reports what is wrong with it
        return
    if size > max(path.stat().st_size, _UNPACKED):
        raise DataError(
            f"the file has {path.stat().st_size:,} bytes on disk and {size:,} bytes unpacked, but "
            "torch does not compress files: save it again with torch.save"
        )
