"""Some of these files are scripts for an environment that has NeMo-RL."""

collect_ignore = [
    "configuration.py",
    "dump.py",
    "paths.py",
    "source.py",
    "speed.py",
    "story_rewards.py",
    "table.py",
    "told.py",
]
