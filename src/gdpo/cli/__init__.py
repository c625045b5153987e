"""The command line: `gdpo <verb>`. One file per verb; what the verbs do is elsewhere."""

from gdpo.cli._app import main

__all__ = ["main"]
