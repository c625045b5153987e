"""Reports what was read and what was not, and counts every row that a reader skips."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gdpo._shapes import Bool, Int
from gdpo._text import NO_REMEDY, Remedy, Setting, advice, command, options_of, pairs, remedied
from gdpo.rollouts.readers.files import kind_of
from gdpo.rollouts.readers.names import likely, listed
from gdpo.rollouts.readers.propose import GUESSED, NOTHING_GIVEN, SCALAR, Given
from gdpo.rollouts.table import BY_BOTH, BY_IDS, BY_NOTHING, BY_PROMPT

_NAMED = 12
"""Maximum number of fields to propose as rewards in a command."""
_USUAL_SIZES = (8, 16, 4, 6, 5, 3, 2)
NAMED = frozenset({"trl", "ms-swift"})
"""Formats with a column for each reward, which has the name of its function."""


Details: TypeAlias = Mapping[str, str | int | float]
NOTHING: Details = {}


class ReadProblem(Enum):
    """Names the kinds of problems, with the template of a sentence, and a remedy, if any."""

    UNREADABLE = "cannot be read: {why}"
    REST = "the rest cannot be read: {why}"
    NOT_UTF8 = "the line is not UTF-8: write the file in UTF-8"
    NO_OBJECT_IN_ROW = "the row is not a JSON object"
    NO_OBJECT = "the line is not a JSON object"
    NO_DICT = "the sample is not a dict"
    NO_JSON = "the line is not valid JSON"
    TOO_DEEP = "the line is nested too deeply to be read"
    CUT_ROW = "the last row is incomplete: the run is still writing, or was killed"
    CUT_LINE = "the last line is incomplete: the run is still writing, or was killed"
    LONG_LINE = (
        "the line has more than {most:,} bytes and is skipped: write fewer rollouts per line, or "
        "parquet"
    )
    REPEATED_KEY = "{which} occurs more than once in an object: its last value is used"
    FIELDS = "the number of fields in the row differs from the first line"
    QUOTE = "a quote is not closed, so {lines:,} lines were read as one row: close the quote"
    TOLD = "{why}"
    """What a format says about a record, or a reward function about a rollout."""
    NO_FIELD = "the field {field} of format {format} is missing"
    DEEP_FIELD = "a field is nested too deeply to be read"
    TYPES = "the fields do not have the types of format {format} ({error})"
    NO_ROLLOUT = "the record contains no rollout"
    OTHER = "an earlier output of a rollout: only the last output is read, as in verl's GRPO"
    APART = "a second output of a rollout, not next to the first: only the first is read"

    NO_NUMBER = "{field} is not a number, and counts as missing"
    NAN = "{field} is NaN, and counts as missing"
    INFINITE = "{field} is infinite, and counts as missing"
    BEYOND = "{field} is beyond {limit:g}, and counts as missing"
    TEXT = "{field} is the text of a number, and is read as that number"
    NO_STEP = "the step is not a non-negative integer"
    REPEATED_STEP = "the rollouts of the previous step again: skipped"

    NO_REWARD = "no reward {name!r}; the numeric fields are {fields}"
    MANY = (
        "more than {most} fields contain numbers and may be rewards; the first {most} are read",
        {"name the rewards": Setting.REWARDS},
    )
    LONG_NAME = (
        "fields whose names have more than {most} characters are not read as rewards",
        {"name the rewards": Setting.REWARDS},
    )
    TEXTS = (
        "{path!r} contains text, not numbers, and is not read as a reward: write numbers, with a "
        "decimal point"
    )
    NOT_INFERRED = (
        "no reward can be inferred ({why})",
        {"name the rewards": Setting.REWARDS},
    )
    CONTRADICTED = (
        "{total!r} is not the plain sum of the rewards, and does not show their weights",
        {"give the weights": Setting.WEIGHTS, "or read only the total": Setting.REWARDS},
    )
    ZERO = "reward {name!r} counts as 0 where it is missing, as in {total!r}"
    RECORDED_APART = (
        "{total!r} contradicts the recorded weights, so its own weights {weights} are used",
        {"to use the recorded weights, pass them": Setting.WEIGHTS},
    )
    NO_WEIGHTS = "some weights are not usable numbers: weight 1 is used for each reward"
    WEIGHTS_DIFFER = (
        "weights differ from an earlier rollout of the group: the earlier weights are used"
    )
    OTHER_WEIGHTS = (
        "{total!r} is not the sum that the weights of the first rollouts give",
        {"give the weights of these rollouts": Setting.WEIGHTS},
    )
    FILES_WITHOUT_WEIGHTS = (
        "other files of the step have no weights: weight 1 is used for each reward"
    )

    ALONE = "each group id has one rollout: rollouts are grouped by prompt"
    SPLIT = (
        "the prompts of most group ids differ, as when ids restart in every batch: rollouts are "
        "grouped by id and prompt"
    )
    SOME_WITHOUT = "no {path}, although other rollouts have one: put into one group"
    UNGROUPED = "neither a group nor a prompt, although other rollouts have one: put into one group"
    BY_PROMPT = "no group id, although other rollouts have one: grouped by prompt"

    TURN_ROWS = "an earlier turn of a rollout: the rows with one rollout id are read as its turns"
    MANY_TURNS = "the turns of the step would take too much memory, and are not read"
    NO_TURNS = "the column 'turns' does not contain turns, and is not read"
    TURNS_APART = (
        "reward {name!r} of the turns does not add up to the reward of the rollout: results by "
        "turn and results by rollout do not agree"
    )


_OF_WEIGHTS = {ReadProblem.OTHER_WEIGHTS, ReadProblem.CONTRADICTED}
"""Problems that show that the weights of the rewards are not those that are used."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Stores one kind of problem in a file."""

    problem: ReadProblem
    file: Path
    line: int | None
    """First line of a text file (from 1) or row (from 0) with the problem. None: the whole file."""
    values: Details
    count: int = 0
    rows: int = 0
    """Number of rollouts skipped because of the problem, as far as they can be counted."""

    @property
    def oddity(self) -> "Oddity":
        """The problem with its place and its remedy, if any."""
        text = self.problem.value
        problem, remedy = (text, NO_REMEDY) if isinstance(text, str) else text
        return Oddity(problem.format_map(self.values), remedy, self.place)

    @property
    def what(self) -> str:
        """Sentence about the problem, with its remedy, if any."""
        return self.oddity.sentence()

    @property
    def place(self) -> str:
        """Path of the file with the line, or with the row (from 0) in a file without lines."""
        if self.line is None:
            return str(self.file)
        in_lines = kind_of(self.file) == "jsonl"
        return f"{self.file}:{self.line}" if in_lines else f"{self.file}, row {self.line}"


