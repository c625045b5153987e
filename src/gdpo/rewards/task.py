"""Defines tasks, which turn each row of a dataset into a prompt, a reference and rewards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from gdpo._naming import find
from gdpo.errors import ConfigError, DataError
from gdpo.rewards.reward import Reference, Reward

Row: TypeAlias = Mapping[str, Any]
"""One row of a dataset, as read from the file."""

Message: TypeAlias = dict[str, str]
"""A chat message: `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Stores the data of one row that training needs."""

    prompt: list[Message]
    """Chat messages. The policy's chat template turns the messages into text."""
    reference: Reference
    """Data that the rewards score a completion against. Every problem of a task has the same
    keys."""
    _: KW_ONLY
    weights: Any = None
    """The row's cell of the column with weights per prompt, which `load_problems` sets: a mapping
    from reward name to a number, which is not checked yet. None: the configured weights."""
    opened: str = ""
    """The tag that the model's chat template leaves open at the end of the prompt
    (`gdpo.rewards.text.left_open`), which the checks before a run set. A completion then does not
    start with this tag."""


@dataclass(frozen=True, slots=True)
class Task:
    """Defines how a dataset's rows are read, and which rewards score the completions."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    """Accepted sets of columns. A row must have all columns from one set, and may have other
    columns."""
    read_row: Callable[[Row], Problem]
    """Function that reads one row. If a value is invalid, the function raises a DataError with the
    column's name."""
    rewards: tuple[Reward, ...]
    """Rewards, in the order of the reward array."""
    gold_completion: Callable[[Reference], str | None]
    """Function that returns a completion with the reference answer. This completion must get the
    maximum of every applicable reward that scores text. None: the row has no reference answer."""
    bad_completion: str
    """A completion that, for every reference, gets less than the maximum of at least one reward."""
    judges_every_row: tuple[str, ...] = ()
    """Names of rewards that must apply to every row. If such a reward does not apply to a row, no
    response to the row can be correct. An evaluation then lists the row and counts the row as
    wrong. Other rewards may skip rows. For example, a reward for tool calls skips rows that need no
    call."""
    is_published: bool = False
    """Whether the rewards are published ones, which stay unchanged even where they are wrong."""

    def reward(self, name: str) -> Reward | None:
        """Return the reward with this name, or None if the task has none."""
        return next((reward for reward in self.rewards if reward.name == name), None)


def without_arrays(value: Any) -> Any:
    """Return a row or a value in JSON types, with arrays converted to lists."""
    try:
        return _without_arrays(value)
    except RecursionError as error:
        raise DataError("a row is nested too deeply to be read. Flatten or remove it") from error


def _without_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_arrays(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        return [_without_arrays(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


_PLACES = {
    "tool_calling": ("gdpo.lab.tasks.tool_calling", "TASK"),
    "tool_calling_compatible": ("gdpo.lab.tasks.tool_calling", "COMPATIBLE"),
    "gsm8k": ("gdpo.lab.tasks.gsm8k", "TASK"),
    "gsm8k_compatible": ("gdpo.lab.tasks.gsm8k", "COMPATIBLE"),
    "math_length": ("gdpo.lab.tasks.math_length", "TASK"),
    "coding": ("gdpo.lab.tasks.coding", "TASK"),
}


class _Tasks(Mapping[str, Task]):
    """Maps names to tasks, which are imported on first use (this can take seconds)."""

    def __getitem__(self, name: str) -> Task:
        module, attribute = _PLACES[name]
        return getattr(import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


TASKS: Mapping[str, Task] = _Tasks()
"""Built-in tasks by name. `math_length` needs the `math` extra."""


def resolve_task(name: str) -> Task:
    """Return the task with this name: a key in `TASKS`, or `module:attribute` for your own task.

    A name that is unknown or refers to no `Task` raises a ConfigError, and a task whose package is
    not installed a MissingExtraError.
    """
    task = find(name, TASKS, "task")
    if not isinstance(task, Task):
        raise ConfigError(
            f"task {name!r} is a {type(task).__name__}. It must be a gdpo.lab.tasks.Task, as in "
            "TASK = Task(name=..., columns=..., read_row=..., ...)"
        )
    return task
