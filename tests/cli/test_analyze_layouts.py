"""What `gdpo analyze` takes for the rewards of files that no framework wrote.

Every layout is one that somebody would write without having read a page of ours. Each is read
right, or refused with a command to paste.
"""

import json
import shlex

import numpy as np
import pytest
from tests.cli.unknown_files import conclusion, write_unknown
from tests.rollouts.readers.written import rows as write_rows

from gdpo.rollouts.readers import read_rollout_files, read_texts

pytestmark = pytest.mark.usefixtures("here")


def numbers():
    """2 steps of 4 prompts of 4 samples: what may stand in a file of them, by name."""
    rng = np.random.default_rng(0)
    for place in range(32):
        acc, fmt, length = float(rng.integers(2)), rng.integers(5) / 4, float(rng.normal())
        yield {
            "prompt": f"q{place // 4}",
            "completion": "x" * (place % 7 + 1),
            "step": place // 16 + 1,
            "group": place // 4,
            "acc": acc,
            "fmt": fmt,
            "length": length,
            "sum": acc + fmt,
            "weighted": acc + 0.5 * fmt,
            "mean": (acc + fmt + length) / 3,
            "stray": float(rng.normal()),
            "tokens": int(rng.integers(5, 50)),
        }


def rows(make):
    return [make(n) for n in numbers()]


def texts(n):
    return {"prompt": n["prompt"], "completion": n["completion"]}


AB = {"a": "acc", "b": "fmt"}


def inside(key, names=AB, *, step=False, **more):
    """Rewards in an object of that name, and other numbers by their names."""

    def make(n):
        found = texts(n) | ({"step": n["step"]} if step else {})
        return (
            found | {key: {k: n[v] for k, v in names.items()}} | {k: n[v] for k, v in more.items()}
        )

    return make


def flat(names, *, prompt="prompt", completion="completion"):
    def make(n):
        return {prompt: n["prompt"], completion: n["completion"]} | {
            k: n.get(v, v) for k, v in names.items()
        }

    return make


SCORES = {"acc": "acc", "fmt": "fmt", "length": "length"}
PARTS = {"reward_acc": "acc", "reward_fmt": "fmt", "reward_len": "length"}


def expected(make, rewards, *, steps=1, kind="jsonl"):
    """A file of rows, with the rewards and the number of steps that are read from it."""
    return kind, make, tuple(rewards.split()), steps


def in_csv(names, rewards, *, steps=1):
    return expected(flat(names), rewards, steps=steps, kind="csv")


