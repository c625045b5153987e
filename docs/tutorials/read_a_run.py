# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Read what each reward of a run did
#
# This tutorial shows which reward drove a training run and which reward was ignored. It needs no GPU
# and no torch, and takes a minute.
#
# The rollouts come with the package. A small policy learned tool calls with GRPO for 30 steps of
# 16 prompts x 8 samples. It had two rewards of the same weight: `correctness` (−3 to 3) and
# `brevity` (0 to 1).
#
# ## One command
#
# For a run of your own, replace `--example` by the folder of its rollout files. The format is
# detected: TRL's completions, verl's `rollout_data_dir`, ms-swift, NeMo-RL and
# [others](../reference/rollout_formats.md).

# %% language="bash"
# gdpo analyze --example --output rewards.html

# %% [markdown]
# Read the table first. Both rewards have 50 % of the weight, and `correctness` has nearly all of the
# influence: the updates raise `correctness`, and almost nothing raises `brevity`. GRPO adds the
# rewards before it normalizes the sum, so the reward with the larger standard deviation dominates.
#
# Then read the findings. Each finding names the reward, the evidence, and after the arrow what to do.
# The page `rewards.html` shows the same with curves, and the rollouts with their advantages.
#
# ## The same numbers in Python
#
# `analyze` reads the rollouts step by step. `as_dict` returns what `gdpo analyze --json` prints.

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
# ## Would another estimator have changed this run?
#
# `--estimators` computes the advantages of the same rollouts with other estimators. It answers
# whether a new run with GDPO is worth its price, before you pay for it.

# %% language="bash"
# gdpo analyze --example --estimators recorded,grpo,gdpo --no-report

# %% [markdown]
# `grpo` reproduces the recorded advantages. `gdpo` changes every step: some rollouts get an advantage
# with the other sign. The comparison says how much would change. It does not say which result is
# better: that takes [training runs](compare_estimators.py).
#
# ## What to read next
#
# - [Do I need this?](../do_i_need_this.md) lists the cases in which nothing changes.
# - [Analyze a run](../how-to/analyze.md) explains every column and finding.
# - [Switch a TRL script](switch_a_trl_script.py) trains with GDPO.
