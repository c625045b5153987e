"""Analyzes the rollouts of an experiment, and collects the findings that lasted."""

from collections.abc import Iterator, Mapping

from gdpo.analysis.replay import TrainedWith
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.watch import HeldFinding
from gdpo.errors import GdpoError
from gdpo.lab.experiments.reading import Experiment, estimator_of
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.report.trained import TrainedAnalysis, analyze_trained
from gdpo.lab.runs.directory import RunDirectory
from gdpo.report.blocks import FindingRow, When


def analyze_experiment(experiment: Experiment) -> TrainedAnalysis:
    """Recompute every recorded step with every estimator in the experiment.

    An estimator appears once for each set of options. Labels that differ only in weights are one
    estimator, because each step is recomputed with its recorded weights. If only one estimator was
    trained, GRPO or GDPO is added.
    """
    problems: dict[str, str] = {}
    found: dict[str, tuple[str, Mapping[str, object]]] = {}
    runs: dict[str, set[str]] = {}
    for label in experiment.labels:
        own, problem = _options(experiment, label)
        estimator, first = (estimator_of(label), own), label.partition(" ")[0]
        alike = (name for name, other in found.items() if other == estimator)
        name = next(alike, str(label) if first in found else first)
        found.setdefault(name, estimator)
        if problem:
            problems[name] = problem
        runs.setdefault(name, set()).update(
            str(place) for place, run in enumerate(experiment.runs) if run.label == label
        )
    if len(found) == 1:
        other = "gdpo" if "grpo" in found else "grpo"
        found[other] = (other, {})
    estimators = {
        name: TrainedWith(estimator, own, frozenset(runs.get(name, ())))
        for name, (estimator, own) in found.items()
    }
    return analyze_trained(experiment, estimators, problems)


def _options(experiment: Experiment, label: str) -> tuple[Mapping[str, object], str]:
    """Return the estimator options in a label's recipe, and an error message or ""."""
    recipes = (RunDirectory(run.path).recipe for run in experiment.runs_of(label))
    first = next((recipe for recipe in recipes if recipe.is_file()), None)
    try:
        return read_recipe(first, left_out=set()).advantage_options if first is not None else {}, ""
    except GdpoError as error:
        return {}, str(error)


def lasting_findings(
    experiment: Experiment, analysis: TrainedAnalysis
) -> Iterator[tuple[str, bool, list[FindingRow]]]:
    """Yield each estimator, whether it has rollouts, and its lasting findings, worst first."""
    for label in experiment.labels:
        runs = [
            (run.seed, analysis.runs[str(place)])
            for place, run in enumerate(experiment.runs)
            if run.label == label and str(place) in analysis.runs
        ]
        lasting: dict[tuple[Kind, tuple[str, ...], Severity], list[tuple[HeldFinding, When]]] = {}
        for seed, run in runs:
            for held in run.findings:
                if not held.lasting:
                    continue
                finding, spans = held.finding, run.spans(held)
                key = finding.kind, finding.rewards, finding.severity
                when = When(spans, experiment.total_steps, spans, seed)
                lasting.setdefault(key, []).append((held, when))
        worst_first = sorted(
            lasting.values(),
            key=lambda found: (
                found[-1][0].finding.rank[0],
                -sum(held.steps for held, _ in found),
                found[-1][0].finding.rank[1],
            ),
        )
        # The last message of several runs is shown.
        rows = [
            FindingRow(
                last := found[-1][0].finding,
                last.message,
                last.advice(),
                sorted((when for _, when in found), key=lambda when: (when.seed, when.spans)),
            )
            for found in worst_first
        ]
        yield label, bool(runs), rows
