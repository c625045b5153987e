"""The recipe: everything that decides a training run, as one small YAML file."""

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
"""What the file is called in a folder that holds a recipe, a run directory included."""

ENVIRONMENT_FILE = "environment.json"
"""What marks a folder with a recipe as a run directory."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a run may be called: it becomes a folder's name."""


class Config(BaseModel):
    """Base of the recipe's parts: immutable, and a misspelt key or a wrong type is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


def _one_or_several(source: Any) -> Any:
    """Said here, because pydantic would tell what is wrong with each of the two types."""
    if isinstance(source, str):
        return source
    texts = tuple(cast("list[Any]", source)) if isinstance(source, list | tuple) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"data.source should be text, or a list of texts, got {source!r}")
    return texts


class DataConfig(Config):
    """Where rows come from."""

    source: Annotated[str | tuple[str, ...], BeforeValidator(_one_or_several)]
    """A local .jsonl, .json or .parquet file (.gz too), a dataset on the Hub, or a list of them."""
    subset: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    limit: Annotated[PositiveInt, Field(le=sys.maxsize)] | None = None
    """Use the first so many rows only, of each source."""
    near_duplicates: Literal["drop", "keep"] | None = None
    """Whether rows that nearly repeat an earlier one are left out. Left out itself: they are where
    there are several sources."""
    max_prompt_length: PositiveInt | None = None
    """Leave out rows whose prompt has more tokens; none are if left out."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The source, or all of them."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def drops_near_duplicates(self) -> bool:
        """Whether near-duplicates are left out."""
        return (self.near_duplicates or ("keep", "drop")[len(self.sources) > 1]) == "drop"


class BatchConfig(Config):
    """What is trained on together, whatever it runs on: the engine derives how processes share it.

    The number of optimizer steps is `trainer.max_steps` or `trainer.num_train_epochs`.
    """

    prompts: PositiveInt = 8
    """Prompts of one generation, whose rollouts the estimator normalizes together."""
    samples: Annotated[int, Field(ge=2)] = 8
    """Rollouts of each prompt: a group."""
    rollouts_per_step: PositiveInt | None = None
    """Rollouts that one optimizer step learns from; all of the generation if left out."""
    micro_batch: PositiveInt = 8
    """At most so many rollouts in one forward pass on one device: what fits its memory. It changes
    no result beyond rounding, except with `trainer.loss_type: bnpo`, TRL's mean over the tokens of
    a forward pass."""

    @property
    def rollouts(self) -> int:
        """Rollouts of one generation."""
        return self.prompts * self.samples

    @property
    def per_step(self) -> int:
        """Rollouts of one optimizer step."""
        return self.rollouts_per_step or self.rollouts

    @model_validator(mode="after")
    def _check(self) -> "BatchConfig":
        if self.rollouts % self.per_step:
            fits = [n for n in range(1, self.rollouts + 1) if self.rollouts % n == 0]
            near = sorted(sorted(fits, key=lambda n: abs(n - self.per_step))[:4])
            raise ValueError(
                f"batch.rollouts_per_step = {self.per_step} does not divide the "
                f"{self.prompts} × {self.samples} = {self.rollouts} rollouts of a generation: "
                f"{', '.join(map(str, near))} would"
            )
        return self


class GateConfig(Config):
    """A condition under which a reward counts; elsewhere it is 0."""

    on: str
    """The reward that opens the gate, by name."""
    at_least: float
    """Its value from which on the gate is open, in its unit."""


class RewardConfig(Config):
    """One reward and how much it counts."""

    name: str
    """One of the task's rewards, one of gdpo's own (`token_limit`, ...), or `module:attribute` of a
    `gdpo.Reward` or of a function that makes one."""
    weight: float = 1.0
    """Importance, applied after each reward is normalized, or before by estimators that add the
    rewards up first. Dimensionless, finite.
    """

    gate: GateConfig | None = None
    """Counts only where another reward is reached; always if left out."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments of the function that makes the reward, by name: `{limit: 4000}`."""

    @field_validator("weight")
    @classmethod
    def _finite(cls, weight: float) -> float:
        if not math.isfinite(weight):
            raise ValueError(f"a weight must be a finite number, got {weight}")
        return weight


