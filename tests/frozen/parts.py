"""The parts of the package whose outputs are compared: what each prints, computes or writes.

Only the command line and public names are used, so that a part runs on any commit.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import gdpo

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN = ("rollouts/readers/golden", "analysis/logs/golden", "analysis/logs/golden_forms")
TRAININGS: dict[str, tuple[str, ...]] = {
    "gdpo": (),
    "grpo": ("advantage=grpo",),
    "per_reward_batch_std": ("advantage=per_reward_batch_std",),
    "dara": ("advantage=dara_symmetric",),
    "constrained": ("advantage=constrained_grpo", "advantage_options={targets: {brevity: 0.9}}"),
    "schedule": ("rewards.1.weight={from: 1.0, to: 0.2, steps: 3}",),
    "gate": ("rewards.1.gate={on: correctness, at_least: 1}",),
    "watched": ("rewards=[{name: correctness}, {name: my_rewards:brevity, watch: true}]",),
    "two_steps": ("batch.rollouts_per_step=8", "trainer.num_iterations=2"),
    "kl": ("trainer.beta=0.04", "trainer.loss_type=grpo"),
    "micro": ("batch.micro_batch=4", "trainer.gradient_checkpointing=true"),
}
"""Tiny trainings of the starter project: what each sets."""
VARYING = re.compile(r"_time$|runtime|per_second|memory|^perf/|/seconds")
"""Names of metrics that no two runs share."""


def run(*arguments):
    """Return the exit code and everything that a command prints."""
    from gdpo.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    return f"exit code {code}\n{printed.getvalue()}"


def train(*changes):
    """Train the starter project for three steps, and return what is printed."""
    small = ("trainer.max_steps=3", "batch.prompts=4", "batch.samples=4", "batch.micro_batch=8")
    return run("train", "recipe.yaml", *(x for c in (*small, *changes) for x in ("--set", c)))


def analyze():
    """Every golden file, as JSON and as the page's summary, with and without other estimators."""
    for folder in GOLDEN:
        for path in sorted(TESTS.joinpath(folder).iterdir()):
            for options in (
                (
                    "--output",
                    "json",
                ),
                ("--output", "json", "--estimators", "grpo,gdpo"),
                (),
            ):
                name = f"{folder}/{path.name} {' '.join(options)}"
                yield name, run("analyze", str(path), *options)


def estimators():
    """Every estimator on random, missing, constant and padded rewards, as exact floats."""
    from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS

    random = np.random.default_rng(0)
    plain = random.normal(size=(6, 4, 3)) * [1.0, 10.0, 0.1]
    binary = (random.random((6, 4, 3)) < [0.5, 0.1, 0.9]).astype(float)
    missing = np.where(random.random((6, 4, 3)) < 0.2, np.nan, plain)
    constant = plain * [1.0, 0.0, 1.0]
    padded = plain.copy()
    padded[3:, 2:] = np.nan
    cases = {"plain": plain, "binary": binary, "missing": missing, "constant": constant}
    weights = np.array([1.0, 0.5, 2.0])
    for name, estimator in ESTIMATORS.items():
        for case, rewards in {**cases, "padded": padded}.items():
            yield f"{name} {case}", exact(estimator, rewards, weights)
    turns = random.integers(1, 4, size=(6, 4))
    for name, estimator in TURN_ESTIMATORS.items():
        for case, rewards in cases.items():
            of_turns = np.stack([rewards, rewards[::-1], rewards[:, ::-1]], axis=2)
            yield f"{name} {case}", exact(estimator, of_turns, weights, turns=turns)


def exact(compute, *given, **options):
    """Return every number in hexadecimal, or the error."""
    try:
        return "\n".join(
            value.hex() for value in np.asarray(compute(*given, **options), float).ravel().tolist()
        )
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def trainings():
    """Tiny trainings: all metrics, recorded numbers and texts, and the digest of the weights."""
    import pyarrow.parquet as pq

    run("init")
    for name, values in TRAININGS.items():
        printed = train(f"name={name}", *values)
        folder = Path("runs", name)
        if not (folder / "metrics.jsonl").exists():
            yield name, printed
            continue
        for line in folder.joinpath("metrics.jsonl").read_text(encoding="utf-8").splitlines():
            row = {k: v for k, v in json.loads(line).items() if not VARYING.search(k)}
            yield f"{name} metrics {row.get('step')}", json.dumps(row, indent=0)
        for file in sorted(folder.rglob("*.parquet")):
            table = pq.read_table(file)
            rows = table.drop_columns([c for c in ("run",) if c in table.column_names]).to_pylist()
            yield f"{name} {file.relative_to(folder)}", "\n".join(map(str, rows))
        for file in sorted(folder.joinpath("model").glob("*.safetensors")):
            yield f"{name} weights", hashlib.sha256(file.read_bytes()).hexdigest()


def checks():
    """`gdpo check` of the starter project and of broken recipes, with what each error says."""
    run("init")
    broken = {
        "as it is": (),
        "estimator": ("advantage=gdop",),
        "reward": ("rewards.1.name=brevty",),
        "batch": ("batch.rollouts_per_step=7",),
        "option": ("advantage_options={epsilon: 1}",),
        "field": ("trainer.max_step=3",),
        "value": ("trainer.learning_rate=fast",),
        "weight": ("rewards.1.weight=.inf",),
        "data": ("data.source=nowhere.jsonl",),
        "model": ("model=./nowhere",),
        "loss": ("trainer.loss_type=unknown",),
    }
    for name, values in broken.items():
        yield name, run("check", "recipe.yaml", *(x for v in values for x in ("--set", v)))
    for recipe in sorted(ROOT.glob("recipes/*/recipe.yaml")):
        yield recipe.parent.name, run("check", str(recipe), "--rows", "20")


def pages():
    """The pages of the example, of a run and of rollouts with turns."""
    yield "printed", run("analyze", "--example", "--output", "example.html")
    run("init")
    train("name=a")
    yield "report", run("report", "runs/a", "--output", "run.html")
    golden = TESTS / "rollouts/readers/golden"
    run("analyze", str(golden), "--output", "golden.html")
    for page in sorted(Path().glob("*.html")):
        yield page.name, page.read_text(encoding="utf-8")


def help():
    """The help of every command."""
    printed = run("--help")
    yield "gdpo", printed
    verbs = re.findall(r"^│ ([a-z]+) ", printed, re.MULTILINE)
    for verb in verbs:
        yield verb, run(verb, "--help")
    for verb in ("ls", "show", "copy"):
        yield f"recipes {verb}", run("recipes", verb, "--help")


def placeless(text):
    """Return a text without the paths of the folder and the tree, which differ from run to run."""
    text = text.replace("<wbr>", "")
    for tree in (Path(gdpo.__file__).parents[2], ROOT):
        text = text.replace(str(tree), "TREE")
    return text.replace(str(Path.cwd()), "FOLDER")


PARTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    part.__name__: part for part in (analyze, estimators, trainings, checks, pages, help)
}


if __name__ == "__main__":
    part, path = sys.argv[1:]
    found = {name: placeless(text) for name, text in PARTS[part]()}
    Path(path).write_text(json.dumps(found), encoding="utf-8")
