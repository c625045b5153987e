"""What NeMo-RL's configuration asks for, and what in it would do nothing, or something wrong."""

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
"""Our environment, in `env_name` of NeMo-RL's data and as a field of `env`."""

PLACE = "grpo.adv_estimator"

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options")
"""What is read there, beside `name`. They are ours; NeMo-RL lets them pass."""

ENVIRONMENT_FIELDS = ("ground_truth", "tokenizer")
"""Of `env.gdpo`, what is not for the rewards themselves."""

_SWITCHES = {
    "normalize_rewards": (
        False,
        f"the estimator decides what is divided by; leave it at true, and choose {PREFIX}"
        "grpo_no_std for GRPO that does not divide",
    ),
    "use_leave_one_out_baseline": (
        True,
        f"the estimator decides what is subtracted; set it to false, and choose {PREFIX}"
        f"gdpo_leave_one_out or {PREFIX}rloo for baselines that leave the rollout out",
    ),
    "minus_baseline": (False, "it is an option of reinforce_plus_plus; leave it at true"),
}

_ELSEWHERE = (
    (
        "loss_fn.use_kl_in_reward",
        "rewards go to the estimator one by one, without the KL penalty; leave it at false and set "
        "loss_fn.reference_policy_kl_penalty to keep near the reference",
    ),
    (
        "grpo.reward_scaling.enabled",
        "it clamps every reward to one and the same range before the estimator sees it; switch it "
        f"off, and give {PLACE}.gdpo_reward_weights",
    ),
    (
        "grpo.reward_shaping.enabled",
        "it changes the sum of the rewards, which the estimator does not look at; switch it off, "
        "and return what it is for as a reward of its own",
    ),
)


def read_settings(adv_estimator: Any) -> Settings:
    """Settings of a configuration; the same object, and state, for an equal configuration.

    Args:
        adv_estimator: `grpo.adv_estimator`, a pydantic model of NeMo-RL's.

    Raises:
        ConfigError: An unknown estimator, field or option, keys or weights that do not fit, or a
            switch of NeMo-RL that has no effect here.
    """
    for switch, (value, why) in _SWITCHES.items():
        if switch in adv_estimator.model_fields_set and getattr(adv_estimator, switch) is value:
            raise ConfigError(
                f"{PLACE}.{switch}={str(value).lower()} has no effect with "
                f"name={adv_estimator.name}: {why}"
            )
    if adv_estimator.reward_weights is not None:
        raise ConfigError(
            f"{PLACE}.reward_weights goes by the alphabet of the rewards' names, and is for "
            "NeMo-RL's own estimator: write gdpo_reward_weights, by name or in the order of "
            "gdpo_reward_keys"
        )
    given = dict(adv_estimator.model_extra or {})
    for field in given:
        if field not in FIELDS:
            raise ConfigError(f"{PLACE}.{field} is nothing: {did_you_mean(field, FIELDS)}")
    fields = [given.get(field) for field in FIELDS]
    return _settings(json.dumps([adv_estimator.name, *fields]))


@lru_cache
def _settings(described: str) -> Settings:
    name, keys, weights, options = json.loads(described)
    return make_settings(without_prefix(name), keys, weights, options, place=f"{PLACE}.gdpo_")


def check_run(config: Any, environments: Sequence[str]) -> None:
    """Refuse a configuration that asks for our estimator and for what does not go with it.

    Args:
        config: NeMo-RL's `MasterConfig`; nothing is looked at where it asks for another estimator.
        environments: The names in `data` of the environments that the run needs.

    Raises:
        ConfigError: As for `read_settings`; a setting elsewhere that would do nothing, or something
            wrong; a reward that our environment does not give.
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
                f"{place}=true does not go with {PLACE}.name={config.grpo.adv_estimator.name}: "
                f"{why}"
            )
    if ENVIRONMENT in environments:
        _check_keys(settings.names, judge_of((config.env or {}).get(ENVIRONMENT)).names)
    _warn(config, environments)


def judge_of(env: Any) -> Judge:
    """The rewards of our environment.

    Args:
        env: `env.gdpo` of NeMo-RL's configuration.

    Raises:
        ConfigError: It names no task and no rewards, or wrong ones; or a reward needs the number of
            tokens, and no tokenizer is named.
    """
    place = f"env.{ENVIRONMENT}"
    given = dict(env or {})
    judge = Judge({k: v for k, v in given.items() if k not in ENVIRONMENT_FIELDS}, place=place)
    if judge.of_tokens and not given.get("tokenizer"):
        raise ConfigError(
            f"reward {judge.of_tokens!r} judges the number of tokens, which NeMo-RL does not pass "
            f"to an environment: name the tokenizer that they are counted with, for example "
            f"{place}.tokenizer=${{policy.tokenizer.name}}"
        )
    return judge


def _check_keys(asked: Sequence[str], given: Sequence[str]) -> None:
    for key in asked:
        if key not in given:
            raise ConfigError(
                f"{PLACE}.gdpo_reward_keys names {key!r}, which the environment {ENVIRONMENT!r} "
                f"does not give: {did_you_mean(key, given)}"
            )


def _warn(config: Any, environments: Sequence[str]) -> None:
    if config.grpo.use_dynamic_sampling:
        logger.warning(
            "grpo.use_dynamic_sampling drops groups in which the sum of the rewards does not vary, "
            "though single rewards may; and groups in which one is missing. Switch it off to train "
            "on them"
        )
    if len(environments) > 1 or "nemo_gym" in environments:
        logger.warning(
            "NeMo-RL writes 0.0 for a reward that an environment does not give, which no estimator "
            "can tell from a reward of 0. Let every environment return all of %s: NaN where one "
            "does not apply",
            ", ".join(config.grpo.adv_estimator.model_extra["gdpo_reward_keys"]),
        )
