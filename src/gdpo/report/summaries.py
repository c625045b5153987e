"""Describes what an analysis found, as blocks that a terminal prints and a page shows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from statistics import median
from typing import Any

import numpy as np

from gdpo._text import counted, one_line, quoted, typed
from gdpo.analysis import Analysis
from gdpo.analysis.logs.trends import RewardTrend, RunTrends
from gdpo.analysis.priorities import BOTH
from gdpo.analysis.replay import Replayed
from gdpo.analysis.run import RunAnalysis
from gdpo.analysis.trend import end_means
from gdpo.analysis.verdict import Action
from gdpo.diagnostics.diagnosis import interval, percent
from gdpo.diagnostics.watch import OF_GROUPS, HeldFinding
from gdpo.errors import DataError
from gdpo.priority import table_of
from gdpo.report.blocks import (
    WHOLE,
    Block,
    Contents,
    FindingRow,
    Findings,
    Notices,
    Sentences,
    Table,
    When,
)
from gdpo.report.text import as_number, as_trend, short_name, shortened, without_middle
from gdpo.rollouts.readers import ReadReport, read_texts
from gdpo.rollouts.readers.formats import WORDLESS
from gdpo.rollouts.readers.propose import SCALAR
from gdpo.rollouts.readers.report import NAMED, Oddity

_REWARDS, _TURNS, _LOGS = 6, 6, 3
"""Maximum number of rewards, turns and logged runs that a terminal prints."""

_LOGGED = 16
"""Maximum number of rewards of a logged run."""

_RUNS = 6
"""Maximum number of runs in tables that only a page shows."""

_PROBLEM, _TEXT = 160, 200
"""Maximum number of characters of a problem, and of a completion that a reward function got."""


def contents(analysis: Analysis, **reading: Any) -> Contents:
    """Return what an analysis found: the data read, the rewards, the findings, and the verdict.

    `reading` are options for `read_texts`.
    """
    runs, worst = analysis.runs, analysis.worst_verdict()
    problems = (f"{why} ({count:,} rollouts)" for why, count in analysis.problems.items())
    checks = dict.fromkeys(str(each) for run in runs for each in analysis.verdict(run).unchecked)
    unchecked = [f"not checked: {one_line('; '.join(checks))}"] if checks else []
    assumed, verdict = list[str](), list[str]()
    if worst is not None:
        assumed = [f"  assumed: {one_line(typed(worst.assumed))}"] if worst.assumed else []
        more = f"{short_name(worst.run)} ({counted(len(runs) - 1, 'more run')}): "
        where = more if len(runs) > 1 else ""
        text = f"verdict: {where}{one_line(worst.sentence)}"
        # A command is printed whole, so that it can be copied.
        whole = worst.command or worst.readings
        verdict = [text if whole else shortened(text, WHOLE)]
    return {
        "read": [Sentences(list(read_sentences(analysis.report)))],
        "assumed": [Sentences(assumed)],
        "notices": [Notices([*analysis.report.oddities(), *map(Oddity, problems)])],
        "runs": [Sentences([run_sentence(run, analysis) for run in runs], most=2, unit="run")],
        "rewards": reward_blocks(analysis),
        "turns": turn_tables(analysis),
        "findings": finding_blocks(analysis),
        "unchecked": [Sentences(unchecked, lines=2)],
        "shares": list(share_blocks(analysis)),
        "functions": list(rollouts_to_look_at(analysis, **reading)),
        "advantages": list(estimator_blocks(analysis)),
        "priority": list(priority_blocks(analysis)),
        "verdict": [Sentences(verdict, "bold", wrapped=False)],
    }


def priority_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the weights with which the primary reward always wins, and whether it did.

    Yields nothing if no primary reward was named.
    """
    for run in analysis.priorities.values():
        name = one_line(run.primary)
        where = f" of {short_name(run.run)}" if len(analysis.priorities) > 1 else ""
        if run.answer(BOTH[0]).holds is None:
            has = "no values, or opens several gates"
            has = has if run.weights.get(run.primary, 0.0) > 0 else "no positive weight"
            yield Sentences((f"priority{where}: not known, because {name} has {has}",))
            continue
        grpo, gdpo = (table_of(run.combined(e), run.values, run.answer(e)) for e in BOTH)
        yield Table(
            f"priority{where}: weights with which {name} always wins",
            (*grpo[0][:3], *BOTH),
            [(*first, second[-1]) for first, second in zip(grpo[1:], gdpo[1:], strict=True)],
            "reward",
        )
        said: list[str] = []
        for gated, gate in run.gates.items():
            low = f"{counted(run.below(gate), 'rollout')} with {name} below {gate.at_least:g}"
            said.append(f"{gated} was 0 or missing in all {low}: a gate")
        text = f"not checked: {name} varies in no group with recorded advantages"
        if not any(each.recorded for each in analysis.runs):
            text = f"not checked whether {name} won: the files contain no advantages"
        if run.groups:
            text = (
                f"in {run.broken:,} of {counted(run.groups, 'group')}, a sample with less {name} "
                "had at least as large an advantage as one with more"
            )
        yield Sentences((*said, text))


