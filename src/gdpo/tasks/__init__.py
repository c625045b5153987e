"""Tasks: how rows of a dataset become prompts, references and rewards."""

from gdpo.tasks._columns import without_arrays
from gdpo.tasks._duplicates import near_duplicates, overlaps
from gdpo.tasks._registry import TASKS, resolve_task
from gdpo.tasks._rows import load_rows, load_samples
from gdpo.tasks._task import Message, Row, Sample, Task

__all__ = [
    "TASKS",
    "Message",
    "Row",
    "Sample",
    "Task",
    "load_rows",
    "load_samples",
    "near_duplicates",
    "overlaps",
    "resolve_task",
    "without_arrays",
]
