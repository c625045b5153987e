"""Exit codes."""

FAILED = 1
"""`gdpo check` found something wrong."""

MISTAKE = 2
"""The user made a mistake; a message on stderr says which."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