def share_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the influence share of every reward with each named or compared setting."""
    rows: dict[str, Mapping[str, tuple[float, float]]] = {}
    for run in analysis.runs:
        readings = analysis.verdict(run).readings
        of = f"{short_name(run.run)}: " if len(analysis.runs) > 1 else ""
        if readings:
            now = {r.name: (r.influence_share, r.influence_margin) for r in run.rewards}
            rows |= {f"{of}as trained": now, **{f"{of}{r.setting}": r.shares for r in readings}}
    rows |= {one_line(each.estimator): each.shares for each in analysis.replayed if each.shares}
    names = list(dict.fromkeys(name for shares in rows.values() for name in shares))
    if len(names) < 2:
        return
    yield Table(
        "influence share of every reward",
        ("setting", *map(one_line, names)),
        [
            (setting, *(interval(*shares.get(name, (nan, nan))) for name in names))
            for setting, shares in rows.items()
        ],
        "setting",
        column="reward",
    )


def rollouts_to_look_at(analysis: Analysis, **reading: Any) -> Iterator[Block]:
    """Yield three rollouts of each run whose verdict is to check a function.

    `reading` are options for `read_texts`.
    """
    for run in analysis.runs:
        verdict = analysis.verdict(run)
        table = run.latest
        if verdict.action is not Action.CHECK or table is None:
            continue
        columns = [table.names.index(name) for name in verdict.rewards]
        order = np.argsort(table.rewards[:, columns[0]], kind="stable")
        rows: list[tuple[str, ...]] = []
        for place in dict.fromkeys(order[[0, len(order) // 2, -1]].tolist()):
            file, row = table.files[table.file[place]], int(table.row[place])
            try:
                (text,) = read_texts(file, [row], format=table.format, **reading)
            except DataError:  # the file was moved
                continue
            values = map(as_number, table.rewards[place, columns].tolist())
            said = without_middle(one_line(str(text.completion)), _TEXT)
            rows.append((f"{short_name(file.name)}, row {row:,}", *values, said))
        names = list(map(one_line, verdict.rewards))
        title = f"three rollouts of step {table.steps[0]:,}, for the function of {quoted(names)}"
        yield Table(title, ("rollout", *names, "completion"), rows, "rollout")


def estimator_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the comparison of the estimators on the same rollouts, if any were recomputed."""
    replayed, scalar = analysis.replayed, analysis.report.scalar_only
    if not replayed or not analysis.runs:
        return
    first = replayed[0]
    yield Table(
        f"advantages with other estimators, baseline: {one_line(first.baseline)} "
        f"({counted(first.steps, 'step')}, {counted(first.groups, 'group')})",
        (
            *("estimator", "correlation", "sign flips", "exactly 0"),
            *("signal lost", "signal gained", "scale", ""),
        ),
        [_replayed_cells(each, scalar=scalar) for each in replayed if each.steps],
        "estimator",
        on_page=("exactly 0",),
    )
    others = [r for r in replayed if r.estimator != r.baseline and r.steps]
    same = [r.estimator for r in others if r.same]
    sentences: list[str] = []
    if analysis.weights_to_give:
        sentences.append(
            "no estimator gives the recorded advantages with weights of 1: if the run used other "
            "weights, rerun with --weights"
        )
    if scalar:
        sentences.append(scalar_only(analysis.report))
    elif same:
        which = "all estimators" if len(same) == len(others) else ", ".join(map(one_line, same))
        sentences.append(f"no difference from the baseline, up to a factor: {which}")
    if gains := [g for run in analysis.runs for g in run.batch_gain.tolist() if g == g]:
        sentences.append(
            f"GDPO's batch normalization multiplies the advantages by {median(gains):.3g} "
            f"(median; {min(gains):.3g} to {max(gains):.3g} over the steps)"
        )
    yield Sentences((*sentences, *_not_replayed(replayed)))


