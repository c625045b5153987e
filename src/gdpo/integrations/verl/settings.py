"""Reads estimator, rewards, weights and options from verl's configuration (`algorithm`)."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError
from gdpo.integrations.rows import (
    FIELDS,
    NAME,
    PREFIX,
    Settings,
    as_text,
    make_settings,
    without_prefix,
)
from gdpo.rewards.task import without_arrays

ROLLOUTS = "gdpo_rollouts"
"""Field that sets the folder of the rollout record, which only the default (V1) trainer writes."""

WATCH = "gdpo_watch"
"""Field that adds metrics and the rollout record to an unchanged estimator of verl."""

REPLACE = "gdpo_replace"
"""Field with which `adv_estimator=gdpo` selects gdpo's estimator instead of verl's."""

COLUMN = "gdpo_weights_column"
"""Field with the name of the data column that has weights of each prompt."""

_ALL = (*FIELDS, COLUMN, ROLLOUTS, WATCH, REPLACE)

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


def read_settings(algorithm: Any, known: dict[str, Settings] | None = None) -> Settings:
    """Return the settings in the `algorithm` section of verl's configuration.

    If gdpo only watches, the settings contain names and weights of the rewards. New settings are
    added to `known`, so that identical configurations share one object and its state. A ConfigError
    names what is unknown, does not match, or has no effect with this estimator.
    """
    for message in _unknown(algorithm):
        raise ConfigError(message)
    keys, weights, options, detail = (without_arrays(algorithm.get(field)) for field in FIELDS)
    name, column = as_text(algorithm.get("adv_estimator")), algorithm.get(COLUMN)
    for switch, (value, why) in _WITHOUT_EFFECT.items():
        if uses_gdpo(algorithm) and algorithm.get(switch) is value:
            raise ConfigError(
                f"algorithm.{switch}={value} has no effect with algorithm.adv_estimator={name}: "
                f"{why}"
            )
    name = name if uses_gdpo(algorithm) else NAME
    known = {} if known is None else known
    described = json.dumps([name, keys, weights, options, detail])
    if described not in known:
        known[described] = make_settings(
            without_prefix(name),
            keys,
            weights,
            options,
            place="+algorithm.gdpo_",
            detail=detail,
            turns=True,
        )
    settings = known[described]
    if column is None:
        return settings
    settings.rule.check_prompt_weights()
    return replace(settings, weights_column=str(column))


def _unknown(algorithm: Any) -> list[str]:
    """Return a message for each field that begins like gdpo's fields but is unknown."""
    unknown = [str(key) for key in algorithm if str(key).startswith("gdpo_") and key not in _ALL]
    return [f"unknown field algorithm.{key}: {did_you_mean(key, _ALL)}" for key in unknown]


def check_fields(config: Any) -> None:
    """Check gdpo's fields in a configuration, before training starts.

    Raises:
        ConfigError: If a value is not allowed, or a field has no effect with this estimator or
            trainer.
    """
    algorithm = config.algorithm
    for field in (WATCH, REPLACE):
        if not isinstance(algorithm.get(field, False), bool):
            raise ConfigError(f"algorithm.{field}={algorithm.get(field)!r}: write true or false")
    if not uses_gdpo(algorithm):
        _check_for_verls(algorithm)
    _check_record(config)


def _check_for_verls(algorithm: Any) -> None:
    name = as_text(algorithm.get("adv_estimator"))
    if algorithm.get(REPLACE) and not is_plain(name):
        raise ConfigError(
            f"algorithm.{REPLACE} has no effect with algorithm.adv_estimator={name}: it is for "
            f"adv_estimator={NAME}. Remove it, or {_ways(name)}"
        )
    watched = watches(algorithm)
    without_effect = ["gdpo_options", COLUMN]
    without_effect += [] if watched else ["gdpo_diagnostics", ROLLOUTS]
    asked = [field for field in without_effect if algorithm.get(field) is not None]
    if is_plain(name) and isinstance(algorithm.get("gdpo_reward_weights"), Mapping):
        raise ConfigError(
            "algorithm.gdpo_reward_weights is a mapping, but verl's own gdpo takes a list: write "
            f"the weights in the order of gdpo_reward_keys, or set adv_estimator={PREFIX}{NAME}"
        )
    if asked:
        raise ConfigError(
            f"algorithm.{asked[0]} has no effect with algorithm.adv_estimator={name}, which is "
            f"verl's own estimator: {_ways(name)}"
        )


