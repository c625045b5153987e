"""What to type where rewards were inferred, or none could be: a command with their names."""

from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from gdpo.rollouts.readers._inference import likely
from gdpo.rollouts.readers._layout import listed
from gdpo.rollouts.readers._report import FileReport, ReadReport

_NAMED = 12
"""Numbers that a command proposes as rewards."""


def ready_command(report: ReadReport) -> str:
    """The command line that names the rewards that were inferred; empty: there are none."""
    guessed = [file for file in report.files if file.guessed and file.rewards]
    if report.total_alone:
        names = _proposed(guessed)
        names = [name for name in names if not any(name in file.rewards for file in guessed)]
    else:
        names = [name for file in guessed for name in file.rewards]
        if odd := [name for name in dict.fromkeys(names) if not _can_be_named(name)]:
            return (
                f"rename {listed(odd)} first: --rewards takes no name with a comma, a space at an "
                "end or a character that cannot be printed"
            )
    return _command(report, names, guessed)


def without_rewards(report: ReadReport) -> str:
    """What is said where no reward could be inferred: the numbers, and a command that names some.

    Empty: no file holds numbers that might be rewards.
    """
    files = [file for file in report.files if file.refused] + report.unrecognized
    if not files:
        return ""
    first = files[0]
    more = f" and {len(files) - 1:,} more files" if len(files) > 1 else ""
    if not first.numbers:
        return f"no reward can be inferred in {_shortened(first.path)}{more}: it holds no numbers"
    why = first.refused or "no field is named as a reward or score"
    found = (
        f"no reward can be inferred in {_shortened(first.path)}{more}: {why}. Its numbers are "
        f"{listed(first.numbers)}. Name those that are rewards"
    )
    command = _command(report, _proposed(files), files)
    return f"{found}, for example:\n{command}" if command else f"{found} (--rewards)"


def _command(report: ReadReport, names: Iterable[str], files: list[FileReport]) -> str:
    taken = {file.step for file in files}
    fit = [n for n in dict.fromkeys(names) if _can_be_named(n) and n not in taken]
    if not fit:
        return ""
    paths = " ".join(quote(str(path)) for path in report.paths)
    steps = [file.step for file in files if file.format in ("", "columns") and file.step]
    step = f" --columns {quote(f'step={steps[0]}')}" if steps else ""
    return f"gdpo analyze {paths} --rewards {quote(','.join(fit))}{step}"


def _can_be_named(name: str) -> bool:
    return name.isprintable() and "," not in name and name == name.strip()


def _proposed(files: list[FileReport]) -> list[str]:
    """Some numbers that may be rewards, where none is inferred."""
    names = dict.fromkeys(name for file in files for name in likely(file.numbers))
    return [name for name in names if _can_be_named(name)][:_NAMED]


def _shortened(path: Path) -> str:
    """The path without its middle, should it be long."""
    text = str(path)
    return text if len(text) <= 60 else f"{text[:20]}…{text[-39:]}"
