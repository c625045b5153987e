from dataclasses import asdict
from typing import Any

from gdpo.analysis._analysis import Analysis
from gdpo.analysis.run import OVER_TIME, OVER_WINDOW, RunAnalysis
from gdpo.analysis.verdict import Verdict
from gdpo.diagnostics.watch import HeldFinding


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as nested dicts and lists, with NaN for unknown values.

    docs/how-to/analyze.md lists the main keys.
    """
    report = analysis.report
    return {
        "paths": [str(path) for path in report.paths],
        "rows": {
            "all": report.rows,
            "read": report.read,
            "skipped": report.skipped,
            "not_analyzed": analysis.not_analyzed,
        },
        "files": [
            {
                "path": str(file.path),
                "format": file.format,
                "format_from": file.format_from,
                "rows": file.rows,
                "read": file.read,
                "skipped": file.skipped,
                "rewards": list(file.rewards),
                "rewards_from": file.rewards_from,
            }
            for file in report.files
        ],
        "left_out": [{"path": str(p), "why": why} for p, why in report.left_out.items()],
        "notices": [
            {
                "file": str(notice.file),
                "line": notice.line,
                "what": notice.what,
                "count": notice.count,
                "rows": notice.rows,
            }
            for notice in report.notices.values()
        ],
        "groups": {
            "count": report.groups,
            "sizes": {str(size): count for size, count in sorted(report.group_sizes.items())},
            "by": dict(report.grouped_by),
            "findings": report.group_findings(),
        },
        "problems": [{"what": w, "rollouts": n} for w, n in analysis.problems.items()],
        "runs": [_run(run, analysis.verdict(run)) for run in analysis.runs],
        "estimators": [{**asdict(each), "same": each.same} for each in analysis.replayed],
    }


def _run(run: RunAnalysis, verdict: Verdict) -> dict[str, Any]:
    lengths = run.lengths()
    return {
        "run": run.run,
        "rollouts": run.rollouts,
        "left_out": run.left_out,
        "weights_from": run.weights_from,
        "steps_with_recorded_advantages": run.recorded,
        "estimators": sorted(run.estimators),
        "rewards": [
            {
                **asdict(reward),
                "over_time": {
                    each: run.over_time(reward.name, each).tolist()
                    for each in (*OVER_TIME, *OVER_WINDOW, "with_length")
                },
            }
            for reward in run.rewards()
        ],
        "correlation": [[run.correlation(a, b) for b in run.names] for a in run.names],
        "findings": [_finding(run, held) for held in run.findings()],
        "unchecked": [asdict(each) for each in verdict.unchecked],
        "verdict": verdict.as_dict(),
        "turns": [asdict(turn) for turn in run.turns()],
        "with_turns": [asdict(each) for each in run.with_turns()],
        "over_time": {
            "step": list(run.steps),
            "batch_gain": run.batch_gains().tolist(),
            "num_tokens": lengths[:, 0].tolist(),
            "truncated": lengths[:, 1].tolist(),
        },
    }


def _finding(run: RunAnalysis, held: HeldFinding) -> dict[str, Any]:
    finding = held.finding
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "rewards": list(finding.rewards),
        "message": finding.message,
        "remedy": finding.remedy,
        "causes": [cause.value for cause in finding.causes],
        "remedies": [asdict(remedy) for remedy in finding.remedies],
        "evidence": dict(finding.evidence),
        "first": run.steps[held.spans[0][0] - 1],
        "last": run.steps[held.spans[-1][1] - 1],
        "steps": held.steps,
        "in_a_row": held.in_a_row,
        "of": held.of,
        "lasting": held.lasting,
        "certain": held.certain,
    }
