"""Some of these files are scripts for an environment that has verl."""

collect_ignore = [
    "paths.py",
    "speed.py",
    "real_dump.py",
    "real_queue.py",
    "table.py",
    "configuration.py",
    "launched.py",
]
