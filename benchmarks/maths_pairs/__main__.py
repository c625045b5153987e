r"""Counts how many correct answers the maths reward refuses, and how many wrong answers it accepts.

    python -m benchmarks.maths_pairs [--of trl] [--show]

`deserving.txt` and `undeserving.txt` hold the pairs: a reference answer, `;;`, and the content of a
model's box. Wrong answers under a heading `# documented:` are accepted because of a sentence in the
docstring of `gdpo.rewards.maths`. `--of trl` asks TRL's `accuracy_reward`, which is math-verify
alone, instead of our reward. `--show` prints every pair with an unexpected score.
"""

import argparse
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from gdpo.rewards.maths import maths_answer

HERE = Path(__file__).parent


def pairs(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield each pair of a table: its heading, the reference answer and the model's answer."""
    heading = ""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line.removeprefix("# ")
        else:
            gold, _, answer = line.partition(";;")
            yield heading, gold.strip(), answer.removeprefix(" ")


def ours(completion: str, gold: str) -> float | None:
    """Return the score of our reward."""
    return maths_answer().function(completion, {"answer": gold})


def trls(completion: str, gold: str) -> float | None:
    """Return the score of TRL's reward, which expects the reference answer in a box, too."""
    from trl.rewards import accuracy_reward

    return accuracy_reward([[{"content": completion}]], [rf"\boxed{{{gold}}}"])[0]


def unexpected(
    name: str, score: float, reward: Callable[[str, str], float | None] = ours
) -> tuple[list[tuple[str, str, str]], int]:
    """Return the pairs of a table that do not get this score, and the number of all pairs."""
    table = list(pairs(name))
    wrong = [pair for pair in table if reward(rf"\boxed{{{pair[2]}}}", pair[1]) != score]
    return wrong, len(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=("gdpo", "trl"), default="gdpo")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    logging.disable()  # math-verify logs each text that it cannot read
    reward, show = trls if options.of == "trl" else ours, options.show
    refused, correct = unexpected("deserving", 1.0, reward)
    accepted, wrong = unexpected("undeserving", 0.0, reward)
    documented = [pair for pair in accepted if pair[0].startswith("documented:")]
    print(
        f"refused {len(refused)} of {correct} correct answers, accepted {len(accepted)} of {wrong} "
        f"wrong answers, {len(documented)} of them documented"
    )
    others = [pair for pair in accepted if pair not in documented]
    for word, pairs_shown in (("refused", refused), ("accepted", others)):
        for heading, gold, answer in pairs_shown if show else ():
            print(f"{word}: reference {gold}, answer {answer} ({heading})")


if __name__ == "__main__":
    main()
