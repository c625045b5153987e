"""Registers the verbs, and prints user errors as one message instead of a traceback."""

import io
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    CycloptsPanel,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
)
from rich.panel import Panel
from rich.text import Text

from gdpo import __version__
from gdpo._files import is_full
from gdpo._left import LEFT
from gdpo._naming import last_line, search_also
from gdpo._terminal import say, terminal
from gdpo._text import remedied, visible
from gdpo.cli.analyze import analyze
from gdpo.errors import (
    CLOSED,
    CRASHED,
    INTERRUPTED,
    MISTAKE,
    STOPPED,
    ConfigError,
    GdpoError,
    MissingExtraError,
    rank,
)

_RESUMING = ("train", "launch")
"""Verbs that need --resume to resume an interrupted run. Other verbs need no additional option."""

_HELP = """Train a language model on several rewards with GDPO, and measure what each reward does.

Start with `gdpo analyze --example`, which shows the influence of each reward in a recorded run.
Then run `gdpo analyze FOLDER` on a run of your own. To train a tiny model on the CPU, create a
project (`gdpo init`). To train your own model, choose a shipped recipe (`gdpo recipes ls`). Then
run `gdpo check` and `gdpo train`.
"""

_RANK_0_S = 10.0
"""Seconds in which rank 0 prints its own message and exits."""

_SURE = 0.8
"""Similarity above which an option is suggested. Below this value, recipe keys are tried first."""


def _error_panel(error: CycloptsError, note: str = "") -> Panel:
    """Return the error panel for an invalid command line, with `note` if the command is unknown.

    For an unknown option, it also suggests recipe keys, because users often type options of other
    trainers, such as `--max-steps`.
    """
    if isinstance(error, UnknownCommandError):
        verb = (error.unused_tokens or [""])[0]
        if (instead := LEFT.get(f"gdpo {verb}")) is not None:
            error = CycloptsError(msg=f"The command {verb} was removed: {instead}.")
        elif note:
            error = CycloptsError(msg=f"{error}\n{note}")
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        verb = " ".join(error.command_chain or ())
        error = CycloptsError(msg=_message(verb, option, error.argument_collection))
    return CycloptsPanel(error)


def _message(verb: str, option: str, arguments: Any) -> str:
    if (instead := LEFT.get(f"{verb} {option}")) is not None:
        return f"The option {option} was removed: {instead}."
    name = option.lstrip("-")
    options = [each[2:] for argument in arguments for each in argument.names if each[:2] == "--"]
    meant = _near(name, options, _SURE) or _set(name, options) or _near(name, options, 0.6)
    return f"Unknown option: {option}." + (f" Did you mean {meant}?" if meant else "")


def _near(name: str, options: list[str], likeness: float) -> str:
    """Return the option that is like this name or begins with it (`-o`), or ""."""
    near = get_close_matches(name, options, n=1, cutoff=likeness)
    near += [each for each in options if each.startswith(name)]
    return f"--{near[0]}" if near else ""


def _set(name: str, options: list[str]) -> str:
    """Return the --set option for the recipe key with this name, or "" if there is none."""
    if "set" not in options:
        return ""
    key = import_module("gdpo.lab.recipes.read").recipe_key(name.replace("-", "_"))
    return f"--set {key}=..." if key else ""


app = App(
    name="gdpo",
    help=_HELP,
    version=__version__,
    # A flag is left out to say no, and a list to say nothing: neither has an option that negates.
    default_parameter=Parameter(
        negative=(),
        show_default=lambda value: None if value is None or value is False else str(value),
    ),
    suppress_keyboard_interrupt=False,
    error_formatter=_error_panel,
)
app.command(analyze)
try:
    for _verb in import_module("gdpo.lab.cli").VERBS:
        app.command(_verb)
except MissingExtraError as _missing:
    _only = f"Only `gdpo analyze` is installed: {_missing}"
    app.help = f"{_HELP}\n{_only}.\n"
    app.error_formatter = partial(_error_panel, note=_only)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Command-line arguments after `gdpo`. None: use `sys.argv`.
    """
    # Print a question mark where the terminal cannot show ✓, instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Let users name modules in the current folder (module:attribute), as `python -m` does.
    with suppress(FileNotFoundError):  # the current folder was deleted
        search_also(Path.cwd())
    sys.exit(_code_of(sys.argv[1:] if arguments is None else arguments))


def _as_spelled_now(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments of `gdpo analyze`, with `--json` and `--no-report` replaced.

    So scripts for the last version still work. Each of the two options prints a line on stderr.
    """
    if "analyze" not in arguments[:1]:
        return arguments
    old = [each for each in ("--json", "--no-report") if each in arguments]
    for option in old:
        _complain(f"the option {option} was removed: {LEFT[f'analyze {option}']}")
    rest = [each for each in arguments if each not in old]
    output = "json" if "--json" in old else "none"
    given = {f"{name}={value}" for name, value in pairwise(rest)} | {*rest}
    if not old or given & {f"--output={output}", "--output=json"}:
        return rest
    if any(each.partition("=")[0] == "--output" for each in rest):
        raise ConfigError(f"{old[0]} cannot be combined with --output: remove one of the two")
    return [*rest, "--output", output]


def _code_of(arguments: Sequence[str]) -> int:
    try:
        return app(_as_spelled_now(arguments), result_action="return_value") or 0
    except GdpoError as error:
        _complain(remedied(error.what, error.remedy, options=True) or str(error))
        return MISTAKE
    except KeyboardInterrupt as stopped:
        if rank() == "0":  # all processes are stopped
            _complain(str(stopped) or STOPPED)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe: further output goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except SystemExit as leaving:
        return _code_of_exit(leaving)
    except Exception as error:  # noqa: BLE001 (printed with its traceback)
        if is_full(error):
            place = getattr(error, "filename", None) or "the output"
            again = ", with --resume" if [*arguments, ""][0] in _RESUMING else ""
            _complain(
                f"the disk that contains {place} is full. Free some space, then rerun the same "
                f"command{again}"
            )
        else:
            sys.stderr.write(visible(traceback.format_exc()))
        return CRASHED


def _code_of_exit(leaving: SystemExit) -> int:
    # No command of gdpo exits itself. Code 0 would let a CI step pass that has not finished.
    if isinstance(leaving.__context__, BrokenPipeError):  # rich exits with code 1
        return CLOSED
    if leaving.code:
        raise leaving
    _complain(
        f"sys.exit() was called before the command had finished ({last_line(leaving)}): remove the "
        "call"
    )
    return MISTAKE


def _complain(message: str) -> None:
    """Print a message to stderr. In a distributed run, another rank than 0 waits first.

    A launcher ends all processes as soon as one has exited. A mistake of all ranks is therefore
    printed only by rank 0, and a mistake of one rank by that rank.
    """
    if (own := rank()) != "0":
        with suppress(KeyboardInterrupt):  # then, too, the message is printed
            time.sleep(_RANK_0_S)
        message = f"rank {own}: {message}"
    say(terminal(stderr=True), Text.assemble(("gdpo: ", "bold red"), message))
