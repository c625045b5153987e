"""Defines tasks, which turn dataset rows into prompts, references and rewards."""

from gdpo.tasks._registry import TASKS, resolve_task
from gdpo.tasks.likeness import near_duplicates
from gdpo.tasks.rows import load_problems, load_rows
from gdpo.tasks.task import Problem, Task

__all__ = [
    "TASKS",
    "Problem",
    "Task",
    "load_problems",
    "load_rows",
    "near_duplicates",
    "resolve_task",
]
