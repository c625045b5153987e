"""Defines the recipe, a small YAML file that completely describes a training run."""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gdpo._left import LEFT
from gdpo.advantages.arrays import number
from gdpo.advantages.schedules import read_schedule
from gdpo.errors import ConfigError, DataError
from gdpo.lab.recipes.yaml import Document, KeyPath, dotted, dump_yaml

RECIPE_FILE = "recipe.yaml"
"""File name of the recipe in a folder, such as a run directory."""

ENVIRONMENT_FILE = "environment.json"
"""Name of the file whose presence marks a folder with a recipe as a run directory."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Pattern of allowed run names. The name of a run is also the name of its folder."""


Options: TypeAlias = dict[str, Any]
"""Values by name, as a recipe lists them."""


class Config(BaseModel):
    """Base class for the parts of a recipe. Unknown keys and wrong types are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_removed_keys(cls, data: Any, info: ValidationInfo) -> Any:
        """Drop removed keys without a value, which the last version saved with every recipe.

        With a set as the context, the recipe is only shown. Removed keys with a value are then
        added to the set, and dropped too.
        """
        if not isinstance(data, Mapping):
            return data
        pairs = data.items()
        given = {key: value for key, value in pairs if value is not None or key not in LEFT}
        if info.context is None:
            return given
        info.context.update(given.keys() & LEFT.keys())
        return {key: value for key, value in given.items() if key not in LEFT}


def _one_or_several(source: Any) -> Any:
    """Check the type of `source`; pydantic itself would report one error per allowed type."""
    if isinstance(source, str):
        return source
    texts = tuple(source) if isinstance(source, list | tuple) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"data.source must be a string or a list of strings, got {source!r}")
    return texts


class DataConfig(Config):
    """Defines the source of the data and which rows are used."""

    source: Annotated[str | tuple[str, ...], BeforeValidator(_one_or_several)]
    """Local .jsonl, .json or .parquet file (or .gz), a dataset on the Hub, or a list of sources."""
    subset: str | None = None
    """Configuration (subset) of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    limit: Annotated[PositiveInt, Field(le=sys.maxsize)] | None = None
    """Use only the first N rows of each source. Default: all rows."""
    max_prompt_length: PositiveInt | None = None
    """Maximum prompt length in tokens. Rows with longer prompts are dropped. Default: no limit."""
    weights_column: str | None = None
    """Column with weights per prompt: a mapping from reward name to a number, which multiplies the
    weight of the reward. A reward that is missing or null does not apply to the prompt. A null
    cell changes no weight. Not for `eval_data`. Default: the same weights for all prompts."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Return all sources as a tuple."""
        return (self.source,) if isinstance(self.source, str) else self.source


class BatchConfig(Config):
    """Defines the batch of all processes together, which share it equally.

    Set the length of the run with `trainer.max_steps` or `trainer.num_train_epochs`.
    """

    prompts: PositiveInt = 8
    """Number of prompts per generation. The estimator processes all their rollouts as one batch."""
    samples: Annotated[int, Field(ge=2)] = 8
    """Number of rollouts per prompt. The rollouts of a prompt form a group."""
    rollouts_per_step: PositiveInt | None = None
    """Number of rollouts per optimizer step. Default: all rollouts of a generation."""
    micro_batch: PositiveInt = 8
    """Maximum number of rollouts in a forward pass on one device. Lower this value if memory runs
    out. Results change only by rounding errors, except with `trainer.loss_type: bnpo`, where TRL
    averages the loss over the tokens of a forward pass."""

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
    """Defines a condition without which a reward is 0 or missing."""

    on: str
    """Name of the reward that the condition tests."""
    at_least: float
    """Minimum value that the tested reward must have."""
    otherwise: Literal["zero", "missing"] = "zero"
    """The reward if the condition is not met: `zero`, or `missing`, which compares the reward only
    among the rollouts that meet the condition."""
    of: Literal["rollout", "group"] = "rollout"
    """What the condition tests: the reward of the `rollout`, or its mean over the `group`."""


