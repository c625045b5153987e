# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Find out which reward was ignored
#
# This tutorial analyzes the rollouts of a finished training run: how much each reward influenced
# the updates, and which reward was ignored. It needs no GPU and no torch, and takes one minute.
#
# The rollouts come with the package. A small policy was trained on tool calls with GRPO for 30 steps
# of 16 prompts × 8 samples, with two equally weighted rewards: `correctness` (−3 to 3) and
# `brevity` (1 − tokens / 40).
#
# ## Run one command
#
# For a run of your own, replace `--example` with the folder of its rollout files. The format is
# detected: TRL's completions, verl's `rollout_data_dir`, ms-swift, NeMo-RL and
# [others](../reference/rollout_formats.md).

# %% language="bash"
# gdpo analyze --example --output rewards.html

# %% [markdown]
# Read the table first. Both rewards have 50 % of the weight, but `correctness` has 96 % of the
# influence and `brevity` has 4 %. The updates raised `correctness` and hardly depended on `brevity`.
# The reason is that GRPO adds the rewards before it normalizes the sum, so the reward with the
# larger standard deviation within a group dominates.
#
# Then read the findings. Each finding names the reward and the evidence. The text after the arrow
# says what follows. The last line is the verdict. Both weights are 1, so it has two readings:
#
# - The rewards should count equally. Then train with `gdpo`. On the same groups, it would give
#   `brevity` 47 % of the influence. The table above the verdict shows the share of every reward.
# - The sizes say what matters: a range of 6 beside one of 1. Then there is nothing to do.
#
# Only you know which is right. Say it with `--weights` or `--sizes-are-weights`.

# %% language="bash"
# gdpo analyze --example --sizes-are-weights --output none | tail -n 1

# %% [markdown]
# The HTML page `rewards.html` adds curves over the steps, and rollouts with their advantages. The
# page starts like this:
#
# ![HTML page: brevity has 50 % of the weight and 4 % of the influence](../images/analyze_example.png)
#
# ## Get the same numbers in Python
#
# `analyze` reads the rollouts step by step. `as_dict` returns what `gdpo analyze --output json` prints.

# %%
from pathlib import Path

import gdpo.analysis
from gdpo.analysis import analyze, as_dict
from gdpo.rollouts.readers import read_rollout_files

example = Path(gdpo.analysis.__file__).with_name("example.parquet")
found = as_dict(analyze(read_rollout_files([example])))
(run,) = found["runs"]
for reward in run["rewards"]:
    print(
        reward["name"],
        f"weight {reward['weight_share']:.0%}, influence {reward['influence_share']:.0%}",
    )

# %% [markdown]
# ## Compute what another estimator would have changed
#
# `--estimators` computes the advantages of the same rollouts with other estimators. If nothing
# changes, a new run with that estimator is not worth its cost. The first estimator is the baseline;
# `recorded` means the advantages in the files.

# %% language="bash"
# gdpo analyze --example --estimators recorded,grpo,gdpo --output none

# %% [markdown]
# `grpo` reproduces the recorded advantages. `gdpo` differs on every step, and 17 % of the rollouts get
# an advantage with the opposite sign. The comparison shows how much would change. It does not
# show which estimator gives the better policy. For that, [compare training runs](compare_estimators.py).
#
# ## What to read next
#
# - [Do I need this?](../explanation/do_i_need_this.md) lists the cases in which nothing changes.
# - [Find out which reward is ignored](../how-to/analyze.md) explains every line of the output.
# - [Switch a TRL script](switch_a_trl_script.py) trains with GDPO.
