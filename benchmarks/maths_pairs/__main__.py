r"""How many right answers the reward for maths refuses, and how many wrong ones it pays.

    python -m benchmarks.maths_pairs [--show]

The pairs stand in `deserving.txt` and `undeserving.txt`: a row's answer, `;;`, and what a model has
in its box. Undeserving ones under a heading `# documented:` are paid by a sentence of the
docstring of `gdpo.rewards.maths`. With `--show` prints each pair that is judged otherwise.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from gdpo.rewards.maths import maths_answer

HERE = Path(__file__).parent


def pairs(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield each pair of a table: its heading, the row's answer, the model's."""
    heading = ""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line.removeprefix("# ")
        else:
            gold, _, answer = line.partition(";;")
            yield heading, gold.strip(), answer.removeprefix(" ")


def judged(name: str, score: float) -> tuple[list[tuple[str, str, str]], int]:
    """Return the pairs of a table that do not get a score, and how many pairs there are."""
    reward = maths_answer().function
    table = list(pairs(name))
    wrong = [
        (heading, gold, answer)
        for heading, gold, answer in table
        if reward(rf"\boxed{{{answer}}}", {"answer": gold}) != score
    ]
    return wrong, len(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true")
    show = parser.parse_args().show
    refused, deserving = judged("deserving", 1.0)
    paid, undeserving = judged("undeserving", 0.0)
    told = [pair for pair in paid if pair[0].startswith("documented:")]
    print(
        f"deserving refused {len(refused)} of {deserving}, "
        f"undeserving paid {len(paid)} of {undeserving}, of these documented {len(told)}"
    )
    for word, wrong in (("refused", refused), ("paid", [p for p in paid if p not in told])):
        for heading, gold, answer in wrong if show else ():
            print(f"{word}: row {gold}, answer {answer} ({heading})")


if __name__ == "__main__":
    main()
