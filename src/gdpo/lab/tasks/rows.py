"""Reads rows from a local file, or from a dataset on the Hugging Face Hub."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from gdpo._naming import did_you_mean, nearest
from gdpo._text import describe
from gdpo.errors import ConfigError, DataError, MissingExtraError
from gdpo.rewards.task import Problem, Row, Task

_ROLES = ("system", "user", "assistant")


def text_at(row: Row, *path: str) -> str:
    """Return the text in a column, or at a key inside it.

    Raises:
        DataError: If a key is missing, or the value is not text or is only whitespace.
    """
    place, value = ".".join(path), value_at(row, *path)
    if not isinstance(value, str):
        raise DataError(f"column {place!r} must contain text, got {describe(value)}")
    if not value.strip():
        raise DataError(f"column {place!r} is empty. It must contain text")
    return value


def value_at(row: Row, *path: str) -> Any:
    """Return the value in a column or at a key inside it, or None if the last key is missing."""
    value: Any = row
    for depth, key in enumerate(path):
        value = mapping_of(value, ".".join(path[:depth])).get(key)
    return value


def texts_in(value: Any, column: str) -> list[str]:
    """Return a list of strings unchanged, or raise a DataError with the column's name."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"column {column!r} must contain a list of strings, got {describe(value)}")
    return value


def json_in(text: str, column: str) -> Any:
    """Parse the JSON text in a column, or raise a DataError with the column's name."""
    return _parsed(text, f"column {column!r}")


def messages_at(row: Row, column: str) -> list[dict[str, str]]:
    """Return the chat messages in a column.

    Raises:
        DataError: If the column is not a list of messages with a role and content.
    """
    value = row.get(column)
    if not isinstance(value, list) or not value:
        raise DataError(
            f"column {column!r} must contain a list of messages with role and content, "
            f"got {describe(value)}"
        )
    return [_message(item, f"{column}[{i}]") for i, item in enumerate(value)]


def _message(value: Any, place: str) -> dict[str, str]:
    fields = mapping_of(value, place)
    role, content = fields.get("role"), fields.get("content")
    if role not in _ROLES:
        raise DataError(
            f"column '{place}.role' must be one of {', '.join(_ROLES)}, got {describe(role)}"
        )
    if not isinstance(content, str):
        raise DataError(f"column '{place}.content' must contain text, got {describe(content)}")
    return {"role": role, "content": content}


def mapping_of(value: Any, place: str) -> Row:
    """Return an object unchanged, or raise a DataError with the column's name."""
    if not isinstance(value, Mapping):
        raise DataError(f"column {place!r} must contain an object, got {describe(value)}")
    return value


_TIMEOUT_S = 10

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def _why_unreachable(name: str) -> Exception | None:
    """Return the error that prevents a connection to the Hub, or None if the Hub responds.

    With an invalid name of the dataset, the Hub is not asked.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if not _NAME.fullmatch(name):
        return None
    try:
        url = hf_hub_url(name, "README.md", repo_type="dataset")
        get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    except HfHubHTTPError:  # the Hub responded: the file is missing or needs a login
        return None
    except Exception as error:  # noqa: BLE001 (network libraries raise many kinds of errors)
        return error
    return None


@contextmanager
def from_cache_alone() -> Generator[None]:
    """Make the Hugging Face libraries use only their local cache, without network access."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


_Placed: TypeAlias = tuple[str, dict[str, Any]]
"""Location of a row for error messages (such as `rows.jsonl, line 3`), and the row."""

_FILE_ENDINGS = (".csv", ".tsv", ".txt", ".arrow", ".zip", ".gz", ".bz2", ".xz", ".zst", ".yaml")
"""Other file extensions that mark a source as a file, in addition to the keys of `_READERS`."""

_NAMED = 5
"""Maximum number of files or rows that a message lists."""


