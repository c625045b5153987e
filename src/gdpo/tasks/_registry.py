"""Tasks by name."""

from gdpo._naming import find
from gdpo.errors import ConfigError
from gdpo.tasks import gsm8k, tool_calling
from gdpo.tasks._task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (tool_calling.TASK, tool_calling.COMPATIBLE, gsm8k.TASK, gsm8k.COMPATIBLE)
}


def resolve_task(name: str) -> Task:
    """The task of this name.

    Args:
        name: A key of `TASKS`, or `module:attribute` for your own.

    Raises:
        ConfigError: There is no such task, or what is there is none.
    """
    task = find(name, TASKS, "task")
    if not isinstance(task, Task):
        raise ConfigError(f"task {name!r} is a {type(task).__name__}; it must be a gdpo.tasks.Task")
    return task
