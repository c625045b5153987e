"""`GDPOConfig`: TRL's `GRPOConfig` with an estimator by name."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from trl.trainer.grpo_config import GRPOConfig

from gdpo._naming import did_you_mean
from gdpo.advantages import resolve_estimator
from gdpo.errors import ConfigError

FILTERS = ("off", "any_reward_varies", "advantage_nonzero")
"""What `filter_groups` can be."""

_SWITCHES: dict[str, tuple[bool | None, ...]] = {
    "pack_micro_batches": (True, False),
    "completion_only_head": (True, False),
    "fast_generation": (None, True, False),
}
"""What the switches can be."""


@dataclass
class GDPOConfig(GRPOConfig):
    """Configuration of `GDPOTrainer`: TRL's `GRPOConfig`, and how advantages are made.

    Parameters:
        advantage (`str`, *optional*, defaults to `"gdpo"`):
            Estimator that turns the rewards into advantages: a name of `gdpo.advantages.ESTIMATORS`
            (`"gdpo"`, `"grpo"`, `"per_reward_batch_std"`, ...), or your own function as
            `"module:attribute"`.
        advantage_options (`dict[str, Any]`, *optional*):
            Options of the estimator, e.g. `{"noise_floor": {"format": 0.1}, "max_advantage": 5}`.
            What goes by reward is a list in the order of the reward functions, or a dict by name.
        gates (`dict[str, dict]`, *optional*):
            Rewards that count only where another is reached, by name:
            `{"length": {"on": "correctness", "at_least": 1}}`. Elsewhere they are 0.
        scorer (`dict[str, Any]`, *optional*):
            Options of the `gdpo.rewards.Scorer` that runs `gdpo.Reward` objects, e.g.
            `{"workers": 8, "on_error": "worst"}`.
        reward_weights (`list[float]` or `dict[str, float]`, *optional*):
            Weights in the order of the reward functions, or by reward name (a reward that is not
            named weighs 1). The rewards of environments come last, and a list may leave them out.
        rollouts_dir (`str`, *optional*):
            Folder for the rollout records, one parquet file per step. `None`: no record is written.
            What an earlier run left there goes into `earlier-1`, or the next number that is free,
            unless this run resumes it.
        pack_micro_batches (`bool`, *optional*, defaults to `True`):
            Leave rollouts that cannot contribute out of the micro-batches of an optimizer step,
            order the rest by length, and trim the padding. The gradient stays TRL's
            (`gdpo.integrations.trl._packing` says how, and where it does not apply).
        completion_only_head (`bool`, *optional*, defaults to `True`):
            On a CPU, compute log-probabilities from the logits of completions alone, in place of
            TRL's head for GPUs.
        fast_generation (`bool`, *optional*):
            Where TRL would call `generate`, read each prompt once for its whole group, and take
            completions out of the batch as they end; the distribution stays. `None`: on the CPU.
            `True`: on every device. Where it does not apply, TRL generates, and the log says why
            (`gdpo.integrations.trl.generation`).
        filter_groups (`str`, *optional*, defaults to `"off"`):
            Replace groups that teach nothing by groups of further prompts: those in which no reward
            with a weight varies (`"any_reward_varies"`), or in which every advantage is 0
            (`"advantage_nonzero"`). `"off"`: groups stay as they are
            (`gdpo.integrations.trl._filtering` says what is drawn, logged and recorded).
        max_filter_rounds (`int`, *optional*, defaults to `3`):
            Largest number of extra generation rounds per batch. Groups that still have no variance
            after them are trained on.

    TRL's `multi_objective_aggregation` and `scale_rewards` choose among TRL's own rules; here
    `advantage` does, and setting them is an error rather than silently without effect.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "advantage_options",
        "gates",
        "scorer",
    ]

    advantage: str = field(
        default="gdpo",
        metadata={
            "help": "Estimator that turns rewards into advantages: 'gdpo', 'grpo', another of "
            "gdpo.advantages.ESTIMATORS, or your own as 'module:attribute'."
        },
    )
    advantage_options: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Options of the estimator, by name; what goes by reward as a list in the order "
            "of the reward functions, or as a dict by name."
        },
    )
    gates: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Rewards that count only where another is reached: "
            '{"length": {"on": "correctness", "at_least": 1}}. Elsewhere they are 0.'
        },
    )
    scorer: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Options of the scorer that runs gdpo.Reward objects: workers, on_error, "
            "concurrency, retries, worker_memory_gb."
        },
    )
    rollouts_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for the rollout records, one parquet file per step. None: none are "
            "written."
        },
    )

    pack_micro_batches: bool = field(
        default=True,
        metadata={
            "help": "Leave rollouts that cannot contribute out of the micro-batches of an "
            "optimizer step, order the rest by length, and trim the padding. The gradient stays "
            "TRL's."
        },
    )
    completion_only_head: bool = field(
        default=True,
        metadata={
            "help": "On a CPU, compute log-probabilities from the logits of completions alone, in "
            "place of TRL's head for GPUs."
        },
    )
    fast_generation: bool | None = field(
        default=None,
        metadata={
            "help": "Where TRL would call generate, read each prompt once for its whole group, and "
            "take completions out of the batch as they end. None: on the CPU."
        },
    )
    filter_groups: str = field(
        default="off",
        metadata={
            "help": "Replace groups that teach nothing by groups of further prompts: "
            "'any_reward_varies', 'advantage_nonzero' or 'off'."
        },
    )
    max_filter_rounds: int = field(
        default=3,
        metadata={"help": "Rounds of further generation for one batch, at most."},
    )

    if TYPE_CHECKING:
        # At run time the field stays TRL's: its argument parser allows no such union.
        reward_weights: list[float] | dict[str, float] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_estimator(self.advantage)
        _check_switches(self)
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"multi_objective_aggregation={self.multi_objective_aggregation!r} has no effect "
                f"here: remove it and set advantage='gdpo' (TRL's normalize_then_sum without its ε)"
            )
        if self.scale_rewards not in ("group", True):
            raise ConfigError(
                f"scale_rewards={self.scale_rewards!r} has no effect here: remove it and choose "
                f"with advantage='grpo' (divides by the group's std), 'grpo_batch_std' (by the "
                f"batch's) or 'grpo_no_std' (does not)"
            )


def _check_switches(config: GDPOConfig) -> None:
    for name, allowed in _SWITCHES.items():
        value: Any = getattr(config, name)
        if not any(value is each for each in allowed):
            raise ConfigError(f"{name}={value!r}: it must be {' or '.join(map(repr, allowed))}")
    filtered: Any = config.filter_groups
    if not isinstance(filtered, str) or filtered not in FILTERS:
        raise ConfigError(f"filter_groups={filtered!r}: {did_you_mean(str(filtered), FILTERS)}")
    rounds: Any = config.max_filter_rounds
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ConfigError(
            f"max_filter_rounds={rounds!r}: it must be a whole number, 1 or more; to keep dead "
            "groups, set filter_groups='off'"
        )
