"""Excludes the scripts, which need an environment with NeMo-RL."""

collect_ignore = [
    "configuration.py",
    "dump.py",
    "paths.py",
    "source.py",
    "speed.py",
    "story_rewards.py",
    "table.py",
    "listed_rewards.py",
]
