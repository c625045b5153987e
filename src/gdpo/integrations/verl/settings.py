"""What `algorithm` of verl's configuration asks for: estimator, rewards, weights, options."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import PREFIX, as_text, is_ours, without_prefix

KNOWN = ("0.9.0", "0.9.1")
"""Versions of verl that the conformance tests have run with."""

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options")
"""What is read of `algorithm`. The first two are verl's own names, the third is ours."""

ROLLOUTS = "gdpo_rollouts"
"""The field that names the folder of our rollout record. The default trainer alone writes it."""

_WITHOUT_EFFECT = {
    "use_kl_in_reward": (
        True,
        "the rewards go to the estimator one by one, without the KL penalty; leave it at False and "
        "set actor_rollout_ref.actor.use_kl_loss=True to keep near the reference",
    ),
    "norm_adv_by_std_in_grpo": (
        False,
        f"the estimator decides what is divided by; leave it at True, and choose "
        f"algorithm.adv_estimator={PREFIX}grpo_no_std for GRPO that does not divide",
    ),
}


def read_settings(algorithm: Any) -> Settings:
    """Settings of a configuration; the same object, and state, for an equal configuration.

    Args:
        algorithm: verl's, as OmegaConf holds it or as its dataclass.

    Raises:
        ConfigError: An unknown estimator or option, keys or weights that do not fit, or a switch
            of verl that has no effect here.
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
            raise ConfigError(f"algorithm.{key} is nothing: {did_you_mean(str(key), known)}")
    fields = {field: plain(algorithm.get(field)) for field in FIELDS}
    name = as_text(algorithm.get("adv_estimator"))
    return _settings(json.dumps({"name": name, **fields}))


@lru_cache
def _settings(described: str) -> Settings:
    name, keys, weights, options = json.loads(described).values()
    return make_settings(without_prefix(name), keys, weights, options, place="+algorithm.gdpo_")


def check_record(config: Any) -> None:
    """Raise a ConfigError if our rollout record is asked for where nothing would write it."""
    folder = config.algorithm.get(ROLLOUTS)
    if folder is None:
        return
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"algorithm.{ROLLOUTS}={folder!r}: name a folder")
    name = as_text(config.algorithm.get("adv_estimator"))
    if not is_ours(name):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with algorithm.adv_estimator={name}: choose one "
            f"of ours ({PREFIX}grpo is GRPO), or set trainer.rollout_data_dir"
        )
    if not config.trainer.get("use_v1", True):
        raise ConfigError(
            f"algorithm.{ROLLOUTS} has no effect with trainer.use_v1=False: set "
            "trainer.rollout_data_dir, whose files hold each reward there"
        )


def plain(value: Any) -> Any:
    """OmegaConf's containers as dicts and lists."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): plain(item) for key, item in mapping.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    return value
