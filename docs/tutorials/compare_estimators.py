# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Compare two estimators
#
# Two runs with different seeds differ even if the estimator is the same. This tutorial compares
# GRPO and GDPO with ten seeds each. Some of the differences are clear, and others are not. The
# tutorial needs no GPU and no torch, and takes 20 seconds.
#
# ## Small problems
#
# A toy is a policy with a few parameters and one or more rewards. Its exact gradient is known, and a
# run takes well under a second. The toys are in a clone of the repository, with a description in
# `research/toys.md`.

# %% language="bash"
# python -m benchmarks.toys --estimators grpo,gdpo --seeds 10 --toys opposed,ten_rewards,escape

# %% [markdown]
# Each cell shows the step at which a reward reached 80 % of its range: the median and the range over
# the ten seeds.
#
# - `opposed`: the two rewards are exact opposites. In every seed, GRPO learns the reward with the
#   larger range, and GDPO learns the reward with the larger weight. This difference is clear.
# - `ten_rewards`: one reward has a large range, and nine have a small one. GDPO learns the reward
#   with the large range later. In the median, it learns the others earlier, but the ranges over the
#   seeds overlap.
# - `escape`: both estimators need about the same number of steps. Ten seeds show no difference.
#
# The line after each table is the conclusion, from confidence intervals and p-values.
#
# ## Check the number of seeds before you train
#
# `--dry-run` prints the planned runs and what they can show. Three seeds for each estimator are too
# few here: no p-value can be small enough, whatever the results are.

# %% language="bash"
# gdpo recipes copy gsm8k gsm8k
# gdpo compare gsm8k --estimators grpo,gdpo --seeds 3 --dry-run

# %% [markdown]
# Without `--dry-run`, the same command trains the runs and writes a report with a conclusion, every
# seed and confidence intervals. Rerun it to resume after an interruption.
#
# ## What to read next
#
# - [Compare estimators](../how-to/compare.md) describes the command.
# - [Statistics](../reference/statistics.md) explains how the figures are computed.
# - [The study](../explanation/study.md) shows when the two estimators differ.
