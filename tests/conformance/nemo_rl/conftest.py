"""Some of these files are scripts for an environment that has NeMo-RL."""

collect_ignore = [
    "configuration.py",
    "paths.py",
    "source.py",
    "speed.py",
    "table.py",
    "told.py",
]
