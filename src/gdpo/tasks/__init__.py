"""Tasks: how rows of a dataset become prompts, references and rewards."""

from gdpo.tasks._likeness import near_duplicates, overlaps
from gdpo.tasks._registry import TASKS, resolve_task
from gdpo.tasks._task import Message, Problem, Row, Task
from gdpo.tasks.rows import load_problems, load_rows, without_arrays

__all__ = [
    "TASKS",
    "Message",
    "Problem",
    "Row",
    "Task",
    "load_problems",
    "load_rows",
    "near_duplicates",
    "overlaps",
    "resolve_task",
    "without_arrays",
]
