"""Defines the recipe: a small YAML file that describes a training run completely."""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    field_validator,
    model_validator,
)

from gdpo.recipes.yaml import KeyPath, dotted, dump_yaml, nearest_place

RECIPE_FILE = "recipe.yaml"
"""File name of the recipe in a folder, such as a run directory."""

ENVIRONMENT_FILE = "environment.json"
"""File that marks a folder with a recipe as a run directory."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Allowed names of a run, which become folder names."""


class Config(BaseModel):
    """Base class of the parts of a recipe. A misspelt key or a wrong type is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


def _one_or_several(source: Any) -> Any:
    """Check the type here, because pydantic would report an error for each of the two types."""
    if isinstance(source, str):
        return source
    texts = tuple(cast("list[Any]", source)) if isinstance(source, list | tuple) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"data.source must be a string or a list of strings, got {source!r}")
    return texts


class DataConfig(Config):
    """Defines where rows come from."""

    source: Annotated[str | tuple[str, ...], BeforeValidator(_one_or_several)]
    """A local .jsonl, .json or .parquet file (or .gz), a dataset on the Hub, or a list of these."""
    subset: str | None = None
    """Configuration (subset) of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    limit: Annotated[PositiveInt, Field(le=sys.maxsize)] | None = None
    """Use only the first N rows of each source. Default: all rows."""
    near_duplicates: Literal["drop", "keep"] | None = None
    """Whether to drop rows that nearly repeat an earlier one. Default: drop if there are several
    sources."""
    max_prompt_length: PositiveInt | None = None
    """Leave out rows whose prompt has more tokens. Default: no limit."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Return all sources as a tuple."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def drops_near_duplicates(self) -> bool:
        """Return whether near-duplicates are dropped."""
        return (self.near_duplicates or ("keep", "drop")[len(self.sources) > 1]) == "drop"


class BatchConfig(Config):
    """Defines the batch, independent of the number of processes, which share it equally.

    The number of optimizer steps is `trainer.max_steps` or `trainer.num_train_epochs`.
    """

    prompts: PositiveInt = 8
    """Prompts per generation. The estimator normalizes their rollouts together."""
    samples: Annotated[int, Field(ge=2)] = 8
    """Rollouts per prompt, which form a group."""
    rollouts_per_step: PositiveInt | None = None
    """Rollouts per optimizer step. Default: all rollouts of the generation."""
    micro_batch: PositiveInt = 8
    """Maximum number of rollouts in one forward pass on one device; lower it if memory runs out. It
    changes results only by rounding, except with `trainer.loss_type: bnpo`, TRL's mean over the
    tokens of a forward pass."""

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts per generation."""
        return self.prompts * self.samples

    @property
    def per_step(self) -> int:
        """Return the number of rollouts per optimizer step."""
        return self.rollouts_per_step or self.rollouts

    @model_validator(mode="after")
    def _check(self) -> "BatchConfig":
        if self.rollouts % self.per_step:
            fits = [n for n in range(1, self.rollouts + 1) if self.rollouts % n == 0]
            near = sorted(sorted(fits, key=lambda n: abs(n - self.per_step))[:4])
            raise ValueError(
                f"batch.rollouts_per_step = {self.per_step} does not divide the "
                f"{self.prompts} × {self.samples} = {self.rollouts} rollouts of a generation. Use "
                f"{' or '.join(map(str, near))}"
            )
        return self


class GateConfig(Config):
    """Defines a condition for a reward. If the condition is not met, the reward is 0."""

    on: str
    """Name of the reward that the condition tests."""
    at_least: float
    """Lowest value of that reward that meets the condition."""


class RewardConfig(Config):
    """Defines one reward and its weight."""

    name: str
    """One of the task's rewards, one of gdpo's own (`token_limit`, ...), or `module:attribute` of a
    `gdpo.Reward` or of a function that makes one."""
    weight: float = 1.0
    """Weight: a finite number. It is applied after each reward is normalized, or before that by
    estimators that sum the rewards first. Default: 1.
    """

    gate: GateConfig | None = None
    """Condition under which this reward counts. Default: it always counts."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments of the function that makes the reward, by name: `{limit: 4000}`."""

    @field_validator("weight")
    @classmethod
    def _finite(cls, weight: float) -> float:
        if not math.isfinite(weight):
            raise ValueError(f"a weight must be a finite number, got {weight}")
        return weight


