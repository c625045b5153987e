"""The recipes of the study: tool calling and stories, both with a tiny policy."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.study._maths import TOKEN_LIMIT, Careless, story_rows
from benchmarks.tool_policy._policy import PolicySettings, make_policy
from benchmarks.tool_policy._texts import Carelessness
from benchmarks.tool_policy._tools import tool_rows

from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe, RewardConfig

PROMPTS = 16
"""Prompts per step."""

STEPS = 100

OFTEN, RARELY = 0.04, 0.01
"""Share of the warm-start texts that have the format."""

_ROWS = 4096
_ROWS_SEED = 2000


def tools_recipe(
    folder: Path,
    *,
    well_formed: float,
    samples: int = 4,
    learning_rate: float = 5e-4,
    policy: int = 0,
) -> Recipe:
    """Return the recipe of tool calling with format and correctness.

    Args:
        folder: Folder for the data.
        well_formed: Share of the warm-start texts that have the format, from 0 to 1.
        samples: Samples per prompt.
        learning_rate: Learning rate of AdamW.
        policy: Seed of the policy's warm start.
    """
    settings = PolicySettings(texts=Carelessness(well_formed=well_formed), seed=policy)
    return Recipe(
        task="tool_calling",
        model=str(make_policy(settings)),
        data=DataConfig(source=str(_written(folder / "requests.jsonl", tool_rows))),
        batch=_batch(samples),
        trainer=_trainer(learning_rate, longest=40),
        runs_dir=str(folder),
    )


def maths_recipe(
    folder: Path, *, samples: int = 8, learning_rate: float = 5e-4, policy: int = 0
) -> Recipe:
    """Return the recipe of the stories: correctness, format and length."""
    settings = PolicySettings(texts=Careless(), steps=1200, seed=policy)
    return Recipe(
        task="benchmarks.study._maths:STORIES",
        model=str(make_policy(settings)),
        data=DataConfig(source=str(_written(folder / "stories.jsonl", story_rows))),
        rewards=(
            RewardConfig(name="correctness"),
            RewardConfig(name="format"),
            RewardConfig(name="token_limit", options={"limit": TOKEN_LIMIT}),
        ),
        batch=_batch(samples),
        trainer=_trainer(learning_rate, longest=48),
        runs_dir=str(folder),
    )


def of_warm_starts(recipe_in: Callable[..., Recipe], seeds: Iterable[int]) -> Callable[..., Recipe]:
    """Return the same function of the folder, but each seed of its recipe has its own policy."""

    def recipe(folder: Path, **settings: Any) -> Recipe:
        recipes = {seed: recipe_in(folder, policy=seed, **settings) for seed in seeds}
        first = next(iter(recipes.values()))
        policies = folder / "policies" / Path(first.initial_model).name
        policies.mkdir(parents=True, exist_ok=True)
        for seed, each in recipes.items():
            if not (link := policies / str(seed)).exists():
                link.symlink_to(each.initial_model)
        return first.model_copy(update={"model": str(policies / "{seed}")})

    return recipe


def _batch(samples: int) -> BatchConfig:
    return BatchConfig(prompts=PROMPTS, samples=samples, micro_batch=PROMPTS * samples)


def _trainer(learning_rate: float, *, longest: int) -> dict[str, Any]:
    return {
        "max_completion_length": longest,
        "max_steps": STEPS,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_steps": STEPS,
    }


def _written(file: Path, rows: Any) -> Path:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = rows(_ROWS, seed=_ROWS_SEED)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
    return file
