"""Whether `gdpo analyze` reads the rollout files that people write: a known run in many layouts.

    python benchmarks/layouts.py --layouts 60 --seed 0

Each layout stores a run whose rewards, weights and groups are known: rewards in objects, columns,
lists, pairs or JSON text, under names of the field; a total that is a sum, a weighted sum, a
product, or none; group ids that are unique, restart or are missing; numbers that are no rewards
(lengths, times, counts, flags, predictions, columns of the dataset, copies); turns as rows; JSONL,
CSV or parquet. A layout is read right if rewards, weights, groups and influence shares are those of
the run. It is refused if the exit code is 2 and each printed command succeeds with the rewards that
it lists. Anything else is wrong. The exit code is 1 if a layout is wrong.
"""

import argparse
import contextlib
import io
import json
import shlex
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.cli import main as gdpo

NAMES = (
    *("accuracy", "correctness", "format", "style", "tests_passed", "bugs", "length_penalty"),
    *("tool_call", "judge", "safety", "helpfulness", "brevity", "citations", "exact_match"),
    *("reasoning", "language_consistency", "code_quality", "syntax", "politeness"),
)
WEIGHTS = (1.0, 1.0, 0.1, 0.5, 2.0, 0.2, -0.5)
CONTAINERS = (
    *("rewards", "reward", "scores", "reward_components", "components", "score_breakdown"),
    *("reward_dict", "individual_rewards", "rewardComponents", "reward_scores"),
)
TOTALS = ("reward", "score", "total_reward", "total", "final_reward", "overall_score")
PROMPTS = ("prompt", "question", "query", "problem", "input")
COMPLETIONS = ("completion", "response", "output", "generation")
STEPS = ("step", "global_step", "iteration", "training_step", "iter")
IDS = ("group_id", "uid", "prompt_id", "problem_id", "question_id", "group")


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


CONVENTIONS = {
    "plain": str,
    "camelCase": camel,
    "reward_": lambda name: f"reward_{name}",
    "rewards/": lambda name: f"rewards/{name}",
    "score.": lambda name: f"score.{name}",
    "_reward": lambda name: f"{name}_reward",
    "_score": lambda name: f"{name}_score",
    "_fn": lambda name: f"{name}_fn",
    "Reward": lambda name: camel(f"{name}_reward"),
}


@dataclass
class Layout:
    """Stores how a run is written, and what is true of it."""

    rows: list
    names: list
    weights: list
    kind: str
    truth: list
    what: dict = field(default_factory=dict)
    copies: dict = field(default_factory=dict)


def values_of(rng, kind, level, size):
    """Return the rewards of a group, whose prompt is easy or hard."""
    if kind == "truth":
        return (rng.random(size) < level).astype(float)
    if kind == "steps":
        return rng.integers(0, 5, size) / 4
    if kind == "small":
        return np.round(rng.random(size) * 0.05, 5)
    return np.round(rng.normal(level, 0.4, size), 4)


def a_run(rng, rewards):
    """Return the rollouts of a run as (step, prompt, sample, rewards)."""
    size, prompts = int(rng.choice([4, 8])), int(rng.integers(4, 9))
    kinds = rng.choice(["truth", "truth", "steps", "small", "normal"], rewards)
    kinds[0] = "truth"
    for step in range(int(rng.integers(10, 15))):
        for prompt in range(prompts):
            values = [values_of(rng, kind, rng.uniform(0.2, 0.8), size) for kind in kinds]
            for sample in range(size):
                yield step, prompt, sample, [float(value[sample]) for value in values]


def monitors(rng, first):
    """Return numbers that people log beside the rewards, by name."""
    length = int(rng.integers(20, 900))
    return {
        "response_length": length,
        "num_tokens": length // 3,
        "gen_time_s": float(rng.uniform(1, 9)),
        "kl": float(rng.normal(0.02, 0.01)),
        "logprob_mean": float(rng.normal(-1, 0.1)),
        "truncated": bool(rng.random() < 0.2),
        "n_tool_calls": int(rng.integers(0, 4)),
        "pred": int(rng.integers(0, 99)),
        "acc": first,
        "latency_ms": float(rng.uniform(90, 900)),
        "num_turns": int(rng.integers(1, 5)),
        "is_finished": bool(rng.random() < 0.9),
        "retries": int(rng.integers(0, 3)),
        "entropy": float(rng.uniform(0.1, 2)),
        "temperature": float(rng.choice([0.7, 1.0])),
        "case_idx": int(rng.integers(0, 3)),
    }


