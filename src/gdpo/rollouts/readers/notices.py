"""Defines what a reader reports about a file: each kind of problem, and its sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from gdpo.rollouts.readers.files import kind_of

Values: TypeAlias = Mapping[str, str | int | float]
NOTHING: Values = {}


class Problem(Enum):
    """Names the kinds of problems. Each has the template of its sentence, and a remedy, if any."""

    UNREADABLE = "cannot be read: {why}"
    REST = "the rest cannot be read: {why}"
    NOT_UTF8 = "the line is not UTF-8", "write the file in UTF-8"
    NO_OBJECT_IN_ROW = "the row is not a JSON object"
    NO_OBJECT = "the line is not a JSON object"
    NO_DICT = "the sample is not a dict"
    NO_JSON = "the line is not valid JSON"
    TOO_DEEP = "the line is nested too deeply to be read"
    CUT_ROW = "the last row is incomplete: the run is still writing, or was killed"
    CUT_LINE = "the last line is incomplete: the run is still writing, or was killed"
    LONG_LINE = (
        "the line has more than {most:,} bytes and is skipped",
        "write fewer rollouts per line, or parquet",
    )
    REPEATED_KEY = "{which} occurs more than once in an object: its last value is used"
    FIELDS = "the number of fields in the row differs from the first line"
    QUOTE = (
        "a quote is not closed, so {lines:,} lines were read as one row",
        "close the quote",
    )
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
    NO_STEP = "the step is not a whole number of at least 0"
    REPEATED_STEP = "the rollouts of the previous step again: skipped"

    NO_REWARD = "no reward {name!r}; the numeric fields are {fields}"
    NO_COLUMN = "no column {path!r}; the columns are {columns}"
    MANY = (
        "more than {most} {which} contain numbers and may be rewards; the first {most} are read",
        "name the rewards (--rewards)",
    )
    MANY_TEXTS = (
        "more than {most:,} fields contain text",
        "if rewards are among them, name them (--rewards)",
    )
    TEXT_BEFORE = (
        "reward {name!r} is text before its first number, and counts as missing there",
        "to have the text read, name the rewards (--rewards)",
    )
    TEXTS = "{path!r} contains text, not numbers, and is not read as a reward"
    NOT_INFERRED = "no reward can be inferred: {why}; name the rewards (--rewards)"
    CONTRADICTED = (
        "{total!r} is not the sum of the rewards, and their weights cannot be found in it",
        "give the weights (--weights), or judge the total alone (--rewards)",
    )
    COPY = "{path!r} repeats {twin!r} in another unit: only {twin!r} is read as a reward"
    ZERO = "reward {name!r} counts as 0 where it is missing, as in {total!r}"
    NO_WEIGHTS = "some weights are not usable numbers: weight 1 is used for each reward"
    WEIGHTS_DIFFER = (
        "weights differ from an earlier rollout of the group: the earlier weights are used"
    )
    OTHER_WEIGHTS = (
        "{total!r} is not the sum that the weights of the first rollouts give",
        "give the weights of these rollouts (--weights)",
    )
    FILES_WITHOUT_WEIGHTS = (
        "other files of the step have no weights: weight 1 is used for each reward"
    )

    ALONE = "each group id has one rollout: equal prompts form the groups"
    SPLIT = (
        "the prompts of most group ids differ, as when ids restart in every batch: id and prompt "
        "together form a group"
    )
    SOME_WITHOUT = "no {path}, although other rollouts have one: put into one group"
    UNGROUPED = "neither a group nor a prompt, although other rollouts have one: put into one group"
    BY_PROMPT = "no group id, although other rollouts have one: grouped by prompt"

    TURN_ROWS = "an earlier turn of a rollout: the rows with one rollout id are read as its turns"
    MANY_TURNS = "the turns of the step would take too much memory, and are not read"
    NO_TURNS = "the column 'turns' does not contain turns, and is not read"
    TURNS_APART = (
        "reward {name!r} of the turns does not add up to the reward of the rollout: results by "
        "turn and results by rollout do not fit together"
    )

    def sentence(self, values: Values) -> str:
        """Return the sentence with its values and its remedy."""
        problem, *remedy = (self.value,) if isinstance(self.value, str) else self.value
        return ": ".join((problem.format_map(values), *remedy))


@dataclass(frozen=True, slots=True)
class Notice:
    """Stores one kind of problem that a reader found in a file."""

    problem: Problem
    file: Path
    line: int | None
    """First position of the problem: a line of a text file (from 1), or a row (from 0). None if the
    problem concerns the whole file."""
    values: Values
    """Values that the sentence names."""
    count: int = 0
    """Number of occurrences."""
    rows: int = 0
    """Number of rollouts that were skipped because of the problem. Rollouts that cannot be counted
    are not included."""

    @property
    def what(self) -> str:
        """Sentence about the problem."""
        return self.problem.sentence(self.values)

    @property
    def place(self) -> str:
        """Path of the file with the line, or with the row (from 0) if the file has no lines."""
        if self.line is None:
            return str(self.file)
        in_lines = kind_of(self.file) == "jsonl"
        return f"{self.file}:{self.line}" if in_lines else f"{self.file}, row {self.line}"
