"""Takes the verbs together, and turns a user's mistake into one message instead of a traceback."""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cyclopts import App
from rich.console import Console
from rich.text import Text

from gdpo import __version__
from gdpo._files import is_full
from gdpo._naming import search_also
from gdpo.cli import STOPPED
from gdpo.cli._codes import CLOSED, CRASHED, INTERRUPTED, MISTAKE
from gdpo.cli._unknown_option import error_panel
from gdpo.cli.analyze import analyze
from gdpo.cli.check import check
from gdpo.cli.compare import compare
from gdpo.cli.demo import demo
from gdpo.cli.evaluate import evaluate
from gdpo.cli.launch import launch
from gdpo.cli.push import push
from gdpo.cli.recipes import recipes
from gdpo.cli.report import report
from gdpo.cli.train import train
from gdpo.errors import GdpoError

_FULL_DISK = "the disk of {place} is full. Make room, and give the same command again"

_RESUMING = ("train", "launch")
"""Verbs that go on with --resume; the others go on, or begin again, with the same command."""

_HELP = """Train a language model on several rewards at once, so that none of them drowns.

Start with `gdpo demo` (2 minutes, no GPU, nothing to download), or see with `gdpo analyze` what the
rewards of a run did that you have. Then take a recipe (`gdpo recipes ls`), `gdpo check` it and
`gdpo train` it.
"""

app = App(
    name="gdpo",
    help=_HELP,
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    error_formatter=error_panel,
)
for _verb in (demo, analyze, recipes, check, train, compare, report, evaluate, push):
    app.command(_verb)
app.command(launch)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: What follows `gdpo`. None: what the process was started with.
    """
    # A terminal that cannot show ✓ gets a question mark instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # A user's tasks and rewards go by module:attribute: look for them here, as `python -m` does.
    with suppress(FileNotFoundError):  # a folder that is no more
        search_also(Path.cwd())
    sys.exit(_code_of(arguments))


def _code_of(arguments: Sequence[str] | None) -> int:
    """Run the command line; what goes wrong is told on stderr."""
    try:
        return app(arguments, result_action="return_value") or 0
    except GdpoError as error:
        _complain(str(error))
        return MISTAKE
    except KeyboardInterrupt as stopped:
        _complain(str(stopped) or STOPPED)
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return CLOSED
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich makes an exit with 1 of it
            return CLOSED
        raise
    except Exception as error:  # noqa: BLE001 (told whole, and only its exit code is chosen)
        if is_full(error):
            told = _FULL_DISK.format(place=getattr(error, "filename", None) or "what it writes")
            verb = [*(sys.argv[1:] if arguments is None else arguments), ""][0]
            _complain(f"{told}, with --resume" if verb in _RESUMING else told)
        else:
            traceback.print_exc()
        return CRASHED


def _close_output() -> None:
    """So that nothing is written any more to a pipe that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    """One message on stderr; of processes that train together, only the first one speaks."""
    if os.environ.get("RANK", "0") == "0":
        if not message.replace("\n", "").isprintable():
            from gdpo.report.text import visible  # it costs time, and is rarely needed

            message = visible(message)
        console = Console(stderr=True, highlight=False, emoji=False)
        console.print(Text.assemble(("gdpo: ", "bold red"), message), soft_wrap=True)