class RewardConfig(Config):
    """Defines one reward and its weight."""

    name: str
    """Name of one of the task's rewards, name of a built-in reward (such as `token_limit`), or
    `module:attribute`. The attribute is a `gdpo.Reward` or a function that returns a
    `gdpo.Reward`."""
    weight: float | Options = 1.0
    """Weight of the reward, a finite number. Most estimators apply the weight after they normalize
    each reward. Sum-then-normalize estimators apply the weight before they normalize the sum.
    A schedule changes the weight during the run: `{from: 1.0, to: 0.2, steps: 200}`, or
    `{from: 1.0, after: {reward: format, mean_at_least: 0.95}, value: 0.2}`. Default: 1.
    """

    gate: GateConfig | None = None
    """Condition under which this reward counts. Default: the reward always counts."""
    options: Options = {}
    """Keyword arguments for the function that returns the reward, such as `{limit: 4000}`."""

    @model_validator(mode="before")
    @classmethod
    def _watched(cls, values: Any) -> Any:
        """Read `watch: true` as weight 0."""
        if not isinstance(values, dict) or "watch" not in values:
            return values
        given = dict(values)
        watch = given.pop("watch")
        if watch is not True:
            raise ValueError(f"watch must be true, got {watch!r}. Leave it out to train the reward")
        if given.setdefault("weight", 0.0) != 0:
            raise ValueError(
                f"watch: true means weight 0, but weight is {given['weight']!r}. Remove one of them"
            )
        return given

    @field_validator("weight", mode="before")
    @classmethod
    def _valid(cls, weight: Any) -> Any:
        if isinstance(weight, Mapping):
            read_schedule("weight", weight)
            return dict(weight)
        number("a weight without a schedule", weight)
        if not math.isfinite(weight):
            raise ValueError(f"a weight must be a finite number, got {weight}")
        return float(weight)

    @property
    def factor(self) -> float:
        """Return the weight that a schedule multiplies (1), or the weight without a schedule."""
        return 1.0 if isinstance(self.weight, dict) else self.weight

    @property
    def weight_in_words(self) -> str:
        """Return the weight or its schedule, such as `1 → 0.2 over 200 steps`."""
        if isinstance(self.weight, dict):
            return str(read_schedule("weight", self.weight))
        return f"{self.weight:g}"


class LoraSettings(Config):
    """Defines LoRA training. The keys have the same names as in peft."""

    r: PositiveInt = 16
    """Rank of the adapter matrices."""
    alpha: PositiveInt = 32
    """Scale of the adapter. The product of the adapter matrices is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability for the adapter's input, at least 0 and below 1."""
    target_modules: str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = (
        "all-linear"
    )
    """Names of the layers that get an adapter, or `all-linear` for all linear layers except the
    output head."""


def _default_name(so_far: Options) -> str:
    """Return a name made from the task and the estimator, such as `gsm8k-gdpo`.

    From `module:attribute`, only the attribute is used.
    """
    parts = (str(so_far[key]).rpartition(":")[2] for key in ("task", "advantage"))
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


