"""Connects gdpo to NeMo-RL, at commit 7ea279abf.

After `install()`, `grpo.adv_estimator.name` accepts every gdpo estimator. NeMo-RL has no setting
that names a user's estimator, so its functions are replaced. `examples/nemo_rl` has an
environment with gdpo's rewards.
"""

import functools
import json
import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo.diagnostics import Watch
from gdpo.errors import ConfigError
from gdpo.integrations import rows
from gdpo.integrations.rows import FIELDS, compute

__all__ = ["install"]

logger = logging.getLogger(__name__)

PLACE = "grpo.adv_estimator"

REFUSED = (
    (f"{PLACE}.normalize_rewards", True, "set name: gdpo/grpo_no_std for GRPO without the std"),
    (f"{PLACE}.use_leave_one_out_baseline", False, "use gdpo/gdpo_leave_one_out or gdpo/rloo"),
    (f"{PLACE}.minus_baseline", True, "it is an option of reinforce_plus_plus"),
    (f"{PLACE}.reward_weights", None, "it is in alphabetical order; set gdpo_reward_weights"),
    ("loss_fn.use_kl_in_reward", False, "set loss_fn.reference_policy_kl_penalty for a KL term"),
    ("grpo.reward_scaling.enabled", False, "it clamps all rewards; set gdpo_reward_weights"),
    ("grpo.reward_shaping.enabled", False, "it changes only the sum; return a separate reward"),
)
"""Settings that gdpo's estimators do not support: the supported value, and the remedy."""


class AdvantageEstimator:
    """Computes advantages for NeMo-RL with a gdpo estimator.

    NeMo-RL masks truncated rollouts (`overlong_filtering`), rollouts whose log-probabilities differ
    between generation and training, and rollouts that an environment flags or whose prompts are too
    long. Unlike NeMo-RL's own estimators, this one leaves masked rollouts out of every statistic
    and gives them an advantage of 0.
    """

    def __init__(self, config: Any) -> None:
        self.settings = read_settings(config)
        self.last_metrics: dict[str, float] = {}
        """Metrics of the latest batch, which NeMo-RL's async trainer logs."""
        self._watch = Watch()

    def compute_advantage(
        self,
        prompt_ids: Any,
        rewards: Any,
        mask: Any,
        repeated_batch: Mapping[str, Any],
        **_others: Any,
    ) -> Any:
        """Return the advantage of each row, repeated for all of its tokens.

        The arguments are NeMo-RL's. Rows with identical prompt tokens form a group. `mask` is 1 for
        trained tokens, and `repeated_batch` has an array `[row]` under `reward/<name>` for each
        reward, with NaN where the reward does not apply. Of `rewards`, only the dtype and device
        are used.
        """
        columns = {
            key.removeprefix("reward/"): repeated_batch[key].double().cpu().numpy()
            for key in repeated_batch
            if key.startswith("reward/")
        }
        values = rows.reward_columns(
            columns,
            self.settings.names,
            asked_by=f"{PLACE}.gdpo_reward_keys",
            given_by="the environment, as 'reward/<name>'",
        )
        trained = mask.bool().sum(-1).cpu().numpy()
        self.last_metrics = {}
        if not trained.any():
            return rewards.new_zeros(mask.shape)
        prompts = [row.tobytes() for row in prompt_ids.cpu().numpy()]
        groups = rows.as_groups(values, prompts, trained, padding=trained == 0)
        computed = compute(groups, self.settings)
        self.last_metrics = computed.metrics(self._watch)
        advantages = rewards.new_tensor(groups.per_row(computed.advantages))
        return advantages.unsqueeze(-1).expand(mask.shape)


class _Trainer:
    def __init__(self, grpo: Any) -> None:
        self.theirs = grpo._create_advantage_estimator
        self.their_log = grpo._log_mixed_rewards_and_advantages_information
        self._estimator: AdvantageEstimator | None = None

    def create(self, master_config: Any) -> Any:
        config = master_config.grpo.adv_estimator
        self._estimator = AdvantageEstimator(config) if rows.is_ours(config.name) else None
        return self._estimator or self.theirs(master_config)

    def log(self, **given: Any) -> None:
        self.their_log(**given)
        ours = self._estimator.last_metrics if self._estimator else {}
        # The values are arrays because NeMo-RL prints a line for every value of another type.
        given["metrics"].update({key: np.array(value) for key, value in ours.items()})


@functools.cache  # a second call does nothing
def install() -> None:
    """Make gdpo's estimators available by name in NeMo-RL's configuration.

    Call this at the start of the training script.
    """
    grpo: Any = import_module("nemo_rl.algorithms.grpo")
    controller: Any = import_module("nemo_rl.algorithms.single_controller_utils.config")
    trainer = _Trainer(grpo)
    for module in [m for name, m in sys.modules.items() if name.startswith("nemo_rl.")]:
        for theirs, ours in ((trainer.theirs, trainer.create), (trainer.their_log, trainer.log)):
            if vars(module).get(theirs.__name__) is theirs:
                setattr(module, theirs.__name__, ours)
    _check_when_read(grpo.MasterConfig, check_run)
    _check_when_read(controller.MasterConfig, _refuse_controller)


def _check_when_read(kind: Any, check: Callable[[Any], None]) -> None:
    init = kind.__init__

    @functools.wraps(init)
    def checked(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        check(self)

    kind.__init__ = checked


def read_settings(config: Any) -> rows.Settings:
    """Return the settings in the `grpo.adv_estimator` section of NeMo-RL's configuration."""
    given, name = dict(config.model_extra or {}), rows.without_prefix(config.name)
    refuse_unknown(given, FIELDS, f"{PLACE}: unknown field")
    keys, weights, options, detail = (given.get(field) for field in FIELDS)
    place = f"{PLACE}.gdpo_"
    return rows.make_settings(name, keys, weights, options, place=place, detail=detail)


def check_run(config: Any) -> None:
    """Refuse wrong settings in a `MasterConfig` with a gdpo estimator, before Ray starts."""
    name = config.grpo.adv_estimator.name
    if not rows.is_ours(name):
        return
    for place, allowed, remedy in REFUSED:
        *path, field = place.split(".")
        section = functools.reduce(getattr, path, config)
        value = getattr(section, field)
        if field in section.model_fields_set and value != allowed:  # a default is not refused
            raise ConfigError(f"{place}={json.dumps(value)} does not work with {name}: {remedy}")
    names = read_settings(config.grpo.adv_estimator).names
    environments = import_module("nemo_rl.data.utils").extract_necessary_env_names(config.data)
    if config.grpo.use_dynamic_sampling:
        logger.warning(
            "grpo.use_dynamic_sampling drops groups in which the sum of the rewards does not vary "
            "(even if single rewards do) and groups with a missing reward. Switch it off to train "
            "on all groups"
        )
    if len(environments) > 1 or "nemo_gym" in environments:
        logger.warning(
            "NeMo-RL writes 0.0 for a reward that an environment does not return. Make every "
            "environment return all of %s, with NaN for a reward that does not apply",
            ", ".join(names),
        )


def _refuse_controller(config: Any) -> None:
    if rows.is_ours(config.grpo.adv_estimator.name):
        raise ConfigError(
            f"{PLACE}.name={config.grpo.adv_estimator.name}: NeMo-RL's single controller does not "
            "pass the separate rewards to an estimator. Train with examples/run_grpo.py"
        )