def _ways(name: str) -> str:
    replace = f" (or +algorithm.{REPLACE}=true)" if is_plain(name) else ""
    known = name if name in ESTIMATORS else "<name>"
    return (
        f"set algorithm.adv_estimator={PREFIX}{known}{replace} for a gdpo estimator, or "
        f"+algorithm.{WATCH}=true to watch verl's estimator"
    )


def remarks(algorithm: Any) -> list[str]:
    """Return what a user should know before an estimator of verl computes the advantages."""
    asked = algorithm.get(WATCH) is not None or algorithm.get(REPLACE) is not None
    if asked or not is_plain(algorithm.get("adv_estimator")):
        return _unknown(algorithm)
    whose = (
        f"algorithm.adv_estimator={NAME} is verl's own estimator, not gdpo's: {_ways(NAME)}. "
        f"+algorithm.{REPLACE}=false keeps verl's without this message"
    )
    return [*_unknown(algorithm), whose]


def _check_record(config: Any) -> None:
    """Raise a ConfigError if `gdpo_rollouts` is set for a trainer that writes no rollout record."""
    folder = config.algorithm.get(ROLLOUTS)
    if folder is None:
        return
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"algorithm.{ROLLOUTS}={folder!r}: set it to the path of a folder")
    if _is_legacy(config):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with trainer.use_v1=False: set "
            "trainer.rollout_data_dir instead; its files contain each reward"
        )
    if _has_own_program(config):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with the one-step-off and fully asynchronous "
            "trainers: remove it, or run verl.trainer.main_ppo with "
            "trainer.v1.trainer_mode=separate_async"
        )


def _is_legacy(config: Any) -> bool:
    return not config.trainer.get("use_v1", True)


def _has_own_program(config: Any) -> bool:
    return config.get("rollout") is not None  # a section that only these two programs have


_ONE_ADVANTAGE = ("geo_mean",)
"""Values of `policy_loss.loss_mode` for which verl takes the mean advantage of the tokens."""


def check_for_turns(config: Any) -> list[str]:
    """Check that trainer and loss keep the advantages of turns. Return warnings about the loss."""
    name = as_text(config.algorithm.get("adv_estimator"))
    if _is_legacy(config) or _has_own_program(config):
        setting = "trainer.use_v1=False" if _is_legacy(config) else "this program"
        raise ConfigError(
            f"algorithm.adv_estimator={name} does not work with {setting}, because rewards of "
            "turns do not reach the estimator there: run verl.trainer.main_ppo with "
            f"trainer.use_v1=True, or choose an estimator for rollouts, such as {PREFIX}{NAME}"
        )
    mode = _of_actor(config, "policy_loss").get("loss_mode")
    if mode in _ONE_ADVANTAGE:
        raise ConfigError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={mode} does not fit "
            f"algorithm.adv_estimator={name}: every token trains on the mean advantage of the "
            "rollout's tokens. Set loss_mode=vanilla, or choose an estimator for rollouts, such as "
            f"{PREFIX}{NAME}"
        )
    mode = _of_actor(config).get("loss_agg_mode")
    if mode != "seq-mean-token-mean":
        return []
    return [
        f"actor_rollout_ref.actor.loss_agg_mode={mode} divides by each rollout's token count, so "
        f"long rollouts count less. With algorithm.adv_estimator={name}, the mean gradient of "
        "agents of 4 turns was 13 to 25 degrees off the true gradient. Set "
        "loss_agg_mode=token-mean (2 to 7 degrees with one prompt per batch) or "
        "seq-mean-token-sum-norm (0)"
    ]


def _of_actor(config: Any, *sections: str) -> Mapping[str, Any]:
    found = config
    for section in ("actor_rollout_ref", "actor", *sections):
        found = found.get(section) or {}
    return found
