"""Finds tasks by name."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module

from gdpo._naming import find
from gdpo.errors import ConfigError
from gdpo.rewards.task import Task

_PLACES = {
    "tool_calling": ("gdpo.lab.tasks.tool_calling", "TASK"),
    "tool_calling_compatible": ("gdpo.lab.tasks.tool_calling", "COMPATIBLE"),
    "gsm8k": ("gdpo.lab.tasks.gsm8k", "TASK"),
    "gsm8k_compatible": ("gdpo.lab.tasks.gsm8k", "COMPATIBLE"),
    "math_length": ("gdpo.lab.tasks.math_length", "TASK"),
    "coding": ("gdpo.lab.tasks.coding", "TASK"),
}


class _Tasks(Mapping[str, Task]):
    """Maps names to tasks. Each task is imported on first use, which can take seconds."""

    def __getitem__(self, name: str) -> Task:
        return _imported(*_PLACES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


@lru_cache
def _imported(module: str, attribute: str) -> Task:
    return getattr(import_module(module), attribute)


TASKS: Mapping[str, Task] = _Tasks()
"""Built-in tasks by name. `math_length` needs the `math` extra."""


def resolve_task(name: str) -> Task:
    """Return the task with this name.

    Args:
        name: A key in `TASKS`, or `module:attribute` for your own task.

    Raises:
        ConfigError: If the name is unknown, or does not refer to a `Task`.
        MissingExtraError: If the task needs a package that is not installed.
    """
    task = find(name, TASKS, "task")
    if not isinstance(task, Task):
        raise ConfigError(
            f"task {name!r} is a {type(task).__name__}. It must be a gdpo.lab.tasks.Task, as in "
            "TASK = Task(name=..., columns=..., read_row=..., ...)"
        )
    return task
