"""Exit codes."""

FAILED = 1
"""`gdpo check` found something wrong, or `gdpo analyze --fail-on` something as bad."""

MISTAKE = 2
"""The user made a mistake; a message on stderr says which."""

CRASHED = 70
"""A fault of the program, or of the machine; a traceback on stderr says which. Not Python's 1,
which scripts take for a finding."""

CLOSED = 141
"""Whoever read the output has gone, as shells have it."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
