r"""Defines the maths task with a length limit: a short, correct answer in `\boxed{}`.

A completion consists of reasoning and the answer in a box, after any `</think>`. The rewards, in
order, are each 0 or 1:

- **correctness**: the answer in the last box is mathematically equal to the reference answer
  (`gdpo.rewards.maths.maths_answer`).
- **length**: the completion has at most 4,000 tokens (`gdpo.rewards.length.token_limit`).

For a different limit, or a length reward only for correct answers (the paper's Eq. 8), write in the
recipe:

```yaml
rewards:
  - {name: correctness}
  - {name: token_limit, options: {limit: 2000}, gate: {on: correctness, at_least: 1}}
```

The task reads rows of DeepScaleR, MATH, MATH-500, AIME and most other maths datasets:

- `problem` with `answer`, or with a `solution` whose last box contains the answer.
- `question` with `answer`, as in GSM8K, where the answer follows "####".
- `question` with a list `final_answer`, as in OlympiadBench: the answers are joined by commas, in
  any order. The columns `unit` and `error` (a tolerance in a few rows) are ignored.

If the answer is missing (as in four rows of MATH) or math-verify cannot parse it, the correctness
reward does not apply. `gdpo check` counts these rows. An evaluation lists them and counts them as
wrong.

The prompt is the problem with DeepSeek-R1's instruction to put the answer in a box, and without a
system message, as DeepSeek-R1 recommends.

The task needs the `math` extra.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.2.
    DeepSeek-R1, https://github.com/deepseek-ai/DeepSeek-R1#usage-recommendations.
"""

from gdpo._text import describe
from gdpo.errors import DataError
from gdpo.lab.tasks.rows import text_at, texts_in
from gdpo.rewards import Reference
from gdpo.rewards.length import token_limit
from gdpo.rewards.maths import boxed, maths_answer
from gdpo.rewards.task import Problem, Row, Task

_REQUEST = r"Please reason step by step, and put your final answer within \boxed{}."


def _read_row(row: Row) -> Problem:
    column = "problem" if row.get("problem") is not None else "question"
    problem, answer = text_at(row, column).strip(), _answer(row)
    prompt = [{"role": "user", "content": f"{problem}\n\n{_REQUEST}"}]
    return Problem(prompt, {"answer": answer})


def _answer(row: Row) -> str | None:
    if "answer" not in row and "final_answer" in row:
        answers = row["final_answer"]  # of OlympiadBench: a list that usually has one item
        texts = [] if answers is None else texts_in(answers, "final_answer")
        return ", ".join(text.strip() for text in texts) or None
    answer = row.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    if answer is None and row.get("solution") is not None:
        solved = boxed(text_at(row, "solution"))
        if not solved:
            raise DataError(
                r"column 'solution' must contain the answer in \boxed{}, or the row must have a "
                f"column 'answer'. It ends with {describe(text_at(row, 'solution')[-40:])}"
            )
        return solved
    if answer is None or answer == "":
        return None
    text = text_at(row, "answer")
    return (text.rpartition("####")[2] if "####" in text else text).strip()


def _gold_completion(reference: Reference) -> str | None:
    answer = reference["answer"]
    return None if answer is None else rf"<think>worked out</think> \boxed{{{answer}}}"


TASK = Task(
    name="math_length",
    columns=(
        ("problem", "answer"),
        ("problem", "solution"),
        ("question", "answer"),
        ("question", "final_answer"),
    ),
    read_row=_read_row,
    rewards=(maths_answer("boxed"), token_limit(4000)),
    gold_completion=_gold_completion,
    bad_completion="I would rather not say.",
    judges_every_row=("correctness",),
)
"""Maths task with a length limit."""
