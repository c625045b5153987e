"""Reads files with a row of metrics per step: JSON, CSV, parquet, Arrow, and console output.

The fields of a file show whether its rows are metrics: rollout files have the same extensions.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from gdpo._text import command
from gdpo.errors import DataError
from gdpo.rollouts.readers.files import kind_of
from gdpo.rollouts.readers.metrics import (
    OF_REWARD,
    evidence,
    flattened,
    reward_in,
    run_and_key,
    shown_by,
)
from gdpo.rollouts.readers.names import GUESSES, Kind, kinds_in
from gdpo.rollouts.readers.records import Record, numbers_by_path
from gdpo.rollouts.readers.sources import rows_of, unreadable
from gdpo.rollouts.readers.text import opened_text

CONSOLE = "console output"
BY_KIND = {"jsonl": "JSON", "csv": "CSV", "parquet": "parquet"}
"""Sources of metrics whose files may also contain rollouts, by the kind of the file."""
METRICS = "metrics"
"""Format with which the rows of a file are read as metrics."""
_STEPS = (
    *("train/global_step", "training/global_step", "step", "global_step", "_step", "Step"),
    *("trainer/global_step", *GUESSES["step"], "global_step/max_steps"),
)
"""Keys of the step, from the number that counts optimizer steps to the one that counts calls. The
last one is that of ms-swift, whose value is text such as 5/100."""
_RUNS = ("run_id", "run_name", "run")
"""Fields that name the run of a row, in files with rows of several runs."""
_TRACKIO = frozenset({"run_name", "timestamp", "step"})
_LOOKED_AT = 256
"""Number of rows whose fields decide whether the rows are metrics."""
_REPEATED = 4
"""Number of rows that repeat a step, above which the rows may be rollouts."""
_LONGEST, _PRINTED = 2**16, 2**26
"""Largest size of a row of console output in characters, and of the part that is read in bytes."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WRAP = re.compile(
    r"[ \t]{0,9}[\r\n]{1,2}[ \t]{0,9}(?!step:|[A-Z]{4,} |\d\d:\d\d:)"
    r"(?=[^\s]{0,200}\s{0,3}-\s\S{1,200}:)"
)
"""A line end inside a row of verl: after it, the next ` - KEY:` follows, and no other row."""
_NUMBER = r"(?:[\w.]{1,20}\()?(?P<number>[-+]?[\w.]{1,30}(?:[-+]\d+)?)\)?"
_SEPARATED = rf"\s{{0,3}}-\s{{0,3}}[^\s:]{{1,200}}: ?{_NUMBER}".replace("?P<number>", "?:")
_ROW = re.compile(
    rf"\{{[^{{}}]{{1,{_LONGEST}}}\}}|(?<![A-Za-z/_])step: ?\d{{1,18}}(?:{_SEPARATED})+"
)
"""A dict, or verl's line of a step: `step:1 - KEY:NUMBER - KEY:NUMBER`."""
_ITEM = re.compile(rf"(?:^|\s*-\s*)(?P<key>[^\s:]+): ?{_NUMBER}")
_PAIR = re.compile(
    r"""(['"])(?P<key>(?:(?!\1).)+)\1\s*:\s*(?:[\w.]+\()?(['"]?)"""
    r"""(?P<number>[^'",(){}\[\]]+)\3\)?\s*(?=[,}])"""
)
"""A key and a number, which may be printed as text, or with the name of its type."""
_KEY = re.compile(r"""(['"])([^'"\\]{1,200})\1\s*:""")


