"""The numbers of a recorded step, read without its texts: runs are long, and texts are large."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from gdpo.errors import DataError
from gdpo.rollouts import Rollout, read_rollouts
from gdpo.runs.directory import RunDirectory

_COLUMNS = ["step", "group_id", "rewards", "weights", "advantage", "num_tokens", "trained"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step trained on, as arrays; what was left out of the batch is not in it."""

    number: int
    file: Path
    names: tuple[str, ...]
    weights: tuple[float, ...]
    rewards: Float[np.ndarray, "prompt sample reward"]
    """NaN: does not apply, or there is no such rollout."""
    advantages: Float[np.ndarray, "prompt sample"]
    """Those that were trained with; 0 where there is no such rollout."""
    token_counts: Int[np.ndarray, "prompt sample"]
    rows: Int[np.ndarray, "prompt sample"]
    """Of the file; -1 where there is no such rollout."""

    @property
    def rollouts(self) -> int:
        """How many there are."""
        return int(np.sum(self.rows >= 0))


def step_files(run: Path) -> list[Path]:
    """The recorded steps of a run, in order."""
    return sorted(RunDirectory(run).rollouts.glob("step_*.parquet"))


def evenly(files: Sequence[Path], most: int) -> Sequence[Path]:
    """All of them, or `most`, with the first and the last."""
    if len(files) <= most:
        return files
    return [files[i] for i in np.linspace(0, len(files) - 1, most).round().astype(int)]


def read_step(file: Path) -> Step | None:
    """One step; None if nothing of it was trained on.

    Raises:
        DataError: The file is no rollout record.
    """
    try:
        with pq.ParquetFile(file) as parquet:
            table: Any = parquet.read(columns=_COLUMNS, use_threads=False).combine_chunks()
        columns = {name: table.column(name).combine_chunks() for name in _COLUMNS}
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{file} is no rollout record of gdpo: {error}") from error
    kept = np.flatnonzero(_array(columns["trained"]))
    if not len(kept):
        return None
    names = tuple(field.name for field in columns["rewards"].type)
    prompt, sample = _places(_array(columns["group_id"])[kept])

    def placed(values: Any, missing: Any) -> Any:
        shape = (prompt.max() + 1, sample.max() + 1, *values.shape[1:])
        table = np.full(shape, missing, dtype=values.dtype)
        table[prompt, sample] = values
        return table

    return Step(
        number=int(columns["step"][0].as_py()),
        file=file,
        names=names,
        weights=tuple(float(columns["weights"][0].as_py()[name]) for name in names),
        rewards=placed(_struct(columns["rewards"])[kept], np.nan),
        advantages=placed(_array(columns["advantage"])[kept].astype(np.float64), 0.0),
        token_counts=placed(_array(columns["num_tokens"])[kept], 0),
        rows=placed(kept, -1),
    )


def read_texts(step: Step, rows: Sequence[int]) -> list[Rollout]:
    """Some rollouts of a step with everything that they have."""
    every = read_rollouts(step.file)
    return [every[row] for row in rows]


def _array(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _struct(column: Any) -> Any:
    fields = [_array(column.field(i)).astype(np.float64) for i in range(column.type.num_fields)]
    return np.stack(fields, axis=-1)


def _places(group_ids: Any) -> tuple[Any, Any]:
    """For each rollout the number of its group, and its number in the group."""
    _, groups, counts = np.unique(group_ids, return_inverse=True, return_counts=True)
    order = np.argsort(groups, kind="stable")
    samples = np.empty_like(groups)
    samples[order] = np.concatenate([np.arange(count) for count in counts])
    return groups, samples
