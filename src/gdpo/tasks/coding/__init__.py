"""Coding with three rewards: tests passed, a length, and no bug.

A completion holds a Python program (`gdpo.rewards.code.extract_code` says where); it runs in a
sandbox against the tests of its row. Rewards, in this order:

- **pass_rate** in [0, 1]: passed tests over all tests;
- **length** in {0, 1}: at most 4,000 tokens;
- **no_bug** in {0, 1}: it compiled, ran and stayed within its limits.

The paper's length counts only where every test passes: gate it.

```yaml
rewards:
  - {name: pass_rate}
  - {name: length, gate: {on: pass_rate, at_least: 1}}
  - {name: no_bug}
```

Rows are those of MBPP (both editions), HumanEval, EvalPlus (MBPP+ and HumanEval+),
LeetCodeDataset, APPS, TACO, CodeContests and Eurus-2-RL's coding part, told apart by their columns;
a file may mix them. Where a row brings a
solution in Python, `gdpo check` runs it: it must pass.

Prompts are ours: the paper's are not published. Eurus-2-RL's rows bring theirs.

It needs the extra `code`.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.3.
"""

from gdpo.rewards.code import no_bug, pass_rate
from gdpo.rewards.length import token_limit
from gdpo.tasks.coding._rows import COLUMNS, gold_completion, read_row
from gdpo.tasks.task import Task

__all__ = ["TASK"]

TASK = Task(
    name="coding",
    columns=COLUMNS,
    read_row=read_row,
    rewards=(pass_rate, token_limit(4000), no_bug),
    gold_completion=gold_completion,
    bad_completion="I would rather not say.",
)
"""Programs judged by the tests of their rows."""
