"""Markdown tables of the study's results."""

from math import isnan


def outcome_table(comparison):
    """Return a line for each reward and estimator: end, difference, and steps to 80 %."""
    lines = [
        "| reward | estimator | end | difference from the baseline | p | reached | median steps |",
        "|---|---|---|---|---|---|---|",
    ]
    differences = {(d.reward, d.label): d for d in comparison.differences}
    for outcome in comparison.outcomes:
        difference = differences.get((outcome.reward, outcome.label))
        columns = (
            outcome.reward,
            outcome.label,
            _interval(outcome.final),
            _interval(difference.final, "+.2f") if difference else "",
            f"{difference.p_adjusted:.3g}" if difference else "",
            f"{outcome.reached} of {outcome.runs}",
            _interval(outcome.survival.median, ".0f"),
        )
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _interval(interval, form=".2f"):
    if isnan(interval.value):
        return "never"
    low, high = ("?" if isnan(end) else f"{end:{form}}" for end in (interval.low, interval.high))
    text = f"{interval.value:{form}} ({low} to {high})"
    return text.replace("-", "\N{MINUS SIGN}")
