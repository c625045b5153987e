# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Compare two estimators honestly
#
# Two runs with one seed each differ even if the estimator is the same. This tutorial compares GRPO
# and GDPO with ten seeds each, and shows a difference that is certain and one that is not. It needs
# no GPU and no torch, and takes 20 seconds.
#
# ## Problems whose answer is known
#
# A [toy](../reference/toys.md) is a policy with a few parameters and two or more rewards. Its
# gradient can be computed exactly. A run takes milliseconds.

# %%
from gdpo.experiments.toys import TOYS, suite, table

chosen = [TOYS["opposed"], TOYS["ten_rewards"], TOYS["escape"]]
experiments = suite(["grpo", "gdpo"], range(10), toys=chosen, processes=1)
print(table(experiments))

# %% [markdown]
# A cell shows the step at which the reward reached 80 % of its range: the median, then the range
# over the ten seeds.
#
# - `opposed`: two rewards exclude each other. GRPO learns the reward with the larger range in every
#   seed, GDPO the reward with the larger weight in every seed. The difference is certain.
# - `ten_rewards`: one reward has a large range, nine have a small one. GDPO reaches the large one
#   later and the median of each small one earlier. The ranges over the seeds overlap.
# - `escape`: the ranges are the same. Ten seeds show no difference here.
#
# ## What a plan can decide
#
# Ask before you train. `--dry-run` prints the runs of a comparison and what they can show. Here three
# seeds for each estimator are too few: no result of these runs could be called a difference.

# %% language="bash"
# gdpo recipes copy gsm8k gsm8k
# gdpo compare gsm8k --estimators grpo,gdpo --seeds 3 --dry-run

# %% [markdown]
# Without `--dry-run` the same command trains the runs, resumes after an interruption, and writes a
# report with every seed, intervals and a conclusion. It says "no difference" where the runs show
# none.
#
# ## What to read next
#
# - [Compare estimators](../how-to/compare.md) lists the options and the statistics.
# - [The study](../study.md) shows for which starts and learning rates the two differ.
