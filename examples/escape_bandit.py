"""The escape bandit: how many steps does a rare format need alongside dense correctness?

    python examples/escape_bandit.py --output escape_bandit.png > escape_bandit.md
    python examples/escape_bandit.py --estimators grpo,my_module:mine --seeds 5

Prints a table and draws the share of seeds that have not learned the format, by step. The bandit
models the start of a tool-calling run: 0.6 % of the responses have the format, all of them have a
correctness from -3 to 3, and an estimator sees four samples per prompt.

A response is two choices: with or without the format, and one of seven correctness values. One
vector of 16 parameters makes both choices on all prompts. The logit of a choice is the product of
the parameters and its features: a direction for each reward (random by seed, at right angles) times
the value of the choice, plus noise of the same length, drawn again for each prompt. Neither reward
helps the other, and the noise of each disturbs both.

A step uses 64 new prompts, one policy gradient without clipping or KL, and Adam, which ignores a
constant factor of the advantages. Its learning rate was chosen with the format as the only reward
(first row of the table), before any estimator was run on both rewards. A reward is learned when the
policy's mean over the prompts of a step reaches 80 % of the reward's range. With the same seed, all
estimators get the same random numbers.
"""

import argparse
import math
from functools import partial
from inspect import signature

import numpy as np

from gdpo.advantages import ESTIMATORS, grpo, resolve_estimator
from gdpo.errors import MissingExtraError
from gdpo.report.colours import styles

CORRECTNESS = np.arange(-3.0, 4.0)
RANGES = {"low": (0.0, -3.0), "high": (1.0, 3.0)}
LEARNED, SAMPLES, FEATURES = np.array([0.8, 1.8]), 4, 16


def steps_to_learn(estimator, seed, *, steps, prompts, learning_rate, format_weight, start=0.006):
    """Return the steps until format and correctness are learned; infinity: not within `steps`."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(FEATURES, 2)))[0].T
    worth = np.vstack([directions[0], np.outer(CORRECTNESS / 3, directions[1])])
    parameters, moments, reached = np.zeros(FEATURES), np.zeros((2, FEATURES)), [math.inf] * 2
    for step in range(steps + 1):
        features = worth + rng.normal(size=(prompts, *worth.shape)) / math.sqrt(FEATURES)
        odds = np.exp(features @ parameters)
        p_format = start * odds[:, 0] / (1 - start + start * odds[:, 0])
        p_correct = odds[:, 1:] / odds[:, 1:].sum(axis=1, keepdims=True)
        means = p_format.mean(), (p_correct @ CORRECTNESS).mean()
        reached = np.where(np.isinf(reached) & (means >= LEARNED), step, reached)
        if step == steps or np.isfinite(reached).all():
            break
        formatted = rng.random((prompts, SAMPLES)) < p_format[:, None]
        level = (rng.random((prompts, SAMPLES, 1)) > p_correct.cumsum(1)[:, None, :-1]).sum(axis=2)
        advantages = estimator(
            np.stack([formatted, CORRECTNESS[level]], axis=2), (format_weight, 1.0)
        )
        # The gradient of the log-probability: the choice minus its expectation.
        chosen = np.concatenate([formatted[..., None], level[..., None] == np.arange(7)], axis=2)
        surprise = chosen - np.column_stack([p_format, p_correct])[:, None, :]
        push = (advantages[..., None] * surprise).sum(axis=1) / advantages.size
        parameters += adam(np.tensordot(push, features, 2), moments, step + 1) * learning_rate
    return reached


def adam(gradient, moments, step):
    """Return the direction of the update. Changes the moments in place."""
    moments += np.array([[0.1], [0.001]]) * (np.stack([gradient, gradient**2]) - moments)
    return moments[0] / (1 - 0.9**step) / (np.sqrt(moments[1] / (1 - 0.999**step)) + 1e-8)


def with_ranges(estimator):
    """Return the estimator with the rewards' ranges bound. None: it needs other options."""
    options = signature(estimator).parameters.values()
    needed = {o.name for o in options if o.kind is o.KEYWORD_ONLY and o.default is o.empty}
    given = {name: RANGES[name] for name in needed & set(RANGES)}
    return partial(estimator, **given) if set(given) == needed else None