def load_rows(
    source: str | Path, *, subset: str | None = None, split: str = "train", limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a file or of a dataset on the Hub.

    Args:
        source: A file that ends in .jsonl, .jsonl.gz, .json, .json.gz or .parquet, or the name of a
            dataset on the Hub, such as `openai/gsm8k`. A name that exists as a file or looks like
            one is a file.
        subset: Configuration of the Hub dataset, such as `main`. Ignored for a file.
        split: Split of the Hub dataset. Ignored for a file.
        limit: Read only the first N rows. None: read all rows.

    Raises:
        ConfigError: If `limit` is below 1.
        DataError: If the source does not exist, cannot be read or has no rows.
        MissingExtraError: If the source is a dataset on the Hub and `datasets` is not installed.
    """
    return [row for _, row in _placed_rows(source, subset=subset, split=split, limit=limit)]


def load_problems(
    task: Task,
    source: str | Path,
    *,
    subset: str | None = None,
    split: str = "train",
    limit: int | None = None,
    keep: Callable[[Row], bool] | None = None,
    weights_column: str | None = None,
) -> list[Problem]:
    """Use a task to read the rows of a file or of a dataset on the Hub.

    Args:
        task: The task that reads the rows.
        source: As for `load_rows`.
        subset: As for `load_rows`.
        split: As for `load_rows`.
        limit: Read only the first N rows. None: read all rows.
        keep: Returns True for the rows to use. Other rows do not count towards `limit`. None: use
            all rows.
        weights_column: Column with each row's weights, which become `Problem.weights`. None: no
            weights.

    Raises:
        ConfigError: If `limit` is below 1.
        DataError: If the rows cannot be loaded, lack a column, or contain an invalid value. The
            message counts the unusable rows and lists the first few.
        MissingExtraError: As for `load_rows`.
    """
    rows = _placed_rows(source, subset=subset, split=split, limit=limit, keep=keep)
    problems: list[Problem] = []
    mistakes: list[DataError] = []
    for place, row in rows:
        try:
            problems.append(_problem(task, place, row, weights_column))
        except DataError as error:
            mistakes.append(error)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        named = "".join(f"\n- {mistake}" for mistake in mistakes[:_NAMED])
        more = f"\n- and {len(mistakes) - _NAMED:,} more" if len(mistakes) > _NAMED else ""
        raise DataError(
            f"{source}: {len(mistakes):,} of {len(rows):,} rows cannot be used:{named}{more}"
        ) from mistakes[0]
    return problems


def _problem(task: Task, place: str, row: Row, weights_column: str | None) -> Problem:
    if not any(all(column in row for column in columns) for columns in task.columns):
        raise DataError(f"{place}: {_lacking(task, row)}")
    try:
        problem = task.read_row(row)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    try:  # JSON can contain half of a character, which can be neither tokenized nor written
        json.dumps([problem.prompt, dict(problem.reference)], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(
            f"{place}: a text contains {half!r}, which is half a character (a lone surrogate). "
            "Write the whole character in UTF-8, or remove it"
        ) from error
    if weights_column is None:
        return replace(problem, weights=None)
    if weights_column not in row:
        raise DataError(
            f"{place}: weights_column is {weights_column!r}, but the row has no such column: "
            f"{did_you_mean(weights_column, row)}. Correct the name, or add the column (null keeps "
            "the configured weights)"
        )
    return replace(problem, weights=row[weights_column])


def _lacking(task: Task, row: Row) -> str:
    """Describe which columns a row lacks, compared with the best-matching accepted set."""
    closest = max(task.columns, key=lambda columns: sum(c in row for c in columns) / len(columns))
    missing = [column for column in closest if column not in row]
    allowed = " or ".join(f"({', '.join(columns)})" for columns in task.columns)
    hints = "".join(
        f"; rename {near!r} to {column!r} if they mean the same"
        for column in missing
        if (near := nearest(column, row))
    )
    return (
        f"task {task.name!r} needs column {', '.join(map(repr, missing))}, which is missing. The "
        f"row has: {', '.join(row) or 'no columns'}. Allowed: {allowed}{hints}"
    )


def _placed_rows(
    source: str | Path,
    *,
    subset: str | None,
    split: str,
    limit: int | None,
    keep: Callable[[Row], bool] | None = None,
) -> list[_Placed]:
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}. Omit it to read all rows")
    if _is_file(source):
        rows = _file_rows(Path(source).expanduser())
    else:
        rows = _numbered(f"dataset {source!r}", _hub_rows(str(source), subset, split))
    found: list[_Placed] = []
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(
                f"{place} must be an object that contains the columns, got {describe(row)}"
            )
        if keep is None or keep(row):
            found.append((place, row))
        if len(found) == limit:
            break
    if not found:
        raise DataError(f"{source} has no rows" + (" of the requested kind" if keep else ""))
    return found


def _is_file(source: str | Path) -> bool:
    if isinstance(source, Path):
        return True
    path = Path(source).expanduser()
    endings = (*_READERS, *_FILE_ENDINGS)
    like_a_path = source.startswith(("/", ".", "~")) or "\\" in source or source.count("/") > 1
    return path.exists() or source.lower().endswith(endings) or like_a_path


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    read = next((r for ending, r in _READERS.items() if path.name.lower().endswith(ending)), None)
    if not path.exists():
        if not path.parent.is_dir():
            what = f"the folder {path.parent} does not exist either"
        else:
            names = sorted(p.name for p in path.parent.iterdir() if _ends_readably(p))
            near = get_close_matches(path.name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
            shown = ", ".join(near) or "no data file"
            what = f"the folder {path.parent.absolute()} contains {shown}"
        raise DataError(f"file {path} does not exist; {what}")
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if _ends_readably(p))[:_NAMED]
        none = f"{path} is a folder without a file that ends in {', '.join(_READERS)}"
        some = f"{path} is a folder. Choose one file in it: {', '.join(inside)}"
        raise DataError(some if inside else none)
    if read is None:
        raise DataError(
            f"{path}: the name of a data file must end in {', '.join(_READERS)}; "
            f"got {path.suffix or 'no extension'!r}"
        )
    try:
        yield from read(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not valid UTF-8: {error}. Save it as UTF-8") from error


def _ends_readably(path: Path) -> bool:
    return path.name.lower().endswith(tuple(_READERS))


def _open_text(path: Path) -> TextIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _parsed(text: str, place: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not valid JSON: {error}{hint}") from error


def _numbered(name: str, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{name}, row {number}", value) for number, value in enumerate(values, 1))


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with _open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _parsed(line, place)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with _open_text(path) as file:
        text = file.read()
    if not text.strip():
        return
    hint = ". If the file has one object per line, rename it to end in .jsonl"
    value = _parsed(text, str(path), hint)
    if not isinstance(value, list):
        raise DataError(f"{path} must contain a list of rows, got {describe(value)}{hint}")
    yield from _numbered(str(path), value)


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=256)
            yield from _numbered(str(path), (row for batch in batches for row in batch.to_pylist()))
    except ArrowException as error:
        raise DataError(f"{path} cannot be read as a parquet file: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _jsonl_rows,
    ".jsonl.gz": _jsonl_rows,
    ".json": _json_rows,
    ".json.gz": _json_rows,
    ".parquet": _parquet_rows,
}


def _hub_rows(name: str, subset: str | None, split: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "train", f"to load {name!r} from the Hub") from error
    unreachable = _why_unreachable(name)
    try:
        with from_cache_alone() if unreachable else nullcontext():
            return datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # four libraries raise many kinds of errors here
        why = unreachable or error
        raise DataError(
            f"dataset {name!r} (subset {subset or 'default'}, split {split!r}) cannot be loaded "
            f"from the Hub: {type(why).__name__}: {why}. Check the name, subset and split, and the "
            f"connection, or use a local file that ends in {', '.join(_READERS)}"
        ) from error