def dataset(rng):
    """Return numbers of a row of a dataset, by name."""
    return {
        "difficulty": float(rng.random()),
        "answer_value": float(rng.integers(0, 99)),
        "level": int(rng.integers(1, 6)),
        "pass_rate_before": float(np.round(rng.random(), 3)),
        "num_choices": int(rng.integers(2, 6)),
        "author_rating": float(np.round(rng.uniform(1, 5), 2)),
    }


def total_of(rng, how, values, weights):
    if how == "product":
        return float(np.prod(values))
    found = float(np.dot(values, weights))
    return found if rng is None else round(found, 6)


def stored(shape, container, names, values):
    """Return the fields of a rollout that store its rewards."""
    named = dict(zip(names, values, strict=True))
    if shape == "flat":
        return named
    forms = {
        "nested": named,
        "list": list(values),
        "named list": list(values),
        "objects": [{"name": n, "value": v} for n, v in named.items()],
        "pairs": [[n, v] for n, v in named.items()],
        "json": json.dumps(named),
        "texts": {n: str(v) for n, v in named.items()},
    }
    more = {"reward_names": list(names)} if shape == "named list" else {}
    return {container: forms[shape], **more}


def turns_of(rng, record, prompt, completion):
    """Return the rows of one rollout, each of which is a turn whose prompt is the talk so far."""
    said = record[prompt]
    for turn in range(int(rng.integers(1, 4))):
        yield record | {prompt: said, completion: f"a{turn}", "turn": turn}
        said += f" | a{turn} | {rng.random():.4f}"


def forms_of(rng):
    """Return how rewards are stored, and the kind of file, which must be able to store that."""
    shapes = ["flat", "flat", "flat", "nested", "nested", "list", "named list", "objects", "pairs"]
    shape = str(rng.choice([*shapes, "json", "texts"]))
    file = str(rng.choice(["jsonl", "jsonl", "csv", "parquet"]))
    if file == "csv" and shape not in ("flat", "json"):
        file = "jsonl"
    return shape, "jsonl" if file == "parquet" and shape == "pairs" else file


