"""Defines the coding task with three rewards: passed tests, length and no bug.

A completion contains a Python program (see `gdpo.lab.rewards.code.extract_code`), which runs in the
sandbox against the tests in its row. The rewards, in order:

- **pass_rate** in [0, 1]: share of the tests that passed.
- **length** in {0, 1}: the completion has at most 4,000 tokens.
- **no_bug** in {0, 1}: the program compiled, ran and stayed within its limits.

In the paper, the length reward counts only if every test passes. To reproduce this, add a gate:

```yaml
rewards:
  - {name: pass_rate}
  - {name: length, gate: {on: pass_rate, at_least: 1}}
  - {name: no_bug}
```

The task reads rows of MBPP (both editions), HumanEval, EvalPlus (MBPP+ and HumanEval+),
LeetCodeDataset, APPS, TACO, CodeContests and the coding part of Eurus-2-RL. The dataset is detected
from the columns of each row, so a file may mix several datasets. If a row contains a solution in
Python, `gdpo check` runs the solution and reports an error if any test fails.

The prompts are our own, because the paper's prompts are not published. For Eurus-2-RL, the prompts
in the rows are used.

The task needs the `code` extra.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.3.
"""

from gdpo.lab.rewards.code import no_bug, pass_rate
from gdpo.lab.tasks.coding._rows import COLUMNS, gold_completion, read_row
from gdpo.rewards.length import token_limit
from gdpo.rewards.task import Task

__all__ = ["TASK"]

TASK = Task(
    name="coding",
    columns=COLUMNS,
    read_row=read_row,
    rewards=(pass_rate, token_limit(4000), no_bug),
    gold_completion=gold_completion,
    bad_completion="I would rather not say.",
)
"""Coding task that scores each program with the tests in its row."""