LAYOUTS = {
    "object, step, total, length": expected(
        inside("rewards", step=True, reward="sum", length="tokens"), "a b", steps=2
    ),
    "reward_components, total": expected(inside("reward_components", reward="sum"), "a b"),
    "scores, lr": expected(inside("scores", SCORES, lr="stray"), "acc fmt length"),
    "object alone": expected(inside("rewards"), "a b"),
    "flat keys with a dot": expected(
        flat({f"scores.{k}": v for k, v in SCORES.items()}), "acc fmt length"
    ),
    "iter, question, response, prefix, total, time": expected(
        flat(
            {"iter": "step", **PARTS, "total": "sum", "gen_time_s": "stray"},
            prompt="question",
            completion="response",
        ),
        "reward_acc reward_fmt reward_len",
        steps=2,
        kind="csv",
    ),
    "csv, dots": in_csv({"rewards.a": "acc", "rewards.b": "fmt", "epoch": "step"}, "a b"),
    "csv, slashes, iteration": in_csv(
        {"iteration": "step", "rewards/a": "acc", "rewards/b": "fmt", "seed": "stray"},
        "a b",
        steps=2,
    ),
    "csv, suffixes": in_csv(
        {"train_step": "step", "acc_reward": "acc", "fmt_reward": "fmt", "entropy": "stray"},
        "acc_reward fmt_reward",
        steps=2,
    ),
    "csv with a total": in_csv(
        {"iteration": "step", "acc": "acc", "fmt": "fmt", "total": "sum"}, "acc fmt", steps=2
    ),
    "csv, parts of a total": in_csv(
        {"step": "step", "correct": "acc", "style": "fmt", "reward": "weighted"},
        "correct style",
        steps=2,
    ),
    "parquet, struct": expected(
        inside("rewards", step=True, length="tokens"), "a b", steps=2, kind="parquet"
    ),
    "parquet, struct of scores with a total": expected(
        inside("scores", AB | {"total": "sum"}, lr="stray"), "a b", kind="parquet"
    ),
    "metrics": expected(inside("metrics", AB | {"kl": "stray"}), "a b"),
    "components, group": expected(
        lambda n: inside("components", step=True)(n) | {"group_id": n["group"]}, "a b", steps=2
    ),
    "an object in an object": expected(
        lambda n: texts(n) | {"info": {"rewards": {"a": n["acc"], "b": n["fmt"]}, "time": 3}}, "a b"
    ),
    "objects with a weight each": expected(
        lambda n: texts(n) | {"rewards": {"a": {"score": n["acc"], "weight": 1.0}}}, "a"
    ),
    "rewards and their weights": expected(
        lambda n: inside("rewards")(n) | {"reward_weights": {"a": 1.0, "b": 0.5}}, "a b"
    ),
    "weights before rewards": expected(
        lambda n: (
            texts(n) | {"reward_weights": {"a": 1}, "scores": {"z": 1}} | inside("rewards")(n)
        ),
        "a b",
    ),
    "scores and weights of rewards": expected(
        lambda n: inside("scores")(n) | {"reward_weights": {"x": 1.0, "y": 0.5}}, "a b"
    ),
    "weights with a prefix": in_csv(
        {"reward_acc": "acc", "reward_fmt": "fmt", "reward_weight_acc": "stray"},
        "reward_acc reward_fmt",
    ),
    "metrics with times": expected(
        inside(
            "metrics", AB | {"gen_time_s": "stray", "iter_ms": "stray", "seconds_time": "tokens"}
        ),
        "a b",
    ),
    "very many numbers before the rewards": expected(
        lambda n: texts(n) | {f"m{i}": i for i in range(90)} | inside("rewards")(n), "a b"
    ),
    "scalar and a setting": expected(flat({"reward": "sum", "lr": "stray"}), "reward"),
    "scalar and one stray number": expected(flat({"reward": "sum", "foo": "stray"}), "reward"),
    "scalar and its statistics": in_csv(
        {"reward": "sum", "reward_std": "stray", "reward_mean": "stray"}, "reward"
    ),
    "capital letters": expected(
        flat(
            {"Iteration": "step", "accReward": "acc", "fmtReward": "fmt", "totalReward": "sum"},
            prompt="Question",
            completion="Response",
        ),
        "accReward fmtReward",
        steps=2,
        kind="csv",
    ),
    "messages and a question": expected(
        lambda n: (
            {"question": n["prompt"], "answer": "4", "response": n["completion"]}
            | {"update_step": n["step"], "rewards": {"a": n["acc"], "b": n["fmt"]}}
        ),
        "a b",
        steps=2,
    ),
    "names with a slash or a dot in an object": expected(
        inside("rewards", {"math/correct": "acc", "math.style": "length", "fmt": "fmt"}),
        "math/correct math.style fmt",
    ),
    "an object in the object of rewards": expected(
        lambda n: texts(n) | {"rewards": {"math": {"a": n["acc"], "id": 3}, "b": n["fmt"]}},
        "b math.a",
    ),
    "a struct in the struct of rewards": expected(
        lambda n: texts(n) | {"rewards": {"math": {"a": n["acc"]}, "x": {"score": n["fmt"]}}},
        "math.a x",
        kind="parquet",
    ),
    "flat names with two dots": expected(
        flat({"rewards.math.correct": "acc", "rewards.format": "fmt"}), "math.correct format"
    ),
    "columns with two slashes": in_csv(
        {"rewards/math/correct": "acc", "rewards/format": "fmt"}, "math/correct format"
    ),
}

REFUSED = {
    "a mean of the others under a name of a reward": (
        "parquet",
        flat({"global_step": "step", **PARTS, "reward_mix": "mean", "num_tokens": "tokens"}),
        "reward_acc,reward_fmt,reward_len",
    ),
    "a setting alone": ("jsonl", flat({"lr": 0.5, "reward_std": "stray"}), "lr"),
    "no word of rewards": ("jsonl", flat({"iter": "step", "acc": "acc", "fmt": "fmt"}), "acc,fmt"),
    "no word at all": (
        "jsonl",
        lambda n: {"q": n["prompt"], "out": n["completion"], "acc": n["acc"], "fmt": n["fmt"]},
        "acc,fmt",
    ),
    "csv without a word": ("csv", flat({"iter": "step", "acc": "acc", "fmt": "fmt"}), "acc,fmt"),
    "parquet without a word": ("parquet", flat({"acc": "acc", "fmt": "fmt"}), "acc,fmt"),
    "a scalar and others that do not add up": (
        "jsonl",
        flat({"step": "step", "reward": "acc", "x": "stray", "y": "fmt"}),
        "reward,x,y",
    ),
    "a total that is no sum": ("jsonl", inside("rewards", AB | {"total": "stray"}), "a,b"),
    "constants in metrics": (
        "jsonl",
        lambda n: texts(n) | {"metrics": {"version_a": 2, "quality": 1}, "lr": 0.1},
        "quality",
    ),
}


