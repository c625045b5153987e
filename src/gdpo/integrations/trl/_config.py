"""Defines `GDPOConfig`, which extends TRL's `GRPOConfig` with a choice of estimator."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from gdpo._naming import refuse_unknown
from gdpo.advantages import resolve_estimator
from gdpo.advantages.registry import keyword_parameters
from gdpo.diagnostics.diagnosis import check_detail
from gdpo.errors import ConfigError, check_whole
from gdpo.integrations.trl._accounting import check_accounting
from gdpo.integrations.trl._adapter import GRPOConfig
from gdpo.integrations.trl._turns import check_loss

FILTERS = ("off", "any_reward_varies", "advantage_nonzero")
"""Allowed values of `filter_groups`."""

_SWITCHES = ("pack_micro_batches", "share_prompts", "completion_only_head", "fast_generation")
"""Fields whose value is True, False or the default."""


def _field(default: Any, description: str) -> Any:
    return field(default=default, metadata={"help": description})


@dataclass
class GDPOConfig(GRPOConfig):
    """Configures `GDPOTrainer` with the fields of TRL's `GRPOConfig` and gdpo's own fields.

    Each field is described in its `help`, which TRL's parser prints. `reward_weights` accepts a
    dict from reward name to weight, with every reward, in addition to TRL's list in the order of
    the reward functions. As in TRL, a list may leave out the rewards of environments, which come
    last and then have the weight 1.

    TRL's `multi_objective_aggregation` and `scale_rewards` raise a ConfigError, because
    `advantage` selects the estimator.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "advantage_options",
        "gates",
        "scorer",
    ]

    advantage: str = _field(
        "gdpo",
        "Estimator that turns rewards into advantages: 'gdpo', 'grpo', another of "
        "gdpo.advantages.ESTIMATORS, 'turn_gdpo' or another of TURN_ESTIMATORS for one "
        "advantage per turn, or your own as 'module:attribute'.",
    )
    advantage_options: dict[str, Any] | str | None = _field(
        None,
        "Options of the estimator, by name. An option with one value per reward takes "
        "a list in the order of the reward functions, or a dict from reward name to value: "
        '{"noise_floor": {"format": 0.1}, "max_advantage": 5}.',
    )
    gates: dict[str, Any] | str | None = _field(
        None,
        "Rewards that count only if another reward reaches a threshold: "
        '{"length": {"on": "correctness", "at_least": 1}}. Otherwise they are 0, or missing '
        'with "otherwise": "missing". With "of": "group", the mean of the other reward over the '
        "group is tested.",
    )
    scorer: dict[str, Any] | str | None = _field(
        None,
        "Options of the scorer that runs gdpo.Reward objects: workers, on_error, "
        "concurrency, retries, worker_memory_gb.",
    )
    weights_column: str | None = _field(
        None,
        "Dataset column with weights of each prompt, a dict from reward name to a "
        "number that multiplies the configured weight. A reward that is missing or None in the "
        "dict does not apply to the prompt. None instead of a dict: the configured weights.",
    )
    rollouts_dir: str | None = _field(
        None,
        "Folder for the rollout record, one parquet file per step. None: no record is "
        "written. Files of an earlier run in the folder are moved to earlier-1 (or the next "
        "free number), unless the new run resumes the earlier run.",
    )
    diagnostics: str = _field(
        "brief",
        "Metrics of the diagnosis that are logged: 'brief' (two for each reward and "
        "the number of warnings) or 'full'.",
    )
    effect_every: int | None = _field(
        None,
        "Log what changed each reward in 10 of every N steps (N is at least 10), as "
        "account/<reward>/by/<cause>, /rest and /measured. None: no account.",
    )
    pack_micro_batches: bool = _field(
        True,
        "Within an optimizer step, leave out rollouts that cannot contribute to the "
        "gradient, sort the rest by length, and trim the padding. The gradient equals TRL's.",
    )
    share_prompts: bool = _field(
        True,
        "With pack_micro_batches: compute whole groups in one row of tokens without padding, "
        "each prompt once. The gradient equals TRL's.",
    )
    completion_only_head: bool = _field(
        True,
        "On a CPU, compute log-probabilities only from the logits of completion "
        "tokens, without TRL's head, which is written for GPUs.",
    )
    fast_generation: bool | None = _field(
        None,
        "Where TRL would call generate, encode each prompt once for its whole group, "
        "and remove completions from the batch when they end. None: only on the CPU.",
    )
    max_prompt_tokens: int | None = _field(
        None,
        "Number of tokens at the end of a prompt that are kept: longer prompts are "
        "truncated on the left, as in verl-GDPO. None: no prompt is truncated.",
    )
    filter_groups: str = _field(
        "off",
        "Replace groups without signal with groups of new prompts. A group has no "
        "signal if no reward with a nonzero weight varies ('any_reward_varies'), or if every "
        "advantage is 0 ('advantage_nonzero'). 'off': keep all groups.",
    )
    max_filter_rounds: int = _field(
        3,
        "Maximum number of additional generation rounds per batch. Groups that still "
        "have no signal stay in the batch.",
    )

    if TYPE_CHECKING:
        # At run time, TRL's own field is used, because its argument parser does not support unions.
        reward_weights: list[float] | dict[str, float] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        named: Any = self.advantage
        if not isinstance(named, str):
            raise ConfigError(
                f"advantage={named!r}: set the name of an estimator, or 'module:attribute' for "
                "your own"
            )
        turns = "turns" in keyword_parameters(resolve_estimator(self.advantage, turns=True))
        if turns:
            check_loss(self)
        check_accounting(self, self.effect_every, turns=turns)
        check_detail(self.diagnostics, "diagnostics")
        for name in _SWITCHES:
            value: Any = getattr(self, name)
            allowed = dict.fromkeys((getattr(GDPOConfig, name), True, False))
            if not any(value is each for each in allowed):
                raise ConfigError(f"{name}={value!r}: set it to {' or '.join(map(repr, allowed))}")
        refuse_unknown([self.filter_groups], FILTERS, "unknown filter_groups")
        check_whole("max_filter_rounds", self.max_filter_rounds, least=1)
        if self.max_prompt_tokens is not None:
            check_whole("max_prompt_tokens", self.max_prompt_tokens, least=1)
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"multi_objective_aggregation={self.multi_objective_aggregation!r} has no effect "
                "in GDPOConfig: remove it, and set advantage='gdpo' for TRL's normalize_then_sum "
                "(without its ε) or advantage='grpo' for sum_then_normalize"
            )
        if self.scale_rewards not in ("group", True):
            raise ConfigError(
                f"scale_rewards={self.scale_rewards!r} has no effect in GDPOConfig: remove it, and "
                "set advantage='grpo' (divides by the group's std), 'grpo_batch_std' (divides by "
                "the batch's std) or 'grpo_no_std' (no division)"
            )
