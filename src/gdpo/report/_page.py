"""The page put together: one file that loads nothing and runs one script, which is ours."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from gdpo._files import write_whole
from gdpo.diagnostics.watch import LASTING
from gdpo.experiments.comparison import Comparison
from gdpo.experiments.reading import Measured
from gdpo.report import _figures as figures
from gdpo.report import _head as head
from gdpo.report import _parts as parts
from gdpo.report._lasting import lasting_findings
from gdpo.report._replay import Replay, replay
from gdpo.report._sample import Sample, sample
from gdpo.report._summary import caution
from gdpo.report.text import embedded, html


def write_report(comparison: Comparison, file: Path) -> None:
    """Write one HTML file that answers which arm, by how much, and how sure that is.

    It is made from the run directories alone, loads nothing from anywhere, and shows what a model
    wrote as text, whatever it wrote. Without recorded rollouts it says so in their place.

    Args:
        comparison: See `gdpo.experiments.analyse`. Of a single run there is nothing to compare;
            the curves, findings and rollouts are there.
        file: Replaced whole, or left as it was.

    Raises:
        DataError: A rollout file in a run directory cannot be read.
    """
    write_whole(file, page(comparison))


def page(comparison: Comparison) -> str:
    """The file's text."""
    experiment = comparison.experiment
    replayed = replay(experiment)
    shown = sample(experiment, replayed)
    curves = [figures.curves(comparison, reward) for reward in experiment.rewards]
    curves += figures.lengths(comparison)
    survival = [figures.survival(comparison, reward) for reward in _timed(comparison)]
    return framed(
        "page.html",
        title=html(f"{experiment.name}: {comparison.answer}"),
        setup=head.setup(comparison),
        question=html(comparison.question),
        answer=html(comparison.answer),
        exploratory=_exploratory(comparison),
        results=head.result_tables(comparison),
        reading=_reading(comparison),
        smoothing=_smoothing(comparison),
        legend=parts.legend(comparison),
        curves=parts.figures(curves, 0),
        survival=parts.survival_section(survival, len(curves)),
        numbers=head.all_numbers(comparison),
        runs=head.runs_table(comparison),
        lasting=LASTING,
        findings=parts.findings(comparison, lasting_findings(experiment, replayed), replayed),
        estimators=parts.estimators(comparison, replayed),
        sampled=_sampled(replayed, shown),
        data=embedded({"charts": [c.data() for c in (*curves, *survival)], "rollouts": shown.data}),
    )


def _timed(comparison: Comparison) -> Sequence[Measured]:
    """Rewards whose runs are worth a survival curve: of a single run it is one step down."""
    return comparison.experiment.rewards if len(comparison.experiment.runs) > 1 else ()


def _exploratory(comparison: Comparison) -> str:
    if not comparison.exploratory:
        return ""
    return f'<p class="exploratory">{html(caution(comparison))}</p>'


def _reading(comparison: Comparison) -> str:
    share = f"{100 * comparison.experiment.reach:g}&nbsp;%"
    text = (
        "Final: interquartile mean over the seeds of the last tenth of the steps. Came to: "
        f"{share} of the way from the lowest to the highest value, and the median steps to it"
    )
    if any(outcome.final.low != outcome.final.low for outcome in comparison.outcomes):
        text += "; with fewer than 5 seeds a final has no interval"
    if comparison.experiment.unlike:
        text += (
            f"; –: another gate or other options than in {html(comparison.experiment.arms[0])}, so "
            "that it is another quantity and is not compared"
        )
    if not comparison.differences:
        return f"{text}."
    return (
        f"{text}. Against {html(comparison.experiment.arms[0])}: mean of the differences seed by "
        "seed. p: permutation test, corrected for all comparisons (Holm), and alone; floor: the "
        "least that so few seeds can give, alone."
    )


def _smoothing(comparison: Comparison) -> str:
    window = figures.smoothing(comparison.experiment.total_steps)
    what = f"Running mean over {window} steps" if window > 1 else "Mean of each step"
    experiment = comparison.experiment
    lines = "one run" if len(experiment.arms) == 1 else "one run of each arm"
    if len(experiment.runs) > len(experiment.arms):
        lines = "bold: median over the seeds; band: the middle half; thin: every seed"
    return f"{what}; {lines}. Dotted: the threshold."


def _sampled(replayed: Replay, shown: Sample) -> str:
    if not replayed.steps:
        return "No rollouts were recorded."
    return (
        f"{shown.rollouts:,} of {replayed.rollouts:,} rollouts are shown here: groups spread "
        "evenly over runs and steps, and those that the estimators disagree on most. "
        "Disagreement: the range of the estimators' advantages, each divided by their root mean "
        "square over the step."
    )


def framed(name: str, **parts: object) -> str:
    """The whole page whose sections the template of that name has.

    Args:
        name: A file beside this one.
        parts: What its places are filled with, and those of the frame, HTML already: title, setup,
            question, answer, sampled, data; mark and exploratory may be left out.
    """
    style, script = _file("page.css"), _file("page.js")
    parts = {"mark": "", "exploratory": "", **parts}
    return Template(_file("frame.html")).substitute(
        parts,
        style=style,
        style_hash=_sha256(style),
        script=script,
        script_hash=_sha256(script),
        main=Template(_file(name)).substitute(parts),
    )


def _file(name: str) -> str:
    """A file beside this one: style, script and templates."""
    return files("gdpo.report").joinpath(name).read_text(encoding="utf-8").strip()


def _sha256(text: str) -> str:
    """As the page's policy names what may be applied and run."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