def a_layout(seed):  # noqa: PLR0915 (one draw for each part of a layout)
    """Return a layout that a seed determines."""
    rng = np.random.default_rng([58, seed])
    number = int(rng.integers(2, 4))
    plain = [str(n) for n in rng.choice(NAMES, number, replace=False)]
    shape, file = forms_of(rng)
    convention = str(rng.choice(list(CONVENTIONS)))
    names = [CONVENTIONS[convention](name) for name in plain] if shape == "flat" else plain
    how = str(rng.choice(["sum", "weighted", "weighted", "product", "none", "none"]))
    weights = [float(w) for w in rng.choice(WEIGHTS, number, replace=False)]
    weights = weights if how == "weighted" else [1.0] * number
    container = str(rng.choice(CONTAINERS))
    total = str(rng.choice([t for t in TOTALS if t != container]))
    ids = str(rng.choice(["none", "unique", "restart", "restart, no step", "worker"]))
    turns = bool(rng.random() < 0.12) and ids in ("unique", "restart")
    field_of = {k: str(rng.choice(v)) for k, v in FIELDS.items()}
    beside = list(monitors(rng, 0.0))
    beside = [str(n) for n in rng.choice(beside, int(rng.integers(1, 5)), replace=False)]
    if shape != "flat" or convention == "plain":
        beside = [name for name in beside if name != "acc" or "accuracy" in names]
    of_data = [
        str(n) for n in rng.choice(list(dataset(rng)), int(rng.integers(0, 3)), replace=False)
    ]
    rounded = rng if rng.random() < 0.5 else None
    rows, truth, columns = [], [], {}
    for step, prompt, sample, values in a_run(rng, number):
        key = (step, prompt)
        if sample == 0:
            columns = dataset(rng)
        text = f"{field_of['prompt']} {step}-{prompt}: what is {step * 31 + prompt}?"
        group = {
            "none": {},
            "unique": {field_of["id"]: f"{step}-{prompt}"},
            "restart": {field_of["id"]: prompt},
            "restart, no step": {field_of["id"]: prompt},
            "worker": {field_of["id"]: prompt // 2, "rank": prompt % 2},
        }[ids]
        record = {} if ids == "restart, no step" else {field_of["step"]: step}
        record |= group | {field_of["prompt"]: text}
        logged = monitors(rng, values[0])
        rest = {name: logged[name] for name in beside} | {name: columns[name] for name in of_data}
        rest |= stored(shape, container, names, values)
        if how != "none":
            rest[total] = total_of(rounded, how, values, weights)
        completion = field_of["completion"]
        if turns:
            place = {"rollout_id": f"{step}-{prompt}-{sample}"}
            rows += turns_of(rng, record | place | rest, field_of["prompt"], completion)
        else:
            rows.append(record | {completion: f"answer {sample}"} | rest)
        truth.append(
            {"step": 0 if ids == "restart, no step" else step, "group": f"{key}"}
            | {f"t{k}": value for k, value in enumerate(values)}
        )
    what = {"shape": shape, "names": convention if shape == "flat" else container, "total": how}
    what |= {"called": total if how != "none" else "", "ids": ids, "turns": turns, "file": file}
    listed = [str(k) for k in range(number)] if shape == "list" else names
    listed = [name.split(".", 1)[-1].removeprefix("rewards/") for name in listed]
    return Layout(rows, listed, weights, file, truth, what | {"beside": [*beside, *of_data]})


FIELDS = {"prompt": PROMPTS, "completion": COMPLETIONS, "step": STEPS, "id": IDS}


def written(folder, stem, kind, records):
    path = Path(folder, f"{stem}.{kind}")
    if kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "csv":
        import pandas as pd

        pd.DataFrame(records).to_csv(path, index=False)
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    return path


def said(*arguments):
    """Return the exit code, stdout and stderr of a command of gdpo."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            gdpo([str(argument) for argument in arguments])
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return code, out.getvalue(), err.getvalue()


def shares(found):
    """Return weight share, influence share and its margin of each reward."""
    (run,) = found["runs"]
    return {
        each["name"]: (
            each["weight_share"],
            each["influence_share"] or 0,
            each["influence_margin"] or 0,
        )
        for each in run["rewards"]
    }


def truth_of(layout, folder):
    path = written(folder, "truth", "jsonl", layout.truth)
    names = [f"t{k}" for k in range(len(layout.names))]
    weights = ",".join(f"{n}={w}" for n, w in zip(names, layout.weights, strict=True))
    options = ("--rewards", ",".join(names), "--weights", weights, "--columns", "group=group")
    code, out, err = said("analyze", path, *options, "--output", "json")
    assert code == 0, err
    return json.loads(out)


def wrong_in(found, layout, true):
    """Return what is wrong in an analysis of a layout. Empty: nothing."""
    read = shares(found)
    wanted = dict(zip(layout.names, shares(true).values(), strict=True))
    if set(read) != set(wanted):
        return f"rewards {sorted(read)}, not {sorted(wanted)}"
    if found["groups"]["sizes"] != true["groups"]["sizes"]:
        return f"groups {found['groups']['sizes']}, not {true['groups']['sizes']}"
    for name, (weight, share, margin) in wanted.items():
        if abs(read[name][0] - weight) > 0.005:
            return f"weight share of {name} {read[name][0]:.3f}, not {weight:.3f}"
        if abs(read[name][1] - share) > max(read[name][2], margin, 0.01):
            return f"influence of {name} {read[name][1]:.2f}, not {share:.2f}"
    return ""


def judged(layout, folder):
    """Return `right`, `refused` or `wrong`, with the reason."""
    path = written(folder, "run", layout.kind, layout.rows)
    true = truth_of(layout, folder)
    code, out, err = said("analyze", path, "--output", "json")
    if code == 0:
        why = "a product is no sum" if layout.what["total"] == "product" else ""
        why = why or wrong_in(json.loads(out), layout, true)
        return ("wrong", why) if why else ("right", "")
    if code != 2:
        return "wrong", f"exit code {code}: {err[-300:]}"
    commands = [line for line in err.splitlines() if line.startswith("gdpo ")]
    if not commands:
        return "wrong", f"no command: {err[-300:]}"
    good = False
    for line in commands:
        command = shlex.split(line)[1:]
        code, out, err = said(*command, "--output", "json")
        if code != 0:
            return "wrong", f"{line} fails: {err[-200:]}"
        found = json.loads(out)
        names = (
            command[command.index("--rewards") + 1].split(",") if "--rewards" in command else None
        )
        if names is not None and list(shares(found)) != names:
            return "wrong", f"{line} reads {list(shares(found))}"
        good |= not wrong_in(found, layout, true)
    return ("refused", "") if good else ("wrong", f"no command reads the rewards: {commands}")


def judge(seed):
    """Return the verdict on the layout of a seed, the reason, and the layout."""
    layout = a_layout(seed)
    with tempfile.TemporaryDirectory() as folder:
        return *judged(layout, folder), layout


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = Counter()
    for seed in range(options.seed, options.seed + options.layouts):
        verdict, why, layout = judge(seed)
        counts[verdict] += 1
        what = ", ".join(f"{k} {v}" for k, v in layout.what.items() if v)
        shown = {"right": "read right", "refused": "refused, its commands work", "wrong": "WRONG"}
        print(f"{seed:4} {shown[verdict]}{': ' if why else ''}{why} ({what})", flush=True)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("right", "refused", "wrong")))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
