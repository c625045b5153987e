"""Excludes the scripts, which need an environment with verl."""

collect_ignore = [
    "paths.py",
    "speed.py",
    "real_dump.py",
    "real_queue.py",
    "table.py",
    "texts.py",
    "turns.py",
    "configuration.py",
    "launched.py",
    "watching.py",
]