def read_sentences(report: ReadReport) -> Iterator[str]:
    """Yield the formats, the number of rows, and where the rewards were found."""
    formats = list(report.formats.items())
    if len(formats) == 1:
        name, count = formats[0]
        how = one_line(report.files[0].format_from)
        yield f"format {name} ({counted(count, 'file')}){', ' if how else ''}{how}"
    elif formats:
        yield "formats " + ", ".join(f"{name} ({counted(n, 'file')})" for name, n in formats)
    folders = sum(path.is_dir() for path in report.left_out)
    counts = (len(report.left_out) - folders, "file"), (folders, "folder")
    left = " and ".join(counted(count, what) for count, what in counts if count)
    more = f"; {left} not read" if left else ""
    yield f"{report.rows:,} rows: {report.read:,} read, {report.skipped:,} skipped{more}"
    sources = [
        found.how(options=True)
        for file in report.files
        if file.given.names
        and (
            (found := file.given.rewards).left_out
            or found.kind in SCALAR
            or file.guessed
            or file.format in NAMED
        )
    ]
    remedy = ""
    if report.scalar_only:
        remedy = "; --rescore recomputes the components from the texts"
        if _wordless(report):
            remedy = "; they contain no texts either, so --rescore cannot recompute components"
    if sources:
        yield f"rewards: {'; '.join(map(one_line, dict.fromkeys(sources)))}{remedy}"


def scalar_only(report: ReadReport) -> str:
    """Return a sentence about estimators, for files with only a scalar reward."""
    sentence = (
        "these files contain only a scalar reward, so estimators that differ in how they combine "
        "rewards (gdpo, mo_grpo, ...) give the same advantages; those without a per-group std "
        "still differ"
    )
    if _wordless(report):
        return sentence
    return f"{sentence}. --rescore recomputes the separate rewards"


def _wordless(report: ReadReport) -> bool:
    return all(file.format in WORDLESS for file in report.files)


def run_sentence(run: RunAnalysis, analysis: Analysis) -> str:
    """Return the number of steps, rollouts and groups of a run, its weights and advantages."""
    numbers, report, span = run.steps, analysis.report, ""
    if len(numbers) > 1:
        apart = {later - step for step, later in pairwise(numbers)}
        # A run may record only every N-th step.
        every = f", every {min(apart):,}" if len(apart) == 1 and min(apart) > 1 else ""
        span = f" ({min(numbers):,} to {max(numbers):,}{every})"
    groups = ""
    if len(analysis.runs) == 1:
        size = report.group_sizes.most_common(1)[0][0]
        usual = f"of {size}" if len(report.group_sizes) == 1 else f"mostly of {size}"
        by = ", ".join(report.grouped_by)
        groups = f"; {counted(report.groups, 'group')} {usual}, by {by}"
    return (
        f"{f'{one_line(run.run)}: ' if run.run else ''}{counted(len(numbers), 'step')}{span}, "
        f"{run.rollouts:,} rollouts"
        f"{f' ({run.left_out:,} more not trained on)' if run.left_out else ''}{groups}; "
        f"weights: {run.weights_from}; advantages: {advantages_from(run)}"
    )


def advantages_from(run: RunAnalysis) -> str:
    """Return a run's source of advantages as a phrase: recorded, or the estimator."""
    computed = f"computed with {one_line(', '.join(run.estimators))}"
    if not run.recorded:
        return computed
    if run.recorded == len(run.steps):
        equal = " and ".join(sorted(run.equal_to or ()))
        return f"recorded{equal and f', equal to those of {equal}'}"
    return f"recorded in {run.recorded:,} of {counted(len(run.steps), 'step')}, else {computed}"


def reward_blocks(analysis: Analysis) -> list[Block]:
    """Return the table of the rewards of all runs, and remarks on its numbers."""
    several = len(analysis.runs) > 1
    rewards = [reward for run in analysis.runs for reward in run.rewards]
    if not rewards:
        return []
    columns = {
        "run": [one_line(run.run) for run in analysis.runs for _ in run.rewards],
        "reward": [one_line(r.name) for r in rewards],
        "mean: first → last": [f"{as_number(r.first)} → {as_number(r.last)}" for r in rewards],
        "trend": [as_trend(r.change, r.change_margin) for r in rewards],
        "zero variance": [
            percent(r.zero_variance_groups / r.groups if r.groups else nan) for r in rewards
        ],
        "weight share": [percent(r.weight_share) for r in rewards],
        "influence share": [interval(r.influence_share, r.influence_margin) for r in rewards],
        "correlation with length": [as_number(r.with_length) for r in rewards],
        "missing": [percent(r.missing) for r in rewards],
    }
    if not several:
        del columns["run"]
    if not any(r.missing for r in rewards):
        del columns["missing"]
    cells = list(zip(*columns.values(), strict=True))
    more, shares = ("trend", "correlation with length"), ("weight share", "influence share")
    said = ["±: half the width of the 95 % confidence interval, over the groups of the whole run"]
    changes: list[str] = []
    for run in analysis.runs:
        where = f" of {short_name(run.run)}" if several else ""
        if (why := analysis.verdict(run).no_interval) is not None:
            said.append(f"no ±{where}: {why}")
        each = [
            f"{short_name(name)} {as_number(old)} → {as_number(new)}"
            for name, (old, new) in run.weight_changes().items()
        ]
        if each:
            changes.append(f"weights{where} change: {', '.join(each)}")
    return [
        Table("", tuple(columns), cells, "reward", on_page=more, first=shares, most=_REWARDS),
        Sentences(said, "dim"),
        Sentences(changes),
    ]