class Oddity(NamedTuple):
    """Stores a fact about the files that a user should know."""

    what: str
    remedy: Remedy = NO_REMEDY
    place: str = ""
    """Where it occurs first, or "" for a fact about all files."""
    more: str = ""
    """How often it occurs, in parentheses."""

    def sentence(self, *, options: bool = False) -> str:
        """Return the fact and its remedy, which names arguments, or with `options`, options."""
        return remedied(self.what, self.remedy, options=options) + self.more

    def line(self, *, options: bool = False) -> str:
        """Return the sentence after its place, if there is one."""
        sentence = self.sentence(options=options)
        return f"{self.place}: {sentence}" if self.place else sentence


@dataclass(slots=True)
class FileReport:
    """Stores the format of a file and counts its rows.

    At the end of the file, `rows == read + skipped`.
    """

    path: Path
    report: "ReadReport" = field(default_factory=lambda: ReadReport(()), repr=False)
    """Report on all files, which receives the notices. Default: nobody looks at them."""
    format: str = ""
    format_from: str = ""
    rows: int = 0
    """Number of rollouts or lines in the file, valid or not, counted before they are parsed."""
    read: int = 0
    skipped: int = 0
    expected: int = 0
    """Number of rollouts according to the file's metadata, or 0 if unknown."""
    numbered: int = 0
    """Number of rollouts numbered so far, including repeated ones and those without a step."""
    bytes: int = 0
    """Size of the lines read so far, in decompressed bytes."""
    given: Given = NOTHING_GIVEN
    """What the file is read with."""
    numbers: tuple[str, ...] = ()
    """Paths of the numeric fields, according to the first rollouts of the file."""
    inferred: Mapping[str, str] = field(default_factory=dict)
    """Column of each meaning that was inferred from its name, and that groups or rewards need."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights that were found in the total and are used."""
    recorded: bool = False
    """Whether recorded weights are used."""
    bare: bool = False
    """Whether no field is a prompt, completion, group id or advantage."""
    run: str = ""
    number: int | None = None
    """Step in the name of the file, for rollouts without a step."""

    @property
    def kind(self) -> str:
        """See `kind_of`."""
        return kind_of(self.path)

    @property
    def guessed(self) -> bool:
        """Whether the rewards were proposed from names and values, not known from the format."""
        return self.given.rewards.kind in GUESSED and self.format not in NAMED

    def note(
        self,
        line: int | None,
        problem: ReadProblem,
        values: Details = NOTHING,
        *,
        count: int = 1,
        rows: int = 0,
    ) -> None:
        """Add a notice, or raise the count of a known one."""
        key = (self.path, problem, *values.values())
        known = self.report.notices.get(key) or Notice(problem, self.path, line, values)
        found = replace(known, count=known.count + count, rows=known.rows + rows)
        self.report.notices[key] = found

    def note_where(
        self,
        odd: Bool[np.ndarray, " row"],
        lines: Int[np.ndarray, " row"],
        problem: ReadProblem,
        values: Details = NOTHING,
    ) -> None:
        """Add a notice about the rows for which `odd` is true, at the line of the first of them."""
        if odd.any():
            self.note(int(lines[np.argmax(odd)]), problem, values, count=int(odd.sum()))

    def note_once(self, problem: ReadProblem, values: Details) -> None:
        """Add a notice about the whole file, unless there is one already."""
        if (self.path, problem, *values.values()) not in self.report.notices:
            self.note(None, problem, values)

    def lose(
        self, line: int | None, problem: ReadProblem, values: Details = NOTHING, *, rows: int = 1
    ) -> None:
        """Count some of the rows in `rows` as skipped, and add a notice."""
        self.note(line, problem, values, count=rows, rows=rows)
        self.skipped += rows

    def reject(self, line: int | None, problem: ReadProblem, values: Details = NOTHING) -> None:
        """Count a new line or row as skipped, and add a notice."""
        self.rows += 1
        self.lose(line, problem, values)

    def give_back(self, line: int | None, problem: ReadProblem, *, rows: int) -> None:
        """Count rows as skipped that were counted as read, and add a notice."""
        self.read -= rows
        self.lose(line, problem, rows=rows)

    def end(self, why: Oddity) -> None:
        """Count all remaining rows as skipped."""
        if all(file is not self for file in self.report.files):
            self.report.refused[self.path] = why
            self.report.left_out[self.path] = why.sentence()
            if self.numbers:
                self.report.unrecognized.append(self)
            return
        self.rows = max(self.rows, self.expected)
        done = self.read + self.skipped
        self.lose(done, ReadProblem.UNREADABLE, {"why": why.what}, rows=max(self.rows - done, 0))


