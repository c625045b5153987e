"""The arms of the demo: each is `gdpo train` on a recipe, in a process of its own."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gdpo.experiments import Training, start_training, stop_trainings
from gdpo.training import Recipe

ARMS = ("grpo", "gdpo")
"""Estimators that are compared, in the order in which they are shown."""


@contextmanager
def side_by_side(recipes: Sequence[Recipe], folder: Path) -> Generator[list[Training]]:
    """Start an arm per recipe; whatever ends the context stops those that still run.

    Args:
        recipes: What the arms train.
        folder: Where their recipes and logs are written, named after them.
    """
    arms: list[Training] = []
    try:
        for recipe in recipes:  # a started one must be known at once
            arms.append(start_training(recipe, folder, environment={"HF_HUB_OFFLINE": "1"}))  # noqa: PERF401
        yield arms
    finally:
        stop_trainings(arms)
