"""slime and miles: advantages of ours by `--custom-reward-post-process-path`, and their dumps.

`load_dump` is here and not among the readers of `gdpo.rollouts`, which never import torch.
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
"""Values of `--advantage-estimator` that take what we return as it is, on every token."""


_UNPACKED = 2**27
"""Bytes that a `.pt` file may hold when it is unpacked, however small it is; as a line of JSON."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Advantages of a whole rollout batch, and the number of each sample that slime logs.

    The file of `--custom-config-path` holds `gdpo_reward_keys`, and where wanted
    `gdpo_reward_weights`, `gdpo_estimator` and `gdpo_options`.

    Args:
        args: slime's.
        samples: `reward` of each is a dict: the rewards, and what `--reward-key` names. `None` and
            NaN: does not apply. Samples of one `rollout_id` count once.

    Returns:
        What `--reward-key` names, and advantages.

    Raises:
        ConfigError: A wrong setting, or one of slime's that would change the advantages again.
        DataError: A sample without a dict, an infinite reward, or siblings with unequal rewards.
    """
    settings = _settings_of(args)
    for sample in samples:
        if not isinstance(sample.reward, dict) or sample.group_index is None:
            raise DataError(
                f"sample {sample.index} has group_index {sample.group_index} and the reward "
                f"{sample.reward!r:.80}; gdpo needs the group, and a dict with a number per reward"
            )
    rewards = reward_columns(
        by_name([sample.reward for sample in samples]),
        settings.names,
        asked_by="gdpo_reward_keys",
        given_by="the function of --custom-rm-path must return a dict with",
    )
    ids = [sample.rollout_id for sample in samples]
    last = {name: row for row, name in enumerate(ids) if name is not None}
    outputs = [last.get(name, row) for row, name in enumerate(ids)]
    if not np.array_equal(rewards, rewards[outputs], equal_nan=True):
        raise DataError("samples of one rollout_id have unequal rewards; a rollout has one of each")
    lengths = np.array([sample.effective_response_length for sample in samples])
    prompts = [sample.group_index for sample in samples]
    groups = as_groups(rewards, prompts, lengths, outputs=outputs)
    advantages = groups.per_row(advantages_of(groups, settings))
    return [sample.get_reward_value(args) for sample in samples], advantages.tolist()


def _settings_of(args: Any) -> Settings:
    if args.normalize_advantages:
        raise ConfigError(
            "--normalize-advantages whitens advantages once more, over the tokens of all ranks: "
            "what the estimator decided is lost. Remove it"
        )
    if args.advantage_estimator not in _BROADCAST or not args.reward_key:
        raise ConfigError(
            f"--advantage-estimator {args.advantage_estimator} --reward-key {args.reward_key}: use "
            f"{' or '.join(_BROADCAST)}, which put the advantages on the tokens as they are, and a "
            "key of the reward dict that holds the number to log and to filter by"
        )
    given = {k.removeprefix("gdpo_"): v for k, v in vars(args).items() if k.startswith("gdpo_")}
    for key in given:
        if key not in _DEFAULTS:
            allowed = [f"gdpo_{name}" for name in _DEFAULTS]
            raise ConfigError(f"gdpo_{key} is nothing: {did_you_mean(f'gdpo_{key}', allowed)}")
    return _settings(json.dumps(_DEFAULTS | given))


@lru_cache
def _settings(described: str) -> Settings:
    """The same object, and state, for equal settings."""
    estimator, keys, weights, options = json.loads(described).values()
    return make_settings(estimator, keys, weights, options, place="gdpo_")


def load_dump(path: Path) -> Any:
    """What a `.pt` file holds. Nothing but tensors, numbers and texts is ever unpickled.

    Args:
        path: Written by `--save-debug-rollout-data`.

    Raises:
        MissingExtraError: torch is not installed.
        DataError: The file holds anything else, or is much larger unpacked than on the disk.
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
        raise DataError(f"it is no file of tensors, numbers and texts alone ({kind})") from error


def _refuse_packed(path: Path) -> None:
    """Refuse a file whose parts are compressed to a small part of what they hold.

    torch compresses nothing, so that what it writes is as large on the disk.
    """
    try:
        with ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, NotImplementedError):  # what else it is, torch says
        return
    if size > max(path.stat().st_size, _UNPACKED):
        raise DataError(
            f"its parts have {size:,} bytes when they are unpacked, which no file of torch does "
            f"that has {path.stat().st_size:,} on the disk: save it again with torch.save"
        )