def median(steps):
    """Return the first step at which half of the seeds had learned the reward."""
    return np.sort(steps, axis=-1)[..., (np.shape(steps)[-1] - 1) // 2]


def interval_of_share(count, of):
    """Return the exact 95 % interval of a share (Clopper and Pearson), to three decimals."""
    p = np.linspace(0, 1, 1001)
    chance = [math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(of + 1)]
    return p[(sum(chance[: count + 1]) >= 0.025) & (sum(chance[count:]) >= 0.025)][[0, -1]]


def row(name, result, limit):
    """Return a line of the table. The median's interval is a bootstrap over the seeds."""

    def span(*steps):
        return " to ".join(f"{step:.0f}" if step <= limit else f">{limit}" for step in steps)

    formats, corrects = result.T
    draws = np.random.default_rng(0).choice(formats, (10_000, len(formats)))
    never, seeds = np.isinf(formats).sum(), len(formats)
    share = "{} of {} ({:.0%} to {:.0%})".format(never, seeds, *interval_of_share(never, seeds))
    medians = f"{span(median(formats))} | {span(*np.sort(median(draws))[[250, 9749]])}"
    figures = [medians, span(min(formats), max(formats)), share, span(median(corrects))]
    return f"| {name} | {' | '.join(figures)} |"


def draw(path, results, limit):
    """Draw the share of seeds that have not learned the format yet, one panel per estimator."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "to draw the curves") from error
    figure = Figure(figsize=(10.5, 1.6 + 0.4 * len(results)), dpi=150, layout="constrained")
    figure.suptitle("Share of the seeds that have not learned the format yet", weight="bold")
    looks = styles([*results, "grpo", "gdpo"])
    axes = figure.subplots(-(-len(results) // 4), 4, sharex=True, sharey=True, squeeze=False).flat
    for axis, (name, result) in zip(axes, results.items(), strict=False):
        for other, width in (("grpo", 1), ("gdpo", 1), (name, 2)):
            steps = np.sort([0, *results.get(other, result)[:, 0].clip(max=2 * limit)])
            look = {"color": looks[other].light, "linewidth": width}
            if other != name:
                look["linestyle"] = ":" if other == "grpo" else "--"
            axis.step(steps, np.linspace(1, 0, len(steps)), where="post", **look)
        axis.set(xlim=(0, limit), ylim=(0, 1.04))
        axis.set_title(name, fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("optimizer step (dotted: grpo, dashed: gdpo)", fontsize=9)
    figure.savefig(path)


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    toy = {"steps": 300, "prompts": 64, "learning_rate": 0.02, "format_weight": 1.0}
    rest = {"estimators": ",".join(ESTIMATORS), "seeds": 20, "output": "escape_bandit.png"}
    for name, value in {**rest, **toy}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    options = parser.parse_args()
    estimators = {"format alone (grpo)": lambda rewards, _: grpo(rewards, (1.0, 0.0))}
    for name in options.estimators.split(","):
        estimators[name] = with_ranges(resolve_estimator(name))
    print("| estimator | median | 95 % | range | never (95 %) | correctness |\n" + "|---" * 6 + "|")
    toy = {name: getattr(options, name) for name in toy}
    results, seeds = {}, range(options.seeds)
    for name, estimator in estimators.items():
        if estimator is None:
            print(f"| {name} | left out: needs its own options | | | | |")
            continue
        results[name] = np.array([steps_to_learn(estimator, seed, **toy) for seed in seeds])
        print(row(name, results[name], options.steps), flush=True)
    draw(options.output, results, options.steps)


if __name__ == "__main__":
    main()
