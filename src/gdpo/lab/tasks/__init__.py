"""Defines tasks, which turn dataset rows into prompts, references and rewards."""

from gdpo._left import absent
from gdpo.lab.tasks.rows import load_problems, load_rows
from gdpo.rewards.task import TASKS, Problem, Task, resolve_task

__all__ = [
    "TASKS",
    "Problem",
    "Task",
    "load_problems",
    "load_rows",
    "resolve_task",
]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
