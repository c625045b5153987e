"""Runs the commands that a message prints, so that no message proposes what does not work."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable

Says = Callable[..., tuple[int, str, str]]

_COMMAND = re.compile(r"(?:^|: |with )((?:gdpo analyze|iconv|python -c) .+)$", re.MULTILINE)


def commands_in(text):
    """The commands in a message, each up to the end of its line."""
    return _COMMAND.findall(text)


def printed_by(command, says):
    """Run a printed command, which must work; return what it prints."""
    code, out, err = run_printed(command, says)
    assert code == 0, err
    return out


def run_printed(command, says):
    """Run a printed command in the current folder; return the exit code, stdout and stderr."""
    program, *arguments = shlex.split(command)
    if program == "gdpo":
        return says(*arguments)
    shown = command.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    done = subprocess.run(shown, shell=True, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