class Recipe(Config):
    """Defines a training run. Use `gdpo.lab.recipes.load_recipe` to read a recipe from a file."""

    task: str
    """A built-in task (such as `tool_calling` or `gsm8k`), or `module:attribute` of a
    `gdpo.lab.tasks.Task`."""
    model: str
    """A model on the Hub, a local folder, or `smollm2-135m`.

    `{seed}` stands for `trainer.seed`, so that each seed of a comparison can have its own initial
    model."""
    data: DataConfig
    """The training data."""
    advantage: str = "gdpo"
    """Estimator: the name of an estimator in `gdpo.advantages`, such as `gdpo` or `grpo`, or
    `module:attribute` of your own function."""
    advantage_options: Options = {}
    """Options of the estimator. Write an option that has a value per reward as a mapping from
    reward name to value."""
    name: str = Field(default_factory=_default_name)
    """Name of the run and of its folder in `runs_dir`. Default: task and estimator, joined by a
    dash."""
    batch: BatchConfig = BatchConfig()
    """Number of prompts, samples per prompt, and rollouts per optimizer step."""
    eval_data: DataConfig | None = None
    """Data for evaluation during training. Default: no evaluation."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(strict=False)] = ()
    """List of the rewards. Default: every reward of the task, with weight 1."""
    lora: LoraSettings | None = None
    """LoRA settings. Default: train all weights without LoRA."""
    scorer: Options = {}
    """Options of `gdpo.rewards.Scorer`, such as `workers` and `on_error`."""
    trainer: Options = {}
    """Fields of TRL's GRPOConfig that should differ from their defaults."""
    verl: Options = {}
    """Fields of verl's configuration, keyed by dotted path, such as
    `{actor_rollout_ref.actor.kl_loss_type: mse}`. Only `gdpo launch verl` reads these fields."""
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    """Maximum time between two checkpoints, in minutes. Set `trainer.save_steps` to save more
    often."""
    runs_dir: str = "runs"
    """Parent folder of the run directories. `~` means the user's home directory."""

    _document: Document = PrivateAttr(default=Document("the recipe", {}, {}))

    @field_validator("advantage_options")
    @classmethod
    def _without_weights(cls, options: Options) -> Options:
        if "schedules" in options:
            raise ValueError(
                "advantage_options contains schedules: use `weight:` of a reward instead"
            )
        return options

    @field_validator("eval_data")
    @classmethod
    def _evaluated_alike(cls, data: DataConfig | None) -> DataConfig | None:
        if data is not None and data.weights_column is not None:
            raise ValueError(
                "eval_data.weights_column has no effect, because weights per prompt are only used "
                "to train. Remove it"
            )
        return data

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if not RUN_NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r} cannot be used as a folder name. Use letters, digits, "
                "dots, dashes "
                "and underscores, starting with a letter or digit"
            )
        if self.rewards and all(reward.weight == 0 for reward in self.rewards):
            raise ValueError("every reward has weight 0. Give at least one reward a nonzero weight")
        return self

    @property
    def run_dir(self) -> Path:
        """Return the run directory."""
        # Unlike Path.expanduser, this leaves `~name` unchanged if the user does not exist.
        return Path(os.path.expanduser(self.runs_dir)) / self.name  # noqa: PTH111

    @property
    def seed(self) -> int:
        """Return the seed of the run. Default: 42, as in TRL."""
        return self.trainer.get("seed", 42)

    @property
    def initial_model(self) -> str:
        """Return the model to train, for the seed of the run."""
        return self.model.replace("{seed}", str(self.seed))

    @property
    def digest(self) -> str:
        """Return a digest of the recipe, twelve hex digits long."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()[:12]

    def place(self, *path: str | int) -> str:
        """Return where a value was set, such as `recipe.yaml:12` or `--set model=...`."""
        return self._document.place(path)

    @contextmanager
    def at(self, *path: str | int) -> Generator[None]:
        """Put the place of a value before the text of a ConfigError or DataError from the block."""
        try:
            yield
        except (ConfigError, DataError) as error:
            raise type(error)(f"{self.place(*path)}: {error}") from error

    def to_yaml(self) -> str:
        """Return the recipe as YAML, including defaults. `load_recipe` can read the text."""
        return dump_yaml(self.model_dump(mode="json"))


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each key that differs. None: the key is not set."""
    before, after = (flat(recipe.model_dump(mode="json")) for recipe in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {
        key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    }


def flat(value: Any, path: KeyPath = ()) -> Options:
    """Flatten a recipe into a mapping with dotted keys. Rewards are numbered by position."""
    if isinstance(value, dict) and (value or not path):
        inner = value.items()
    elif isinstance(value, list) and path == ("rewards",):
        inner = enumerate(value)
    else:
        return {dotted(path): value}
    return {k: v for key, item in inner for k, v in flat(item, (*path, key)).items()}
