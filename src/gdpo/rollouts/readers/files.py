"""Finds rollout files, and infers run, step and evaluation from their paths."""

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo.errors import DataError

_KINDS = {
    ".parquet": "parquet",
    ".arrow": "parquet",
    ".feather": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".pt": "pt",
    ".pkl": "pkl",
}
"""Kinds by extension. Files of one kind have the same formats: the content of a file shows its
delimiter, whether its objects are in a list, and whether its columns are Arrow or parquet."""
_TABLE = ".table.json"
ENDINGS = (*(ending for ending, kind in _KINDS.items() if kind != "pkl"), _TABLE)
"""Extensions of files that may contain rollouts. Each extension may be followed by `.gz`."""
KINDS_READ = frozenset({"jsonl", "pt", "csv", "parquet", "table"})
_PACKED = (".zst", ".bz2", ".xz", ".lz4", ".zip", ".7z")
_STEP = re.compile(r"(?:step|iteration|iter)[_-]?0*(\d{1,18})")
_EVALUATION = re.compile(r"(?:^|[_\-.])(?:evals?|val|valid|validation|test)(?:$|[_\-.\d])")
_CHECKPOINT = re.compile(r"(?:checkpoints?|global_step_?\d+/(?:actor|critic))(?:[-_/]|$)")
_RECORD = re.compile(r"step_\d{6,}\.parquet")
_EARLIER = re.compile(r"earlier-\d+")
"""Name pattern of folders with the records of earlier runs, next to the record of a run."""
_DROPPED = re.compile(r"dropped-\d{4}-\d\d-\d\dT[-\d]+")
"""Name pattern of folders in a gdpo run with steps that were repeated after the run was resumed."""
_OF_A_RUN = frozenset({"recipe.yaml", "environment.json"})
_OF_A_STEP = re.compile(r"completions_\d+\.parquet")
"""Name pattern of TRL's files, each of which contains one step."""
_SET_ASIDE = "set aside when this run began or was resumed: pass the folder to read it"
_PLACES = frozenset({"train", "all", "effective", "rollouts", "completions", "trajectories"})
_PLACE_OF_TABLES = ("files", "media", "table")
_CHARTS = ("gdpo",)
_TABLE_NAME = re.compile(r"(.+)_(\d{1,18})_([0-9a-f]{20})\.table(?:\.json)?")
"""Name of a table: its key, W&B's step, and the digest of its content."""
_WORDS = frozenset(
    {"", "global", "eval", "evals", "val", "valid", "validation", "test", "train"}
    | {"data", "dump", "dumped", "dumps", "rollout", "rollouts", "samples"}
)
"""Words in the names of folders for steps and evaluations. Other folders are runs."""
_NO_ROLLOUTS = frozenset(
    {"metrics.jsonl", "history.jsonl", "aggregated_results.jsonl", "checkpoints.jsonl"}
    | {"optimizer.pt", "scheduler.pt", "config.jsonl", "logging.jsonl"}
)
_SHARDS = "state.json"
"""File in which `datasets.save_to_disk` lists the files with the rows of a folder, in order."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_ROWS_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*\{|\{\s*\"[^\"\\]{1,64}\"\s*:\s*\[\s*\{)")
"""Start of a JSON file that contains rows: a list of objects, or an object that begins with one."""


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """Stores what the path of a file reveals about its rollouts."""

    path: Path
    kind: str
    run: str
    step: int | None
    """Step number in the name of the file or its folder. None if there is none."""
    evaluation: bool


def find_files(paths: Sequence[Path], left_out: dict[Path, str]) -> list[RolloutFile]:
    """Return the files to read, each once, sorted by run and by the numbers in their names.

    If there are training files, evaluation files are left out unless their folder is one of the
    paths. `left_out` gets the files that are not read, with the reason.

    Raises:
        DataError: If a path does not exist, or is neither a folder nor a regular file.
    """
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [path.absolute() for path in paths]
    root = _root(paths)
    found: dict[Path, RolloutFile] = {}
    for path in paths:
        is_folder = path.is_dir()
        for name in _walk(path, left_out) if is_folder else [path]:
            file = _found(name, path if is_folder else path.parent, root)
            if not is_folder or _is_read(file, left_out):
                found.setdefault(file.path, file)
    for path in paths:
        left_out.pop(path, None)  # the user named this file, so it is read
    evaluations = [file.path for file in found.values() if file.evaluation]
    if len(evaluations) < len(found):
        why = "rollouts of an evaluation: pass the folder to read them"
        left_out |= dict.fromkeys(evaluations, why)
    kept = sorted(
        (file for file in found.values() if file.path not in left_out),
        key=lambda file: (file.run, _natural(file.path.relative_to(root))),
    )
    return _without_repeated_tables(kept, left_out)


def _without_repeated_tables(
    files: Sequence[RolloutFile], left_out: dict[Path, str]
) -> list[RolloutFile]:
    tables: dict[tuple[Path, str, str], RolloutFile] = {}
    for file in files:
        match = _TABLE_NAME.fullmatch(_unpacked(file.path.name))
        key = (file.path.parent, match[1], match[3]) if match else (file.path, "", "")
        if (first := tables.setdefault(key, file)) is not file:
            left_out[file.path] = f"the same table as {first.path.name}"
    return list(tables.values())


def without_twins(
    files: Sequence[RolloutFile], recorded: Callable[[Path], bool], left_out: dict[Path, str]
) -> list[RolloutFile]:
    """Return the files, except TRL's files for steps that gdpo recorded too.

    `recorded` returns whether a file is a complete gdpo record, and is called only for steps that
    exist in two files.
    """
    records = {_step_of(file): file.path for file in files if _RECORD.fullmatch(file.path.name)}
    for file in files:
        twin = records.get(_step_of(file)) if _OF_A_STEP.fullmatch(file.path.name) else None
        if twin is not None and recorded(twin):
            left_out[file.path] = f"gdpo recorded the same step in {twin.parent}"
    return [file for file in files if file.path not in left_out]


def _step_of(file: RolloutFile) -> tuple[str, int | None, bool]:
    return file.run, file.step, any(map(_of_evaluation, file.path.parts[:-1]))


def kind_of(path: Path) -> str:
    """Return the kind of a file by its name, or an empty string if it cannot contain rollouts."""
    name = _unpacked(path.name).lower()
    return "table" if name.endswith(_TABLE) else _KINDS.get(Path(name).suffix, "")


def _unpacked(name: str) -> str:
    return name[:-3] if name.lower().endswith(".gz") else name


def _walk(path: Path, left_out: dict[Path, str]) -> Iterator[Path]:
    def blocked(error: OSError) -> None:
        left_out[Path(str(error.filename))] = f"the folder cannot be opened: {error.strerror}"

    root = path.resolve()
    for folder, folders, names in os.walk(path, onerror=blocked):
        # Some folders no longer belong to the run whose folder contains them.
        recorded, a_run = any(map(_RECORD.fullmatch, names)), _OF_A_RUN.issubset(names)
        aside = [n for n in folders if recorded and _EARLIER.fullmatch(n)]
        aside += [n for n in folders if a_run and _DROPPED.fullmatch(n)]
        left_out |= {Path(folder, name): _SET_ASIDE for name in aside}
        folders[:] = sorted(n for n in folders if n not in aside and not _CHECKPOINT.match(n))
        for linked in (Path(folder, name) for name in folders):
            if linked.is_symlink() and not linked.resolve().is_relative_to(root):
                left_out[linked] = "a link to a folder elsewhere: to read it, pass that folder too"
        for file in _in_folder(Path(folder), names, left_out):
            why = "" if file.name.startswith(".") else _why_not(file)
            if why is None:
                yield file
            elif why:
                left_out[file] = why


def _in_folder(folder: Path, names: Sequence[str], left_out: dict[Path, str]) -> list[Path]:
    """Return the files of a folder, or those that `datasets.save_to_disk` listed."""
    all_files = [folder / name for name in sorted(names)]
    if _SHARDS not in names:
        return all_files
    try:
        state: Any = json.loads((folder / _SHARDS).read_bytes())
        names = [str(each["filename"]) for each in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return all_files
    files = [folder / Path(name).name for name in names]
    for file in files:
        if not file.is_file():
            left_out[file] = f"it is missing, although {_SHARDS} lists it: copy the whole folder"
    return [file for file in files if file not in left_out]


def may_have_rows(file: Path) -> bool:
    """Return whether a file has another extension than `.json`, or begins like a list of rows.

    Folders of runs contain many other JSON files.
    """
    if Path(_unpacked(file.name.lower())).suffix != ".json" or kind_of(file) == "table":
        return True
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return _ROWS_BEGIN.match(stream.read(4096)) is not None
    except (OSError, EOFError, zlib.error):
        return False


def _why_not(file: Path) -> str | None:
    """Return why a file is not read, None if it is read, or "" if it cannot contain rollouts."""
    if file.suffix.lower() in _PACKED and kind_of(file.with_suffix("")):
        return "compressed, but not with gzip: decompress it first"
    if not kind_of(file):
        return ""
    try:
        if file.is_file():
            return None if may_have_rows(file) else ""
        return "a broken link" if file.is_symlink() else "not a regular file"
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"


def _root(paths: Sequence[Path]) -> Path:
    """Return the folder of all paths, to which run names are relative."""
    for path in paths:
        try:
            why = None if path.exists() else ""
        except OSError as error:  # such as a name that is too long
            why = f" ({error.strerror})"
        if why is not None:
            raise DataError(f"{path}: no such file or folder{why}. Check the path")
        if not path.is_dir() and not path.is_file():  # opening a FIFO would wait for a writer
            raise DataError(f"{path} is neither a folder nor a regular file. Write it to a file")
    folders = [path if path.is_dir() else path.parent for path in paths]
    return folders[0] if len(set(folders)) == 1 else Path(os.path.commonpath(folders))


def _found(file: Path, given: Path, root: Path) -> RolloutFile:
    inner = file.relative_to(given).parts[:-1]
    kind, name = kind_of(file), _unpacked(file.name)
    # A name may contain dots: qwen2.5-7b_step_3.
    stem = _SHARD.sub("", Path(name).stem if kind else name)
    folders = list(file.relative_to(root).parts[:-1])
    if kind == "table" and tuple(folders[-3:]) == _PLACE_OF_TABLES:
        folders = folders[:-3]
    folders = [part for part in folders if part not in _PLACES]
    run = [part for part in folders if not _of_steps(part) and not _of_evaluation(part)]
    return RolloutFile(
        path=file,
        kind=kind,
        run="/".join(run),
        step=_step(stem, inner or given.parts[-1:]),
        evaluation=any(map(_of_evaluation, inner)) or _EVALUATION.search(stem) is not None,
    )


def _is_plain(folder: str) -> bool:
    return set(re.split(r"[_\-.]", _STEP.sub("", folder))) <= _WORDS


def _of_steps(folder: str) -> bool:
    return _STEP.search(folder) is not None and _is_plain(folder)


def _of_evaluation(folder: str) -> bool:
    return _EVALUATION.search(folder) is not None and _is_plain(folder)


def _step(stem: str, folders: tuple[str, ...]) -> int | None:
    if match := _TABLE_NAME.fullmatch(stem):
        return int(match[2])
    for name in (stem, *filter(_of_steps, reversed(folders))):
        if match := _STEP.search(name):
            return int(match[1])
    last = re.search(r"(\d{1,18})$", stem)
    return int(last[1]) if last else None


def _is_read(file: RolloutFile, left_out: dict[Path, str]) -> bool:
    parts = file.path.parts
    if file.path.name in _NO_ROLLOUTS or (file.kind == "table" and parts[-2:-1] == _CHARTS):
        return False
    if file.kind == "pkl":
        left_out[file.path] = "loading a pickle can run arbitrary code: convert it to JSONL"
    elif "effective" in parts:
        twin = Path(*["all" if part == "effective" else part for part in parts])
        if twin.is_file():
            left_out[file.path] = "the same rollouts are in the folder 'all'"
    return file.path not in left_out


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts]