def turn_tables(analysis: Analysis) -> list[Block]:
    """Return a table for each run with several turns. A terminal prints the first."""
    runs = [run for run in analysis.runs if len(run.turns) > 1]
    others = (counted(len(runs) - 1, "more run"),) if len(runs) > 1 else ()
    return [
        Table(
            f"turns{f' of {short_name(run.run)}' if len(analysis.runs) > 1 else ''}: "
            "zero-variance groups and influence share",
            ("turn", "alive", *(one_line(reward.name) for reward in run.turns[0].rewards)),
            [
                (
                    str(turn.turn),
                    percent(turn.alive),
                    *(
                        f"{percent(at.zero_variance_groups)}, "
                        f"{interval(at.influence_share, at.influence_margin)}"
                        for at in turn.rewards
                    ),
                )
                for turn in run.turns
            ],
            "turn",
            column="reward",
            others=others,
            most=0 if place else _TURNS,
        )
        for place, run in enumerate(runs[:_RUNS])
    ]


def finding_blocks(analysis: Analysis) -> list[Block]:
    """Return the lasting findings of all runs, worst first, or a sentence that there are none."""
    found = analysis.findings()
    if not found and (verdict := analysis.worst_verdict()):
        if verdict.unknown and not verdict.assumed:
            return [Sentences((f"no findings, but {one_line(verdict.unknown)}",))]
        return [Sentences(("no findings",), "" if verdict.assumed else "green")]
    return [
        Findings(
            [
                FindingRow(
                    held.finding,
                    f"{f'{short_name(run.run)}: ' if len(analysis.runs) > 1 else ''}"
                    f"{when_found(run, held)}{one_line(held.finding.message)}",
                    one_line(held.finding.advice(options=True)),
                    [When(held.spans, held.of, run.spans(held), steps=held.steps)],
                )
                for run, held in found
            ]
        )
    ]


def when_found(run: RunAnalysis, held: HeldFinding) -> str:
    """Return a phrase with the steps of a finding. Empty for one about the whole run.

    A finding that rests on sums names their groups itself; its steps are those in which it held.
    """
    if held.steps == held.of and (held.of == 1 or held.finding.kind in OF_GROUPS):
        return ""
    if held.finding.kind not in OF_GROUPS:
        return f"in {held.steps:,} of {held.of:,} steps: "
    spans = run.spans(held)
    return f"in steps {spans[0][0]:,} to {spans[-1][1]:,}: "


def _replayed_cells(replayed: Replayed, *, scalar: bool) -> tuple[str, ...]:
    """Return a table row. `scalar`: the files contain only a scalar reward."""
    if replayed.estimator == replayed.baseline:
        verdict = ""
    elif replayed.problem:
        verdict = "fails"
    elif replayed.same:
        verdict = "no difference with a scalar reward" if scalar else "no difference"
    elif replayed.changed == replayed.steps:
        verdict = "differs on every step"
    else:
        verdict = f"differs on {counted(replayed.changed, 'step')}"
    return (
        one_line(replayed.estimator),
        as_number(replayed.correlation, "z.3f"),
        percent(replayed.sign_flips),
        percent(replayed.zero),
        f"{replayed.signal_lost:,}",
        f"{replayed.signal_gained:,}",
        as_number(replayed.scale),
        verdict,
    )


def _not_replayed(replayed: Sequence[Replayed]) -> Iterator[str]:
    for each in replayed:
        if each.steps and each.problem:
            where = f"{one_line(each.estimator)} failed after {counted(each.steps, 'step')}"
            yield shortened(f"{where}: {one_line(each.problem)}", _PROBLEM)
        elif not each.steps:
            why = each.problem or f"no step has advantages of {each.baseline} to compare with"
            yield shortened(f"not computed: {one_line(each.estimator)}: {one_line(why)}", _PROBLEM)


