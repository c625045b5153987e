"""Runs that gdpo trained, from their rollout records: with what they trained is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gdpo.analysis.replay import Replay, Replayed, TrainedWith
from gdpo.analysis.run import RunAnalysis
from gdpo.analysis.sample import KEPT, Sample, SampledGroup
from gdpo.analysis.steps import Bounds, RangesSoFar, analyze_step, batch_of
from gdpo.errors import DataError
from gdpo.rollouts.readers import RolloutReading, read_rollout_files

_STEPS = 200
"""Of each run, at most; of longer runs so many are looked at, evenly."""


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """One run."""

    name: str
    """Different for each."""
    rollouts: Path
    """The folder of its records, which need not be there."""
    estimator: str
    """What made its advantages."""


@dataclass(slots=True)
class TrainedAnalysis:
    """What the rewards did in some runs, and what the estimators of all would have made of them."""

    estimators: Mapping[str, TrainedWith]
    """By the name to show."""
    recorded_steps: int = 0
    """All, looked at or not."""
    runs: dict[str, RunAnalysis] = field(default_factory=dict[str, RunAnalysis])
    """By name, those that have rollouts."""
    replayed: list[Replayed] = field(default_factory=list[Replayed])
    """Every estimator beside the first."""
    off_record: dict[str, float] = field(default_factory=dict[str, float])
    """By estimator the largest difference from what the runs recorded that were trained with it;
    users' own are not called, and have none."""
    sample: list[SampledGroup] = field(default_factory=list[SampledGroup])

    @property
    def steps(self) -> int:
        """How many were looked at."""
        return sum(len(run.steps) for run in self.runs.values())

    @property
    def rollouts(self) -> int:
        """How many were looked at."""
        return sum(run.rollouts for run in self.runs.values())


def analyze_trained(
    runs: Sequence[TrainedRun],
    estimators: Mapping[str, TrainedWith],
    *,
    low: Bounds = None,
    high: Bounds = None,
    problems: Mapping[str, str] | None = None,
) -> TrainedAnalysis:
    """Diagnose every recorded step of some runs, and give it to the estimators of all of them.

    The weights are those that a step was recorded with. Of a run of more than 200 steps as many are
    looked at, evenly, the first and the last among them.

    Args:
        runs: See `TrainedRun`.
        estimators: By the name to show; the others are compared with the first.
        low: Lowest value of each reward, by name; of others: those that the record declares.
        high: Highest value, likewise.
        problems: By name why an estimator cannot be called.

    Raises:
        DataError: A file is no rollout record.
    """
    replay = Replay(tuple(estimators), low=low, high=high, trained=estimators)
    replay.problems |= problems or {}
    done, sample = TrainedAnalysis(estimators), Sample(per_step=KEPT)
    for run in runs:
        files = sorted(run.rollouts.glob("step_*.parquet"))
        done.recorded_steps += len(files)
        if not files:
            continue
        some = np.linspace(0, len(files) - 1, min(len(files), _STEPS)).round().astype(int)
        reading, ranges = read_rollout_files([files[i] for i in some], format="gdpo"), RangesSoFar()
        for table in reading:
            batch = batch_of(replace(table, run=run.name))
            if batch is None:
                continue
            if batch.advantages is None:
                raise DataError(
                    f"{table.files[0]} is not a rollout record of gdpo: it has no advantages"
                )
            step = analyze_step(batch, ranges, recorded_by=run.estimator, low=low, high=high)
            done.runs.setdefault(run.name, RunAnalysis(run.name)).add(step)
            advantages = replay.add(batch)
            if sample.turn():
                sample.look(batch, advantages)
        _refuse_unread(reading)
    done.replayed, done.off_record = replay.results(), replay.off_record
    done.sample = sample.groups
    return done


def _refuse_unread(reading: RolloutReading) -> None:
    """Raise a DataError where a file, or a row of one, could not be read."""
    lost = dict(reading.report.left_out)
    lost |= {notice.file: notice.what for notice in reading.report.notices.values() if notice.rows}
    for file, why in lost.items():
        raise DataError(f"{file} is not a complete rollout record of gdpo: {why}")
