"""Analyzes runs that gdpo trained with known estimators, from their rollout records."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gdpo.analysis.replay import Replay, Replayed, TrainedWith
from gdpo.analysis.run import RunAnalysis, RunSteps, run_of
from gdpo.analysis.sample import KEPT, GroupSampler, SampledGroup
from gdpo.analysis.steps import analyze_step, batch_of
from gdpo.errors import DataError
from gdpo.lab.experiments.reading import Experiment, estimator_of
from gdpo.lab.runs.directory import RunDirectory
from gdpo.rollouts.readers import read_rollout_files

_STEPS = 200
"""Maximum number of steps to analyze per run. In longer runs, the analyzed steps are evenly
spaced."""


@dataclass(slots=True)
class TrainedAnalysis:
    """Stores the results for several runs, and the comparison of their estimators."""

    estimators: Mapping[str, TrainedWith]
    recorded_steps: int = 0
    """Number of recorded steps, analyzed or not."""
    runs: dict[str, RunAnalysis] = field(default_factory=dict)
    replayed: list[Replayed] = field(default_factory=list)
    off_record: dict[str, float] = field(default_factory=dict)
    """For each estimator, the largest difference from the recorded advantages of the runs that were
    trained with it. User-defined estimators are never called, so they are not included."""
    sample: list[SampledGroup] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Number of analyzed steps."""
        return sum(len(run.steps) for run in self.runs.values())

    @property
    def rollouts(self) -> int:
        """Number of analyzed rollouts."""
        return sum(run.rollouts for run in self.runs.values())


def analyze_trained(
    experiment: Experiment, estimators: Mapping[str, TrainedWith], problems: Mapping[str, str]
) -> TrainedAnalysis:
    """Diagnose the recorded steps of runs, and compare all their estimators on these steps.

    Each run's name is its position in the experiment. If a run has more than 200 steps, 200 evenly
    spaced steps are analyzed. `problems` maps estimators to the reasons why they cannot be called.
    """
    low, high = (
        {reward.name: getattr(reward, end) for reward in experiment.rewards}
        for end in ("low", "high")
    )
    replay = Replay(tuple(estimators), low=low, high=high, trained=estimators)
    replay.problems |= problems
    done, sample = TrainedAnalysis(estimators), GroupSampler(per_step=KEPT)
    for place, run in enumerate(experiment.runs):
        name = str(place)
        files = sorted(RunDirectory(run.path).rollouts.glob("step_*.parquet"))
        done.recorded_steps += len(files)
        if not files:
            continue
        steps = RunSteps(name)
        some = np.linspace(0, len(files) - 1, min(len(files), _STEPS)).round().astype(int)
        reading = read_rollout_files([files[i] for i in some], format="gdpo")
        for table in reading:
            batch = batch_of(replace(table, run=name))
            if batch is None:
                continue
            if batch.advantages is None:
                raise DataError(
                    f"{table.files[0]} is not a gdpo rollout record: it has no advantages"
                )
            step = analyze_step(batch, recorded_by=estimator_of(run.label), low=low, high=high)
            steps.add(step)
            sample.look(batch, replay.add(batch))
        if steps.steps:
            done.runs[name] = run_of(steps)
        cut = {n.file: n.what for n in reading.report.notices.values() if n.rows}
        for file, why in (reading.report.left_out | cut).items():
            raise DataError(f"{file} is not a complete gdpo rollout record: {why}")
    done.replayed, done.off_record = replay.results(), replay.off_record
    done.sample = sample.groups
    return done