@dataclass(slots=True)
class ReadReport:
    """Stores the results of reading, and grows while the tables are read."""

    paths: tuple[Path, ...]
    given: dict[str, str] = field(default_factory=dict)
    """Options of the command that reads the files, to print them in other commands."""
    files: list[FileReport] = field(default_factory=list)
    left_out: dict[Path, str] = field(default_factory=dict)
    """Files that were not read, with the reason."""
    refused: dict[Path, Oddity] = field(default_factory=dict)
    """The reasons with a remedy."""
    notices: dict[tuple[Any, ...], Notice] = field(default_factory=dict)
    sought: dict[str, bool] = field(default_factory=dict)
    """Rewards that were requested by name, and whether any file has them."""
    offered: dict[str, None] = field(default_factory=dict)
    """Numeric fields in the files that lack a requested reward."""
    fields: dict[str, None] = field(default_factory=dict)
    """Names of fields in the files, up to the number that a message lists."""
    unrecognized: list[FileReport] = field(default_factory=list)
    """Files that may contain rollouts, but were not read because no field looks like a reward."""
    groups: int = 0
    group_sizes: Counter[int] = field(default_factory=Counter)
    grouped_by: Counter[str] = field(default_factory=Counter)
    """Number of rollouts that were grouped in each way."""
    size_unused: int = 0
    """Number of rollouts with group ids, for which `group_size` was ignored."""
    mixed_blocks: int = 0
    """Number of groups formed by `group_size` that contain more than one prompt."""
    mixed_runs: set[str] = field(default_factory=set)
    """Runs in which `group_size` puts several prompts into a group, although prompts recur."""
    torn_steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of separate pieces of each step, which are not joined."""

    @property
    def rows(self) -> int:
        """Number of rollouts in the files: `read + skipped`."""
        return sum(file.rows for file in self.files)

    @property
    def read(self) -> int:
        """Number of rollouts in the tables."""
        return sum(file.read for file in self.files)

    @property
    def skipped(self) -> int:
        """Number of rollouts that could not be read."""
        return sum(file.skipped for file in self.files)

    @property
    def scalar_only(self) -> bool:
        """Whether every file with rewards contains only a scalar reward."""
        scalars = [file.given.rewards.kind in SCALAR for file in self.files if file.given.names]
        return bool(scalars) and all(scalars)

    @property
    def formats(self) -> dict[str, int]:
        """Number of files in each format."""
        return dict(Counter(file.format for file in self.files))

    @property
    def absent(self) -> list[str]:
        """Rewards requested by name, but in no file."""
        return [name for name, found in self.sought.items() if not found]

    def file_of(self, path: Path) -> FileReport:
        """Return the newest report on a file."""
        return next(file for file in reversed(self.files) if file.path == path)

    def assumed(self, run: str, weighted: Collection[str] = ()) -> dict[str, str]:
        """Return what was inferred about all files of a run, as options of a command.

        Columns that differ between the files are left out: no option can name them.
        `weighted` are the rewards whose weights the caller gives.
        """
        files = [file for file in self.files if file.run == run]
        # The last file has the rewards of all, in their order.
        named = files[::-1] if any(file.guessed for file in files) else []
        names = dict.fromkeys(name for file in named for name in file.given.names)
        found = {n: f.weights.get(n, 1.0) for f in files if f.weights for n in f.given.names}
        weights = {n: repr(w).removesuffix(".0") for n, w in found.items() if n not in weighted}
        columns, _ = self.columns(files)
        return options_of(names, columns, weights)

    def denied(self, run: str) -> bool:
        """Return whether a total contradicts weights that nobody recorded."""
        own = {file.path for file in self.files if file.run == run and not file.recorded}
        return any(n.problem in _OF_WEIGHTS for n in self.notices.values() if n.file in own)

    def columns(self, files: Sequence[FileReport]) -> tuple[dict[str, str], list[str]]:
        """Return the inferred columns that some files share, by meaning, and the others."""
        by_id = not self.grouped_by or bool({BY_IDS, BY_BOTH} & self.grouped_by.keys())
        meanings = dict.fromkeys(meaning for file in files for meaning in file.inferred)
        found = {
            meaning: {file.inferred.get(meaning) for file in files}
            for meaning in meanings
            if by_id or meaning != "group"
        }
        shared = {m: str(column) for m, (column, *others) in found.items() if not others}
        apart = {column for each in found.values() if len(each) > 1 for column in each if column}
        totals = {
            rewards.total if file.format == "columns" and rewards.total in file.numbers else None
            for file in files
            if (rewards := file.given.rewards).kind not in ("total", "asked")
        }
        if len(totals) == 1 and (total := totals.pop()):
            shared["total"] = total
        return shared, sorted(apart)

    def command(self, options: Mapping[str, str], run: str | None = None) -> str:
        """Return the command that analyzes the files, with further options.

        `run`: if there are several, only the folders of the files of this one. None: all files.
        """
        paths: Collection[Path] = self.paths
        if run is not None and len({file.run for file in self.files}) > 1:
            paths = dict.fromkeys(file.path.parent for file in self.files if file.run == run)
        every = dict(self.given)
        for name, value in options.items():
            if name in every and "=" in value:
                both = (each.partition("=") for each in f"{every[name]},{value}".split(","))
                value = pairs({key: of for key, _, of in both})
            every[name] = value
        return command("analyze", paths, every)

    @property
    def without_rewards(self) -> list[FileReport]:
        """Files in which no numeric field could be inferred to be a reward."""
        # With a named format, the notice about the file says what to correct.
        named = "format=" in self.given.get("--columns", "")
        found = [file for file in self.files if file.given.rewards.refused]
        return found if named else found + self.unrecognized

    @property
    def alone(self) -> bool:
        """Whether every group is a single rollout, so that rewards cannot be compared."""
        return self.groups > 0 and self.group_sizes[1] >= self.groups

    def oddities(self) -> list[Oddity]:
        """Return each kind of problem with the groups, and then with the files, at its first place.

        The files that were not read are last.
        """
        kinds: dict[tuple[Any, ...], list[Notice]] = {}
        for key, notice in self.notices.items():
            kinds.setdefault(key[1:], []).append(notice)
        left_out: dict[str, list[Path]] = {}
        for path, why in self.left_out.items():
            left_out.setdefault(why, []).append(path)
        found = list(self.of_groups())
        for notices in kinds.values():
            count = sum(notice.count for notice in notices)
            files = f", in {len(notices):,} files" if len(notices) > 1 else ""
            more = f" (and {count - 1:,} more{files})" if count > 1 else ""
            found.append(notices[0].oddity._replace(more=more))
        for paths in left_out.values():
            more = f" (and {len(paths) - 1:,} more)" if len(paths) > 1 else ""
            left = self.why_not(paths[0])
            found.append(left._replace(what=f"not read: {left.what}", more=more))
        return found

    def why_not(self, path: Path) -> Oddity:
        """Return why a file was not read."""
        why = self.refused.get(path) or Oddity(self.left_out[path])
        return why._replace(place=str(path))

    def of_groups(self) -> Iterator[Oddity]:
        """Yield each problem with the groups."""
        if not self.groups:
            return
        unknown = self.grouped_by[BY_NOTHING]
        torn = sum(count > 1 for count in self.torn_steps.values())
        usual = self.group_sizes.most_common(1)[0][0]
        others = {size: n for size, n in self.group_sizes.items() if size != usual}
        double = sum(n for size, n in others.items() if size % usual == 0)
        double = double if usual > 1 and self.grouped_by[BY_PROMPT] else 0
        if self.alone:
            yield Oddity(
                "every group has only one rollout, so nothing can be compared",
                {
                    "give the number of samples per prompt": Setting.GROUP_SIZE,
                    "or the column with the group ids": Setting.COLUMNS,
                },
            )
        unlike = f"{sum(others.values()):,} of {self.groups:,} groups do not have the usual size"
        if double:
            yield Oddity(
                f"{unlike} {usual}; {double:,} have a multiple of it, as when a prompt is drawn "
                "twice in a step",
                {"to separate them, give the usual size": Setting.GROUP_SIZE},
            )
        if unknown:
            yield Oddity(
                f"{unknown:,} rollouts have neither a group nor a prompt",
                {"if those of a prompt are consecutive, give their number": Setting.GROUP_SIZE},
            )
        found = {
            f"{unlike} {usual}": others and not double,
            f"{self.mixed_blocks:,} groups formed by group_size contain several prompts: check the "
            "number, and that the rollouts of each prompt are consecutive": self.mixed_blocks,
            f"group_size is ignored for {self.size_unused:,} rollouts, whose files contain group "
            "ids: remove it, or name other files": self.size_unused,
            f"{torn:,} steps came in several pieces with other steps between them, as when each "
            "rank writes a file. Each piece counts as a step with its own groups: sort the rows by "
            "step to join them": torn,
        }
        yield from (Oddity(sentence) for sentence, is_so in found.items() if is_so)

    def __str__(self) -> str:
        return "\n".join((*self.lines(), *(each.line() for each in self.oddities())))

    def lines(self, *, options: bool = False) -> list[str]:
        """Return lines about everything that was read, which name arguments or options."""
        lines = [
            f"{', '.join(map(str, self.paths))}: {len(self.files):,} files, {self.rows:,} rows: "
            f"{self.read:,} read, {self.skipped:,} skipped"
        ]
        for name, count in self.formats.items():
            how = next(file.format_from for file in self.files if file.format == name)
            lines.append(f"format {name}: {count:,} files{', ' if how else ''}{how}")
        given = [file.given for file in self.files if file.given.names]
        rewards = {(tuple(each.names), each.rewards.how(options=options)): None for each in given}
        lines += [f"rewards: {', '.join(names)} ({how})" for names, how in rewards]
        if self.groups:
            by = ", ".join(f"{how} ({count:,})" for how, count in self.grouped_by.items())
            sizes = ", ".join(f"{n:,} of {s}" for s, n in self.group_sizes.most_common(4))
            lines.append(f"groups: {self.groups:,} by {by}: {sizes}")
        if bare := sum(file.read for file in self.files if not file.given.names):
            remedy = advice({"name the columns": Setting.REWARDS}, options=options)
            lines.append(f"{bare:,} rollouts have no known reward: {remedy}")
        return lines


def without_rewards(report: ReadReport) -> str:
    """Return a message with commands for files without inferred rewards, or ""."""
    files = report.without_rewards
    if not files:
        return ""
    first, where = files[0], str(files[0].path)
    where = where if len(where) <= 60 else f"{where[:20]}…{where[-39:]}"
    where += f" and {len(files) - 1:,} more files" if len(files) > 1 else ""
    refused, choices = first.given.rewards.refused, first.given.rewards.choices
    if not first.numbers and not choices:
        return f"no reward found in {where}: {refused or 'it contains no numbers'}"
    why = refused or "no field is named as a reward or score"
    numbers = f" The numeric fields are {listed(first.numbers)}." if first.numbers else ""
    found = f"no reward can be inferred in {where}: {why}.{numbers} Name the rewards"
    choices = [c for c in choices if all(map(can_be_named, c))] or [_proposed(files)]
    commands = [each for names in choices if (each := _command(report, names))]
    if not commands:
        return f"{found} with --rewards"
    return f"{found}, {'for example' if len(commands) == 1 else 'with one of'}:\n" + "\n".join(
        commands
    )


def groups_of_one(report: ReadReport) -> str:
    """Return a message if every group has one rollout, or ""."""
    if not report.alone or not any(file.given.names for file in report.files):
        return ""
    each = report.read // max(len(report.torn_steps), 1)
    size = next((size for size in _USUAL_SIZES if each % size == 0), 2)
    sized = (
        "give the number of rollouts per prompt if these are consecutive, for example:\n"
        f"{report.command({'--columns': f'group_size={size}'})}"
    )
    return (
        f"each of the {report.groups:,} groups has one rollout, so no reward can be judged: the "
        f"rollouts were grouped by {', '.join(report.grouped_by)}. Name the column with the group "
        f"ids (--columns group=NAME; the fields are {listed(report.fields)}), or "
        f"{sized if each > 1 else 'record all samples of each prompt'}"
    )


def _command(report: ReadReport, names: Iterable[str]) -> str:
    columns, _ = report.columns([*report.files, *report.unrecognized])
    fit = [name for name in dict.fromkeys(names) if name not in columns.values()]
    return report.command(options_of(fit, columns, {})) if fit else ""


def can_be_named(name: str) -> bool:
    """Return whether an option can name a field."""
    return name.isprintable() and not {",", "="} & set(name) and name == name.strip()


def _proposed(files: list[FileReport]) -> list[str]:
    names = dict.fromkeys(name for file in files for name in likely(file.numbers))
    return [name for name in names if can_be_named(name)][:_NAMED]