def written(path, kind, records):
    return write_rows(path.with_suffix(f".{kind}"), records)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_natural_layouts_are_read_right_and_the_command_that_is_printed_reads_the_same(
    machine, summary, folder, layout
):
    kind, make, rewards, steps = LAYOUTS[layout]
    path = written(folder, kind, rows(make))
    found = machine(path)
    assert found["files"][0]["rewards"] == list(rewards)
    (run,) = found["runs"]
    assert [reward["name"] for reward in run["rewards"]] == list(rewards)
    assert run["rewards"][0]["steps"] == steps
    assert found["rows"] == {"all": 32, "read": 32, "skipped": 0, "not_analyzed": 0}
    assert found["groups"]["sizes"] == {"4": 8}
    assert found["notices"] == [] or layout.startswith("very many")
    out = summary(path)
    assert "rewards: " in out
    if rewards == ("reward",):
        return
    verdict = run["verdict"]
    assert (
        out.splitlines()[-1]
        == f"verdict: unknown: these columns were guessed; for a verdict: {verdict['command']}"
    )
    (again,) = machine(*shlex.split(verdict["command"])[2:])["runs"]
    assert again["verdict"]["assumed"] == {}
    own = {"verdict", "weights_from", "unchecked"}
    assert {k: again[k] for k in again.keys() - own} == {k: run[k] for k in run.keys() - own}


def run_commands(machine, printed):
    """Run each command that a refusal proposes. Return the rewards that each is promised to read.

    Each must succeed, with the rewards that it lists and no others.
    """
    lines = [line for line in printed.splitlines() if line.startswith("gdpo analyze")]
    assert lines, printed
    proposed = []
    for line in lines:
        command = shlex.split(line)[2:]
        runs = machine(*command)["runs"]
        if "--rewards" in command:
            names = command[command.index("--rewards") + 1].split(",")
            for run in runs:
                assert [reward["name"] for reward in run["rewards"]] == names, line
            proposed.append(names)
    return proposed


@pytest.mark.parametrize("layout", REFUSED)
def test_layouts_that_say_nothing_are_refused_with_their_numbers_and_a_command(
    analyze, machine, folder, layout
):
    kind, make, named = REFUSED[layout]
    path = written(folder, kind, rows(make))
    code, _, err = analyze(path, "--output", "none")
    assert (code, "no reward can be inferred in" in err) == (2, True)
    assert all(repr(name.rpartition(".")[2])[1:-1] in err for name in named.split(","))
    proposed = run_commands(machine, err)
    assert any(named in ",".join(rewards) for rewards in proposed)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"rewards": {"a": str(n["acc"]), "b": n["fmt"]}},
        lambda n: {"reward_a": str(n["acc"]), "reward_b": n["fmt"]},
    ],
)
def test_rewards_that_are_texts_of_numbers_are_read_and_told_once(folder, kind, make):
    path = written(folder, kind, rows(lambda n: texts(n) | make(n)))
    reading = read_rollout_files(path)
    (table,) = reading
    columns = {name[-1]: column for name, column in zip(table.names, table.rewards.T, strict=True)}
    assert columns["a"].tolist() == [n["acc"] for n in numbers()]
    (notice,) = reading.report.notices.values()
    assert "a' is the text of a number" in notice.what


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("text", ["good", "40%", "0,5"])
def test_a_reward_that_is_text_is_told_by_name_once(folder, kind, text):
    more = {"reward_a": text, "reward_b": "acc", "reward_b_explanation": "because " * 9}
    path = written(folder, kind, rows(flat(more)))
    reading = read_rollout_files(path)
    (table,) = reading
    assert table.names == ("reward_b",)
    (notice,) = reading.report.notices.values()
    assert notice.what.startswith("'reward_a' contains text")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_rewards_that_cannot_be_read_are_refused_and_no_step_is_proposed(refused, folder, kind):
    more = {"step": "step", "rewards": "correct: 1"}
    path = written(folder, kind, rows(flat(more)))
    err = refused(path, "--output", "none")
    assert "'rewards' cannot be read" in err
    assert "--rewards step" not in err