class LoraSettings(Config):
    """Defines LoRA training. The names are those of the paper and of peft."""

    r: PositiveInt = 16
    """Rank of the adapter matrices."""
    alpha: PositiveInt = 32
    """The product of the matrices is scaled by alpha / r."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability of the adapter's input, from 0 to below 1."""
    target_modules: str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = (
        "all-linear"
    )
    """Layers with an adapter: names, or `all-linear` for every linear layer except the head."""


def _default_name(so_far: dict[str, Any]) -> str:
    """Return task and estimator, such as `gsm8k-gdpo`. A `module:attribute` gives its attribute."""
    parts = (str(so_far[key]).rpartition(":")[2] for key in ("task", "advantage"))
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


class Recipe(Config):
    """Defines a training run. `gdpo.recipes.load_recipe` reads it from a file."""

    task: str
    """A task of gdpo (`tool_calling`, `gsm8k`), or `module:attribute` of a `gdpo.tasks.Task`."""
    model: str
    """A model on the Hub, a local folder, or `smollm2-135m`."""
    data: DataConfig
    """The training data."""
    advantage: str = "gdpo"
    """The estimator: `gdpo`, `grpo`, another of `gdpo.advantages`, or `module:attribute`."""
    advantage_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the estimator. An option per reward is a mapping by reward name."""
    name: str = Field(default_factory=_default_name)
    """Name of the run and of its folder in `runs_dir`. Default: task and estimator."""
    batch: BatchConfig = BatchConfig()
    """Prompts, samples, and rollouts per optimizer step."""
    eval_data: DataConfig | None = None
    """Data to evaluate on during training. Default: no evaluation."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(strict=False)] = ()
    """The rewards. Default: every reward of the task, with weight 1."""
    lora: LoraSettings | None = None
    """LoRA settings. Default: train all weights."""
    scorer: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of `gdpo.rewards.Scorer`, such as `workers` and `on_error`."""
    trainer: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of TRL's GRPOConfig that should differ from their defaults."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of verl's configuration that only `gdpo launch verl` reads, by their path there:
    `{actor_rollout_ref.actor.kl_loss_type: mse}`."""
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    """Minutes after which a checkpoint is saved, in addition to those of `trainer.save_steps`."""
    runs_dir: str = "runs"
    """Folder of the run directories. `~` is the user's home."""

    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict[KeyPath, str])
    _source: str = PrivateAttr(default="the recipe")

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if not RUN_NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r} cannot be used as a folder name. Use letters, digits, "
                "dots, dashes "
                "and underscores, starting with a letter or digit"
            )
        if self.rewards and all(reward.weight == 0 for reward in self.rewards):
            raise ValueError("every reward has weight 0. Give at least one reward another weight")
        return self

    @property
    def run_dir(self) -> Path:
        """Return the run directory."""
        # Unlike Path.expanduser, this leaves the home of an unknown user as it is written.
        return Path(os.path.expanduser(self.runs_dir)) / self.name  # noqa: PTH111

    @property
    def digest(self) -> str:
        """Return twelve hex digits that identify this exact recipe."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()[:12]

    def place(self, *path: str | int) -> str:
        """Return where a value was set, for messages: `recipe.yaml:12`, or `--set model=...`."""
        return nearest_place(self._places, path, self._source)

    def to_yaml(self) -> str:
        """Return the complete recipe with defaults, as text that `load_recipe` reads."""
        return dump_yaml(self.model_dump(mode="json"))


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each key that differs. None: the key is not set."""
    before, after = (_flat(recipe.model_dump(mode="json")) for recipe in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {
        key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    }


def _flat(value: Any, path: KeyPath = ()) -> dict[str, Any]:
    """Flatten a recipe to dotted keys, with rewards by position."""
    if isinstance(value, dict) and (value or not path):
        inner = cast("dict[str, Any]", value).items()
    elif isinstance(value, list) and path == ("rewards",):
        inner = enumerate(cast("list[Any]", value))
    else:
        return {dotted(path): value}
    return {k: v for key, item in inner for k, v in _flat(item, (*path, key)).items()}
