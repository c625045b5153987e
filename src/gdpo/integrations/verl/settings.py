"""Reads estimator, rewards, weights and options from verl's configuration (`algorithm`)."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import PREFIX, as_text, is_ours, without_prefix

KNOWN = ("0.9.0", "0.9.1")
"""Supported verl versions. The conformance tests were run with each version."""

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options")
"""Fields of `algorithm` that gdpo reads. verl defines all of these except `gdpo_options`."""

ROLLOUTS = "gdpo_rollouts"
"""Field that sets the folder of the rollout record, which only the default (V1) trainer writes."""

_WITHOUT_EFFECT = {
    "use_kl_in_reward": (
        True,
        "the estimator receives the separate rewards, without the KL penalty. Leave it at False, "
        "and set actor_rollout_ref.actor.use_kl_loss=True for a KL term",
    ),
    "norm_adv_by_std_in_grpo": (
        False,
        "the estimator sets the normalization. Leave it at True, and set "
        f"algorithm.adv_estimator={PREFIX}grpo_no_std for GRPO without the division by the std",
    ),
}


def read_settings(algorithm: Any) -> Settings:
    """Return a configuration's settings. Identical configurations share one object and its state.

    Args:
        algorithm: The `algorithm` section of verl's configuration, as an OmegaConf node or verl's
            dataclass.

    Raises:
        ConfigError: If the estimator or an option is unknown, if the weights do not match the keys,
            or if a field that has no effect with this estimator is set.
    """
    for switch, (value, why) in _WITHOUT_EFFECT.items():
        if algorithm.get(switch) is value:
            raise ConfigError(
                f"algorithm.{switch}={value} has no effect with algorithm.adv_estimator="
                f"{as_text(algorithm.get('adv_estimator'))}: {why}"
            )
    for key in algorithm:
        known = (*FIELDS, ROLLOUTS)
        if str(key).startswith("gdpo_") and key not in known:
            raise ConfigError(f"unknown field algorithm.{key}: {did_you_mean(str(key), known)}")
    fields = {field: plain(algorithm.get(field)) for field in FIELDS}
    name = as_text(algorithm.get("adv_estimator"))
    return _settings(json.dumps({"name": name, **fields}))


@lru_cache
def _settings(described: str) -> Settings:
    name, keys, weights, options = json.loads(described).values()
    return make_settings(without_prefix(name), keys, weights, options, place="+algorithm.gdpo_")


def check_record(config: Any) -> None:
    """Raise a ConfigError if `gdpo_rollouts` is set for a trainer that writes no rollout record."""
    folder = config.algorithm.get(ROLLOUTS)
    if folder is None:
        return
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"algorithm.{ROLLOUTS}={folder!r}: set it to the path of a folder")
    name = as_text(config.algorithm.get("adv_estimator"))
    if not is_ours(name):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with algorithm.adv_estimator={name}: set a "
            f"gdpo estimator (for GRPO: {PREFIX}grpo), or set trainer.rollout_data_dir"
        )
    if not config.trainer.get("use_v1", True):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with trainer.use_v1=False: set "
            "trainer.rollout_data_dir instead; its files contain each reward"
        )
    if config.get("rollout") is not None:  # a section that only these two programs have
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with the one-step-off and fully asynchronous "
            "trainers: remove it, or run verl.trainer.main_ppo with "
            "trainer.v1.trainer_mode=separate_async"
        )


def plain(value: Any) -> Any:
    """Return a value with OmegaConf's containers converted to dicts and lists."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): plain(item) for key, item in mapping.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    return value
