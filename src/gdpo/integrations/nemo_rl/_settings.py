"""Reads NeMo-RL's configuration and rejects settings that do not work with gdpo's estimators."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations._scoring import Judge
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import PREFIX, is_ours, without_prefix

logger = logging.getLogger(__name__)

ENVIRONMENT = "gdpo"
"""Name of gdpo's environment in NeMo-RL's configuration (`env_name` and `env`)."""

PLACE = "grpo.adv_estimator"

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options", "gdpo_diagnostics")
"""Fields that gdpo adds to `grpo.adv_estimator`. NeMo-RL accepts unknown fields."""

ENVIRONMENT_FIELDS = ("ground_truth", "tokenizer")
"""Fields of `env.gdpo` that do not define rewards."""

_SWITCHES = {
    "normalize_rewards": (
        False,
        f"the estimator sets the normalization. Leave it at true, and set name: {PREFIX}"
        "grpo_no_std for GRPO without the division by the std",
    ),
    "use_leave_one_out_baseline": (
        True,
        f"the estimator sets the baseline. Set it to false, and set name: {PREFIX}"
        f"gdpo_leave_one_out or {PREFIX}rloo for a leave-one-out baseline",
    ),
    "minus_baseline": (False, "it is an option of reinforce_plus_plus. Leave it at true"),
}

_ELSEWHERE = (
    (
        "loss_fn.use_kl_in_reward",
        "the estimator receives the separate rewards, without the KL penalty. Leave it at false, "
        "and set loss_fn.reference_policy_kl_penalty for a KL term",
    ),
    (
        "grpo.reward_scaling.enabled",
        "NeMo-RL would clamp every reward to the same range before the estimator receives it. "
        f"Switch reward scaling off, and set {PLACE}.gdpo_reward_weights",
    ),
    (
        "grpo.reward_shaping.enabled",
        "reward shaping changes only the sum of the rewards, which the estimator does not use. "
        "Switch reward shaping off, and return the penalty as a separate reward",
    ),
)


def read_settings(adv_estimator: Any) -> Settings:
    """Return a configuration's settings. Identical configurations share one object and its state.

    Args:
        adv_estimator: The `grpo.adv_estimator` section, a NeMo-RL pydantic model.

    Raises:
        ConfigError: If the estimator, a field or an option is unknown, if the weights do not match
            the keys, or if a field that has no effect with this estimator is set.
    """
    for switch, (value, why) in _SWITCHES.items():
        if switch in adv_estimator.model_fields_set and getattr(adv_estimator, switch) is value:
            raise ConfigError(
                f"{PLACE}.{switch}={str(value).lower()} has no effect with "
                f"name={adv_estimator.name}: {why}"
            )
    if adv_estimator.reward_weights is not None:
        raise ConfigError(
            f"{PLACE}.reward_weights applies only to NeMo-RL's own estimator (in alphabetical "
            "order of the reward names): set gdpo_reward_weights instead, as a mapping from reward "
            "name to weight or a list in the order of gdpo_reward_keys"
        )
    given = dict(adv_estimator.model_extra or {})
    for field in given:
        if field not in FIELDS:
            raise ConfigError(f"unknown field {PLACE}.{field}: {did_you_mean(field, FIELDS)}")
    fields = [given.get(field) for field in FIELDS]
    return _settings(json.dumps([adv_estimator.name, *fields]))


@lru_cache
def _settings(described: str) -> Settings:
    name, keys, weights, options, detail = json.loads(described)
    return make_settings(
        without_prefix(name), keys, weights, options, place=f"{PLACE}.gdpo_", detail=detail
    )


def check_run(config: Any, environments: Sequence[str]) -> None:
    """Check a configuration that uses a gdpo estimator. Other configurations are not checked.

    Args:
        config: NeMo-RL's `MasterConfig`.
        environments: Names of the environments that the run's `data` section needs.

    Raises:
        ConfigError: If the estimator's settings are invalid, if another setting does not work with
            gdpo's estimators, or if gdpo's environment does not return a configured reward.
    """
    if not is_ours(config.grpo.adv_estimator.name):
        return
    settings = read_settings(config.grpo.adv_estimator)
    for place, why in _ELSEWHERE:
        value = config
        for part in place.split("."):
            value = getattr(value, part)
        if value:
            raise ConfigError(
                f"{place}=true does not work with {PLACE}.name={config.grpo.adv_estimator.name}: "
                f"{why}"
            )
    if ENVIRONMENT in environments:
        _check_keys(settings.names, judge_of((config.env or {}).get(ENVIRONMENT)).names)
    _warn(config, environments)


def judge_of(env: Any) -> Judge:
    """Return the `Judge` that computes the rewards of gdpo's environment.

    Args:
        env: The `env.gdpo` section of NeMo-RL's configuration.

    Raises:
        ConfigError: If `env` sets neither a task nor rewards, if a name is unknown, or if a reward
            needs the number of tokens and `tokenizer` is not set.
    """
    place = f"env.{ENVIRONMENT}"
    given = dict(env or {})
    judge = Judge({k: v for k, v in given.items() if k not in ENVIRONMENT_FIELDS}, place=place)
    if judge.of_tokens and not given.get("tokenizer"):
        raise ConfigError(
            f"reward {judge.of_tokens!r} needs the number of tokens, which NeMo-RL does not pass "
            "to an environment: set the tokenizer that counts the tokens, for example "
            f"{place}.tokenizer=${{policy.tokenizer.name}}"
        )
    return judge


def _check_keys(asked: Sequence[str], given: Sequence[str]) -> None:
    for key in asked:
        if key not in given:
            raise ConfigError(
                f"{PLACE}.gdpo_reward_keys lists {key!r}, which the environment {ENVIRONMENT!r} "
                f"does not return: {did_you_mean(key, given)}"
            )


def _warn(config: Any, environments: Sequence[str]) -> None:
    if config.grpo.use_dynamic_sampling:
        logger.warning(
            "grpo.use_dynamic_sampling drops groups in which the sum of the rewards does not vary "
            "(even if single rewards do) and groups with a missing reward. Switch it off to train "
            "on all groups"
        )
    if len(environments) > 1 or "nemo_gym" in environments:
        logger.warning(
            "NeMo-RL writes 0.0 for a reward that an environment does not return, so it counts as "
            "a reward of 0. Make every environment return all of %s, with NaN for a reward that "
            "does not apply",
            ", ".join(config.grpo.adv_estimator.model_extra["gdpo_reward_keys"]),
        )
