"""Findings about the batch as a whole: its signal, its size, and how it compares with GRPO."""

from collections.abc import Iterator
from math import sqrt

from gdpo.diagnostics._diagnosis import Diagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._reward_findings import severity_of_share
from gdpo.diagnostics._text import percent, times
from gdpo.diagnostics._thresholds import Thresholds

_UNIT = 1e-3
"""How near to 1 the standard deviation of advantages is that were divided by it, in float32 too."""


def batch_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about the batch as a whole."""
    for find in (_no_signal, _conflict, _gain, _extreme, _one_group, _same_as_grpo, _merged):
        yield from find(diagnosis, thresholds)


def _no_signal(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.silent_groups < thresholds.silent:
        return
    remedy = "mix in prompts of another difficulty, take more samples per prompt, or warm-start"
    if all(reward.weight == 0 for reward in d.rewards):
        remedy = "give a reward a weight other than 0"
    yield Finding(
        Kind.NO_SIGNAL,
        severity_of_share(d.prompts, thresholds),
        (),
        f"{percent(d.silent_groups)} of the {d.prompts} groups have advantages of exactly 0: they "
        "train nothing",
        remedy,
        {"silent_groups": d.silent_groups, "groups": float(d.prompts)},
    )


def _conflict(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.conflict is None or d.chance_conflict is None:
        return
    excess = d.conflict - d.chance_conflict
    error = sqrt(d.chance_conflict * (1 - d.chance_conflict) / d.rollouts)
    agree = 1 - d.conflict <= thresholds.agreement * (1 - d.chance_conflict)
    if agree and excess > thresholds.standard_errors * error:
        yield Finding(
            Kind.CONFLICT,
            Severity.WARNING,
            (),
            f"{percent(d.conflict)} of the rollouts are pulled both ways by different rewards; "
            f"{percent(d.chance_conflict)} would be by chance",
            "the rewards cannot be had together: decide by the weights, or gate the lesser ones on "
            "the main one",
            {"conflict": d.conflict, "chance_conflict": d.chance_conflict},
        )


def _gain(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    # Where most groups live, large advantages are the unit of the rewards.
    if d.live_rms is None or d.live_rms < thresholds.live_rms or d.silent_groups < 0.5:
        return
    yield Finding(
        Kind.GAIN,
        Severity.WARNING,
        (),
        f"the advantages of the {percent(1 - d.silent_groups)} of groups that have signal are "
        f"{times(d.live_rms)} their usual size: the batch step scales them up, and with them the "
        "learning rate",
        "use prompts on which more groups vary, lower the learning rate, or use an estimator "
        "without a batch step: mo_grpo",
        {"live_rms": d.live_rms, "silent_groups": d.silent_groups},
    )


def _extreme(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    ratio = d.largest / d.live_rms if d.live_rms else 0.0
    if ratio <= thresholds.extreme:
        return
    yield Finding(
        Kind.EXTREME,
        Severity.WARNING,
        (),
        f"the largest advantage is {d.largest:.3g}, {times(ratio)} their root mean square in the "
        "groups that have signal: one rollout can decide a step",
        f"max_advantage: {thresholds.extreme * (d.live_rms or 1.0):.3g}, where the estimator has "
        "it; otherwise see whether the rewards have outliers",
        {"largest": d.largest, "live_rms": d.live_rms or 0.0},
    )


def _one_group(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.prompts > 1 or d.live_rms is None or d.rollouts < 2:
        return
    std = d.live_rms * sqrt(d.rollouts / (d.rollouts - 1))
    divided = abs(std - 1) < _UNIT
    # Equal to GRPO, it divides by what GRPO divides by, and no difference between groups is lost.
    if divided and (d.same_as_grpo or 0.0) < thresholds.same:
        yield Finding(
            Kind.ONE_GROUP,
            Severity.WARNING,
            (),
            "the batch holds one group, and its advantages are divided by their own standard "
            "deviation: what the estimator adds between groups is undone",
            "let more prompts share a batch, or use an estimator without a batch step: mo_grpo",
            {"prompts": 1.0},
        )


def _same_as_grpo(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.estimator == "grpo" or d.same_as_grpo is None or d.same_as_grpo < thresholds.same:
        return
    yield Finding(
        Kind.SAME_AS_GRPO,
        Severity.NOTE,
        (),
        f"the advantages are GRPO's but for their size: the correlation is {d.same_as_grpo:.4f}",
        "none needed; a difference takes two rewards that vary, and not always by the same amount",
        {"same_as_grpo": d.same_as_grpo},
    )


_USE = "none needed: it shows what the estimator is there for"
_USE_IF_ALL = (
    "none needed, if the advantages were made of these rewards and weights; if of others, name them"
)


def _merged(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.distinct is None or d.distinct_grpo is None:
        return
    if d.distinct_grpo <= thresholds.merged * d.distinct:
        yield Finding(
            Kind.MERGED,
            Severity.NOTE,
            (),
            f"GRPO would tell {d.distinct_grpo:.1f} advantages apart in a group of {d.samples}, "
            f"where there are {d.distinct:.1f} here",
            _USE if d.estimator is not None else _USE_IF_ALL,
            {"distinct": d.distinct, "distinct_grpo": d.distinct_grpo},
        )