class LoraSettings(Config):
    """LoRA instead of training all weights; the names are those of the paper and of peft."""

    r: PositiveInt = 16
    """Rank of the two matrices."""
    alpha: PositiveInt = 32
    """Their product is scaled by alpha / r."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of a layer's input that is dropped on its way through them."""
    target_modules: str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = (
        "all-linear"
    )
    """Layers that get them: names, or `all-linear` for every one but the head."""


def _default_name(so_far: dict[str, Any]) -> str:
    """`gsm8k-gdpo`; of a `module:attribute`, the attribute."""
    parts = (str(so_far[key]).rpartition(":")[2] for key in ("task", "advantage"))
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


class Recipe(Config):
    """One training run. `gdpo.recipes.load_recipe` reads it from a file."""

    task: str
    """A task of gdpo (`tool_calling`, `gsm8k`), or `module:attribute` of a `gdpo.tasks.Task`."""
    model: str
    """A model on the Hub, a local folder, or `smollm2-135m`."""
    data: DataConfig
    """What to train on."""
    advantage: str = "gdpo"
    """The estimator: `gdpo`, `grpo`, another of `gdpo.advantages`, or `module:attribute`."""
    advantage_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its options; what goes by reward is a mapping by reward name."""
    name: str = Field(default_factory=_default_name)
    """The run's name: its folder under `runs_dir`."""
    batch: BatchConfig = BatchConfig()
    """Prompts, samples, and what one optimizer step learns from."""
    eval_data: DataConfig | None = None
    """What to evaluate on during training; nothing if left out."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(strict=False)] = ()
    """What is rewarded; left out: every reward of the task, with weight 1."""
    lora: LoraSettings | None = None
    """Train with LoRA; all weights if left out."""
    scorer: dict[str, Any] = Field(default_factory=dict[str, Any])
    """How rewards are run: `workers`, `on_error` and more, the options of `gdpo.rewards.Scorer`."""
    trainer: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of TRL's GRPOConfig, for whatever should differ from its defaults."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of verl's configuration that only `gdpo launch verl` reads, by their path there:
    `{actor_rollout_ref.actor.kl_loss_type: mse}`."""
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    """A checkpoint is saved after the first step that ends so long after the one before, beside
    those of `trainer.save_steps`. Minutes."""
    runs_dir: str = "runs"
    """The folder that run directories are made in; `~` is the user's home."""

    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict[KeyPath, str])
    _source: str = PrivateAttr(default="the recipe")

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if not RUN_NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r} cannot be a folder's name: use letters, digits, dot, dash and "
                "underscore"
            )
        if self.rewards and all(reward.weight == 0 for reward in self.rewards):
            raise ValueError("every reward has weight 0, so there is nothing to learn from")
        return self

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        # Unlike Path.expanduser, this leaves the home of an unknown user as it is written.
        return Path(os.path.expanduser(self.runs_dir)) / self.name  # noqa: PTH111

    @property
    def digest(self) -> str:
        """Twelve hex digits that name this exact recipe."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()[:12]

    def place(self, *path: str | int) -> str:
        """Where a value was given, for messages: `recipe.yaml:12`, or `--set model=...`."""
        return nearest_place(self._places, path, self._source)

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as a file that `load_recipe` reads."""
        return dump_yaml(self.model_dump(mode="json"))


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """What differs between two recipes: by dotted key, the old and the new value (None: none)."""
    before, after = (_flat(recipe.model_dump(mode="json")) for recipe in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {
        key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    }


def _flat(value: Any, path: KeyPath = ()) -> dict[str, Any]:
    """By dotted key; rewards by position."""
    if isinstance(value, dict) and (value or not path):
        inner = cast("dict[str, Any]", value).items()
    elif isinstance(value, list) and path == ("rewards",):
        inner = enumerate(cast("list[Any]", value))
    else:
        return {dotted(path): value}
    return {k: v for key, item in inner for k, v in _flat(item, (*path, key)).items()}