def test_no_command_is_offered_that_leaves_a_reward_out(summary, tmp_path):
    path = written(tmp_path / "run", "jsonl", rows(inside("rewards", {"a, b": "acc", "c": "fmt"})))
    out = summary(path)
    assert "Rename 'a, b'" in out
    many = {f"m{i:02}": "acc" for i in range(20)}
    path = written(tmp_path / "many", "jsonl", rows(inside("rewards", many)))
    assert f"--rewards {','.join(many)}" in summary(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_reward_that_is_not_there_lists_what_the_files_have(analyze, refused, tmp_path, kind):
    path = written(tmp_path / "train", kind, [{"question": "q", "answer": "4"}] * 4)
    err = refused(path, "--rewards", "foo")
    assert "reward 'foo' is in none of the files: the files contain no numbers" in err
    assert "no numbers, only the fields 'question', 'answer'" in err
    path = written(tmp_path / "run", kind, rows(inside("scores", length="tokens")))
    err = refused(path, "--rewards", "length,scores.bb")
    assert "did you mean 'scores.b'? Allowed: length, scores.a, scores.b" in err
    assert analyze(path, "--rewards", "length,scores.b", "--output", "none")[0] == 0


def test_rewards_are_inferred_from_the_first_rollouts_however_many_are_read_at_a_time(
    folder, monkeypatch
):
    from gdpo.rollouts.readers import batches

    monkeypatch.setattr(batches, "_CHUNK", 2)
    path = written(folder, "jsonl", rows(flat({**PARTS, "total": "mean"})))
    assert [table.names for table in read_rollout_files(path)] == [tuple(PARTS)]


@pytest.mark.parametrize("named", [{"reward_acc": "acc", "reward_fmt": "fmt"}, AB])
def test_the_command_names_the_step(analyze, folder, named):
    path = written(folder, "jsonl", rows(flat({"iter": "step", **named})))
    _, out, err = analyze(path, "--output", "none")
    command = f"gdpo analyze {path} --rewards {','.join(named)} --columns step=iter,prompt=prompt"
    assert command in (*err.splitlines(), out.splitlines()[-1].rpartition(": ")[2])


def test_a_reward_that_a_later_rollout_is_the_first_to_have_follows_the_same_rules(folder):
    early = [texts(n) | {"step": 1, "rewards": {"a": n["acc"]}} for n in numbers()] * 130
    late = [texts(n) | {"step": 2, "rewards": {"a": 1, "b": n["fmt"]}, "c": 1} for n in numbers()]
    path = written(folder, "jsonl", early + late)
    tables = list(read_rollout_files(path))
    assert [table.names for table in tables] == [("a",), ("a", "b")]


def test_texts_are_found_where_a_reader_would_look_for_them(folder):
    records = [{"question": "2+2", "answer": "4", "response": "five", "rewards": {"a": 1.0}}] * 2
    for kind in ("jsonl", "parquet"):
        path = written(folder, kind, records)
        (found,) = read_texts(path, [1])
        assert (found.prompt, found.completion) == ("2+2", "five")


def test_what_to_do_about_a_file_is_never_cut(summary, tmp_path):
    folder = tmp_path / ("a" * 90) / ("b" * 90)
    folder.mkdir(parents=True)
    written(folder / "run", "jsonl", rows(inside("rewards")))
    (folder / "b.jsonl.zst").write_bytes(b"")
    (folder / "data.csv").write_text("lr,prompt\n1,a\n2,b\n")
    out = summary(tmp_path)
    assert "decompress it first" in out
    assert "the format (--columns format=NAME)" in out
    assert f"{'b' * 90}/b.jsonl.zst" not in out
    assert "…" in out


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))]
)
def test_no_verdict_rests_on_a_guess_and_the_printed_command_gives_the_right_one(
    gdpo_says, tmp_path, seed
):
    path, record = write_unknown(tmp_path, seed)
    _, known, _ = gdpo_says("analyze", record, "--output", "json")
    _, out, err = gdpo_says("analyze", path, "--output", "json")
    verdict = json.loads(out)["runs"][0]["verdict"]
    assert (verdict["action"], err.count("Traceback")) == ("unknown", 0)
    _, out, _ = gdpo_says(*shlex.split(verdict["command"])[1:], "--output", "json")
    assert json.loads(out)["runs"][0]["verdict"]["assumed"] == {}
    assert conclusion(out) == conclusion(known)
