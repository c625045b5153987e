"""Defines the exit codes of the commands."""

FAILED = 1
"""A check failed, a finding met `gdpo analyze --fail-on`, or a training run failed."""

MISTAKE = 2
"""The command line, a recipe or a file is invalid. A message on stderr explains the error."""

CRASHED = 70
"""A failure of gdpo or of the machine. The traceback or the reason is on stderr.

Python's default exit code for a crash is 1, which scripts could not distinguish from FAILED.
"""

CLOSED = 141
"""The reader of the output closed the pipe. Shells report this code for SIGPIPE."""

INTERRUPTED = 130
"""The user pressed Ctrl-C. Shells report this code for SIGINT."""
