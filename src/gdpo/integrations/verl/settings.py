"""Reads estimator, rewards, weights and options from verl's configuration (`algorithm`)."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import NAME, PREFIX, as_text, without_prefix

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options")
"""Fields of `algorithm` that describe rewards and estimator. verl knows all but `gdpo_options`."""

ROLLOUTS = "gdpo_rollouts"
"""Field that sets the folder of the rollout record, which only the default (V1) trainer writes."""

WATCH = "gdpo_watch"
"""Field that adds metrics and the rollout record to an estimator of verl, which stays as it is."""

REPLACE = "gdpo_replace"
"""Field with which `adv_estimator=gdpo` selects gdpo's estimator instead of verl's."""

_ALL = (*FIELDS, ROLLOUTS, WATCH, REPLACE)

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


def uses_gdpo(algorithm: Any) -> bool:
    """Return whether gdpo computes the advantages: `gdpo/<name>`, or `gdpo` with `gdpo_replace`."""
    name = as_text(algorithm.get("adv_estimator"))
    return name.startswith(PREFIX) or (is_plain(name) and algorithm.get(REPLACE) is True)


def is_plain(estimator: Any) -> bool:
    """Return whether this is the name `gdpo`, which is verl's own estimator."""
    return as_text(estimator) == NAME


def watches(algorithm: Any) -> bool:
    """Return whether gdpo watches an estimator of verl."""
    return algorithm.get(WATCH) is True and not uses_gdpo(algorithm)


def read_settings(algorithm: Any) -> Settings:
    """Return a configuration's settings. Identical configurations share one object and its state.

    If gdpo only watches, the settings contain names and weights of the rewards. Their rule is not
    used.

    Args:
        algorithm: The `algorithm` section of verl's configuration, as an OmegaConf node or verl's
            dataclass.

    Raises:
        ConfigError: If the estimator or an option is unknown, if the weights do not match the keys,
            or if a field that has no effect with this estimator is set.
    """
    for key in algorithm:
        if str(key).startswith("gdpo_") and key not in _ALL:
            raise ConfigError(f"unknown field algorithm.{key}: {did_you_mean(str(key), _ALL)}")
    fields = {field: plain(algorithm.get(field)) for field in FIELDS}
    name = as_text(algorithm.get("adv_estimator"))
    if uses_gdpo(algorithm):
        _check_switches(algorithm)
    else:
        name = NAME
    return _settings(json.dumps({"name": name, **fields}))


@lru_cache
def _settings(described: str) -> Settings:
    name, keys, weights, options = json.loads(described).values()
    return make_settings(without_prefix(name), keys, weights, options, place="+algorithm.gdpo_")


def check_fields(config: Any) -> None:
    """Check gdpo's fields in a configuration, before a training starts.

    Raises:
        ConfigError: If a value is not allowed, or if a field has no effect with this estimator or
            this trainer.
    """
    algorithm = config.algorithm
    for field in (WATCH, REPLACE):
        if algorithm.get(field) not in (None, True, False):
            raise ConfigError(f"algorithm.{field}={algorithm.get(field)!r}: write true or false")
    if not uses_gdpo(algorithm):
        _check_for_verls(algorithm)
    _check_record(config)


def _check_switches(algorithm: Any) -> None:
    for switch, (value, why) in _WITHOUT_EFFECT.items():
        if algorithm.get(switch) is value:
            raise ConfigError(
                f"algorithm.{switch}={value} has no effect with algorithm.adv_estimator="
                f"{as_text(algorithm.get('adv_estimator'))}: {why}"
            )


def _check_for_verls(algorithm: Any) -> None:
    """Check the fields if an estimator of verl computes the advantages."""
    name = as_text(algorithm.get("adv_estimator"))
    if algorithm.get(REPLACE) and not is_plain(name):
        raise ConfigError(
            f"algorithm.{REPLACE} has no effect with algorithm.adv_estimator={name}: it is for "
            f"adv_estimator={NAME}. Write algorithm.adv_estimator={PREFIX}{name}, or remove it"
        )
    asked = "gdpo_options" if algorithm.get("gdpo_options") is not None else None
    if isinstance(algorithm.get("gdpo_reward_weights"), Mapping) and not watches(algorithm):
        asked = "gdpo_reward_weights as a mapping"
    if algorithm.get(ROLLOUTS) is not None and not watches(algorithm):
        asked = ROLLOUTS
    if asked:
        raise ConfigError(
            f"algorithm.{asked} has no effect with algorithm.adv_estimator={name}, which is "
            f"verl's own estimator: {_ways(name, watched=asked != 'gdpo_options')}"
        )


def _ways(name: str, *, watched: bool) -> str:
    """Return the ways to gdpo from an estimator of verl."""
    ours = f"set algorithm.adv_estimator={PREFIX}{name} for gdpo's estimator"
    ours += f" (or +algorithm.{REPLACE}=true)" if is_plain(name) else ""
    return f"{ours}, or +algorithm.{WATCH}=true to watch verl's" if watched else ours


def whose(algorithm: Any) -> str | None:
    """Return a message if the estimator's name leaves open whether verl's or gdpo's was meant."""
    asked = algorithm.get(WATCH) is not None or algorithm.get(REPLACE) is not None
    if not is_plain(algorithm.get("adv_estimator")) or asked:
        return None
    return (
        f"algorithm.adv_estimator={NAME} is verl's own estimator, not gdpo's: "
        f"{_ways(NAME, watched=True)}. +algorithm.{REPLACE}=false keeps verl's without this message"
    )


def _check_record(config: Any) -> None:
    """Raise a ConfigError if `gdpo_rollouts` is set for a trainer that writes no rollout record."""
    folder = config.algorithm.get(ROLLOUTS)
    if folder is None:
        return
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"algorithm.{ROLLOUTS}={folder!r}: set it to the path of a folder")
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