@dataclass(slots=True)
class Log:
    """Stores the metrics of one run, as one source recorded them."""

    path: Path
    source: str
    run: str = ""
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    """Values by key, for each step."""
    problem: str = ""
    """Why the file was not read to its end. Empty if it was."""
    numbered: bool = False
    """Whether the rows contain no step, and were numbered in order."""
    part: bool = False
    """Whether other files of the folder may contain more metrics of the same run."""
    without_step: list[dict[str, float]] = field(default_factory=list)
    """The rows before the first one with a step."""
    repeated: int = 0
    """Number of rows with rewards whose step already has rewards."""

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step. A later number replaces an earlier one of the same key."""
        known = self.rows.setdefault(step, {})
        again = (key for key in numbers.keys() & known.keys() if numbers[key] != known[key])
        self.repeated += any(map(field_of, again))
        known.update(numbers)

    def add_row(self, row: Record) -> None:
        """Add a row that contains its step. A row without a step is left out."""
        by_path = numbers_by_path(row).items()
        numbers = {k: n for k, v in by_path if (n := number_in(str(v))) is not None}
        if (step := _step(row)) is not None:
            self.add(step, numbers)
        elif not self.rows and numbers:
            self.without_step.append(numbers)

    def number_rows(self) -> None:
        """If no row has a step, number the rows with rewards in order."""
        if not self.rows:
            rewarded = [row for row in self.without_step if any(map(field_of, row))]
            self.rows = dict(enumerate(rewarded or self.without_step, 1))
            self.numbered = bool(self.rows)


class MetricsOrRolloutsError(DataError):
    """Raised if it is unclear whether the rows of a file are metrics or rollouts."""

    def __init__(self, path: Path, why: str, *, of_rewards: bool) -> None:
        metrics, rollouts = (
            command("analyze", [path], {"--columns": f"format={form}"})
            # Without a prompt and a group id, the number of rollouts per prompt must be given.
            for form in (METRICS, "columns,group_size=2")
        )
        which = f"Say which they are (for rollouts, with your group size):\n{metrics}"
        if not of_rewards:
            which = (
                "As metrics, they show nothing about single rewards. If they are rollouts, run, "
                "with your group size:"
            )
        super().__init__(f"{path}: {why}. {which}\n{rollouts}")


def read_rows(path: Path, *, forced: bool) -> list[Log]:
    """Return the logs in a file, none if its rows are rollouts.

    `forced`: the user said that the file contains metrics.
    """
    kind, logs, problem = kind_of(path), dict[str, Log](), ""
    found = shown_by(path, most=_LOOKED_AT)
    if kind and ((found.rollouts and found.certain) or not (found.metrics or forced)):
        return []
    try:
        for row in map(flattened, rows_of(path)) if kind else _console(path):
            _add(row, logs, path, kind)
    except unreadable() as error:
        if not kind:
            raise
        problem = str(error)
    for log in logs.values():
        log.problem = problem
        log.number_rows()
    repeated = sum(log.repeated for log in logs.values())
    again = repeated > max(_REPEATED, sum(len(log.rows) for log in logs.values()))
    if kind and not forced and (not found.certain or (again and not found.apart)):
        why = found.sentence
        if found.certain:
            why = f"{repeated:,} rows repeat the step of another row with other rewards"
            why = f"the rows may be metrics, or rollouts: {why}"
        rows = (row for log in logs.values() for row in log.rows.values())
        raise MetricsOrRolloutsError(path, why, of_rewards=any(map(fields_of, rows)))
    return [log for log in logs.values() if log.rows]


def _add(row: Record, logs: dict[str, Log], path: Path, kind: str) -> None:
    """Add a row to the log of its run, or each run's columns to its log."""
    of_row = next((str(row[name]) for name in _RUNS if row.get(name) is not None), "")
    by_run: dict[str, dict[str, Any]] = {"": {}}
    for name, value in row.items():
        run, key = run_and_key(name)
        if key and value is not None:
            by_run.setdefault(run, {})[key] = value
    common = by_run.pop("")
    source = BY_KIND.get(kind, CONSOLE)
    if "_step" in row or any(run_and_key(name)[0] for name in row):
        source = "W&B"
    elif row.keys() >= _TRACKIO:
        source = "trackio"
    elif path.name == "metrics.jsonl":
        source = path.name
    for run, values in by_run.items() or [(of_row, {})]:
        name = run if by_run else str(row.get("run_name", of_row))
        log = logs.setdefault(run, Log(path, source, name, part=bool(by_run)))
        log.add_row({**common, **values})


@cache
def _are_metrics(fields: frozenset[tuple[str, Kind]]) -> bool:
    return bool(evidence(dict(fields)).metrics)


def _console(path: Path) -> Iterator[Record]:
    """Yield the metrics that a program printed: dicts in Python or JSON, or verl's lines.

    A terminal may have coloured or wrapped them. Only the first 64 MiB are read.
    """
    with opened_text(path) as stream:
        printed = _COLOUR.sub("", stream.read(_PRINTED).decode(errors="replace"))
    for match in _ROW.finditer(_WRAP.sub("", printed)):
        text = re.sub(r"\s*[\r\n]+\s*", "", match[0])
        pairs = list((_PAIR if text.startswith("{") else _ITEM).finditer(text))
        numbers = {pair["key"]: number_in(pair["number"]) for pair in pairs}
        row: dict[str, Any] = dict.fromkeys((match[2] for match in _KEY.finditer(text)), "")
        row |= {key: value for key, value in numbers.items() if value is not None}
        if _are_metrics(frozenset(kinds_in(row).items())):
            yield row


def number_in(text: str) -> float | None:
    """Return the finite number that a text contains, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _step(row: Record) -> int | None:
    value = next((row[key] for key in _STEPS if row.get(key) is not None), "")
    step = number_in(str(value).partition("/")[0])
    return int(step) if step is not None and abs(step) < 2**53 else None


_EVALUATION = re.compile(r"(?:eval|val|test)[^/]*/|eval_|val_")
_MEAN = re.compile(r"(?:(mean|avg|average)[_\W])?(.+?)(?:[_\W](mean|avg|average|std))?", re.DOTALL)
"""A name with a statistic before or after it."""


@lru_cache(maxsize=4096)
def field_of(key: str) -> tuple[int, str, str] | None:
    """Return the rank of a key's form, its reward, and the number that it stands for, or None.

    The forms, best first: `rewards/NAME/mean`, `rewards/NAME` (as in TRL up to 0.15), and names
    without a slash, such as `reward_NAME`, `NAME_reward` or `NAME_mean`.
    """
    if _EVALUATION.match(key):
        return None
    key = re.sub(r"^(?:train|training)[/_]|^critic/", "", key)
    if (match := re.fullmatch(OF_REWARD, key, re.DOTALL)) is not None:
        return 0, match[1], match[2]
    match = _MEAN.fullmatch(key)
    before, name, after = match.groups() if match else (None, key, None)
    reward = reward_in(name, of_mean=bool(before or after))
    if reward is None:
        return None
    return 1 + ("/" not in key), reward, "std" if after == "std" else "mean"


def fields_of(keys: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the rewards and numbers of a log's keys, by the best form that any of them has."""
    found = {key: of for key in keys if (of := field_of(key)) is not None}
    best = min((rank for rank, _, _ in found.values()), default=0)
    return {key: (name, number) for key, (rank, name, number) in found.items() if rank == best}
