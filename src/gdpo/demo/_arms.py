"""The arms of the demo: each is `gdpo train` on a recipe, in a process of its own."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gdpo.experiments import Training, describe_ending, signals_held, start_training, stop_trainings
from gdpo.recipes.recipe import Recipe

ARMS = ("grpo", "gdpo")
"""Estimators that are compared, in the order in which they are shown."""


@contextmanager
def side_by_side(
    recipes: Sequence[Recipe], folder: Path, say: Callable[[str], None]
) -> Generator[tuple[list[Training], Callable[[], None]]]:
    """Start an arm per recipe; whatever ends the context has those that still run save and end.

    Args:
        recipes: What the arms train.
        folder: Where their recipes and logs are written, named after them.
        say: Called with what the user should read while an arm saves, and with what became of it.

    Yields:
        The arms, and what to call now and then: it raises if a signal asked to stop.
    """
    with signals_held() as unwind:
        arms: list[Training] = []
        try:
            for recipe in recipes:  # a started one must be known at once
                arms.append(start_training(recipe, folder, environment={"HF_HUB_OFFLINE": "1"}))  # noqa: PERF401
            yield arms, unwind
        finally:
            _stop([arm for arm in arms if arm.running], say)


def _stop(arms: Sequence[Training], say: Callable[[str], None]) -> None:
    killed = stop_trainings(arms, say)
    for arm in arms:
        say(f"{arm.name}: {describe_ending(arm.run, killed=arm in killed)}")