def log_blocks(runs: Sequence[RunTrends]) -> Iterator[Block]:
    """Yield the rewards of each logged run, and what metrics cannot show.

    The runs with the most steps are first.
    """
    for trends in runs[:_LOGS]:
        yield Sentences(tuple(_heading(trends)))
        columns = _columns(trends.rewards)
        rows = list(zip(*columns.values(), strict=True))
        yield Table("", tuple(columns), rows, "reward", most=_LOGGED)
    if len(runs) > _LOGS:
        yield Sentences((f"and {len(runs) - _LOGS:,} more runs: pass one of their files",))
    yield Sentences(tuple(_limits(runs)))


def _heading(trends: RunTrends) -> Iterator[str]:
    run, log = trends.run, trends.run.log
    steps = counted(len(run.steps), "logged row" if log.numbered else "logged step")
    span = f" ({run.steps[0]:,.0f} to {run.steps[-1]:,.0f})" if len(run.steps) > 1 else ""
    name = f", run {one_line(log.run)}" if log.run else ""
    where = f"{log.source}{name}: {one_line(str(log.path))}"
    yield f"metrics only, no rollouts: {steps}{span} from {where}"
    # The logs of earlier checkpoints are copies too.
    others = (copy for copy in run.copies if copy.source != log.source)
    if others := ", ".join(f"{copy.source} ({one_line(str(copy.path))})" for copy in others):
        yield f"the same numbers are in {others}"
    if log.numbered:
        yield "the rows contain no step, and are numbered in order"
    if log.repeated:
        rows = counted(log.repeated, "row")
        yield f"! {rows} repeat the step of an earlier row, as when steps restart: the last counts"
    if log.problem:
        yield f"! the file was not read to its end: {log.problem}"
    if any(reward.weight != 1 for reward in trends.rewards):
        weights = (f"{short_name(r.name)} {r.weight:g}" for r in trends.rewards)
        yield f"weights: {', '.join(weights)}"
    else:
        yield "weights: assumed to be 1 for each reward, because metrics contain none (--weights)"
    if "zero_advantage_groups" in run.batch:
        first, last = map(percent, end_means(run.batch["zero_advantage_groups"]))
        yield f"groups without signal: first {first}, last {last}"
    if "warnings" in run.batch:
        warned = int((run.batch["warnings"] > 0).sum())
        yield f"gdpo logged warnings in {warned:,} of {steps.removesuffix('s')}s"


def _columns(rewards: Sequence[RewardTrend]) -> dict[str, list[str]]:
    """Return the columns of the table of a run: those of which its log has numbers."""
    has_influence = any(isfinite(reward.influence_share) for reward in rewards)
    has_std = not has_influence and any(isfinite(reward.std) for reward in rewards)
    columns = {
        "reward": [one_line(r.name) for r in rewards],
        "mean: first → last": [f"{as_number(r.first)} → {as_number(r.last)}" for r in rewards],
        "trend": [as_trend(r.change, r.margin) for r in rewards],
    }
    if has_std:
        columns["std: first → last"] = [
            f"{as_number(r.first_std)} → {as_number(r.last_std)}" for r in rewards
        ]
    columns["weight share"] = [percent(r.weight_share) for r in rewards]
    if has_influence:
        columns["zero variance"] = [percent(r.zero_variance_groups) for r in rewards]
        columns["influence share"] = [percent(r.influence_share) for r in rewards]
    if has_std:
        columns["weight × std"] = [percent(r.std_share) for r in rewards]
    return columns


def _limits(runs: Sequence[RunTrends]) -> Iterator[str]:
    if any(not isfinite(r.std) for run in runs for r in run.rewards):
        yield (
            "without the std of a reward, as in TRL up to 0.15, metrics cannot show whether the "
            "reward is constant or ignored. It may be, even if its mean changes"
        )
    if any(isfinite(r.std) for run in runs if not run.within_groups for r in run.rewards):
        yield (
            "std is over the whole batch. It also contains the differences between prompts, such "
            "as their difficulty, which do not affect the advantages within a group"
        )
    logged = all(isfinite(r.influence_share) for run in runs for r in run.rewards)
    influence = "" if logged else "the influence share of each reward, "
    yield (
        f"metrics cannot show {influence}whether rewards conflict, or what another estimator "
        "would change"
    )
    yield (
        "to find out, record rollouts, as with log_completions=True in TRL (see "
        "docs/how-to/analyze.md)"
    )
