"""Exit codes."""

FAILED = 1
"""`gdpo check` found a problem, or `gdpo analyze --fail-on` found a finding of that severity."""

MISTAKE = 2
"""The user made a mistake, which a message on stderr explains."""

CRASHED = 70
"""gdpo or the machine failed; stderr has the traceback or the reason. Python's own code, 1, would
look like FAILED to a script."""

CLOSED = 141
"""The reader of the output closed the pipe; the code that shells report for SIGPIPE."""

INTERRUPTED = 130
"""Ctrl-C; the code that shells report for SIGINT."""
