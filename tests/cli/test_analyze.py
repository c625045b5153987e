"""`gdpo analyze`: the summary, the numbers for machines, the exit code, and the page's place."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.random import default_rng
from tests.analysis.rows import LEARNED, ROWS, run_of
from tests.checkout import python
from tests.report.runs import trained
from tests.rollouts.readers import written

from gdpo.advantages import ESTIMATORS, grpo, rloo
from gdpo.diagnostics import diagnose

pytestmark = pytest.mark.usefixtures("here")

COLUMNS = ("--rewards", "wide,narrow", "--columns", "prompt=prompt,num_tokens=length")
TYPED = " ".join(COLUMNS)


@pytest.fixture
def dump(tmp_path):
    names = ("step", "prompt", "wide", "narrow", "length")
    for step in (1, 2):
        rows = [dict(zip(names, row, strict=True)) for row in ROWS if row[0] == step]
        written.lines(tmp_path / "run" / f"step_{step}.jsonl", rows)
    return tmp_path / "run"


def flat(out):
    return " ".join(out.split())


def ignored(folder, steps=6):
    """Two rewards that are independent; the spread of one is 50 times that of the other."""
    rng = default_rng(0)
    for step in range(1, steps + 1):
        loud = 50 * rng.integers(0, 2, (16, 8))
        quiet = rng.integers(0, 2, (16, 8))
        written.lines(
            folder / f"{step}.jsonl",
            [
                {"input": f"{step} {p}", "output": "x", "gts": None, "score": 0.0, "step": step}
                | {"loud": float(loud[p, s]), "quiet": float(quiet[p, s])}
                for p in range(16)
                for s in range(8)
            ],
        )
    return folder


@pytest.mark.parametrize(("size", "verdict"), [(8, "these columns were"), (12, "groups formed")])
def test_groups_that_mix_prompts_give_no_verdict(shown, folder, size, verdict):
    options = ("--columns", f"format=verl,group_size={size}", "--output", "none")
    out = shown(ignored(folder), *options)
    assert out.splitlines()[-1].startswith(f"verdict: unknown: {verdict}")
    assert ("! 60 groups formed by group_size" in out) == (size == 12)


def test_the_numbers_are_those_of_a_table_worked_out_by_hand(machine, dump):
    """Groups of 2: a z-score is ±1/√2 where the reward varies, and so is GRPO's advantage.

    Step 1: `wide` varies in a, `narrow` in b: ½ + ½ each. Step 2: `wide` in both: ½ + ½ + ½ + ½;
    `narrow` in b, its only group: ½ + ½.
    """
    found = machine(dump, *COLUMNS)
    assert found["rows"] == {"all": 8, "read": 8, "skipped": 0, "not_analyzed": 0}
    assert found["groups"]["count"] == 4
    assert found["groups"]["sizes"] == {"2": 4}
    (run,) = found["runs"]
    assert run["rollouts"] == 8
    assert run["estimators"] == ["grpo"]
    wide, narrow = run["rewards"]
    expected = {
        "name": "wide",
        "steps": 2,
        "mean": 5.0,
        "first": 5.0,
        "last": 5.0,
        "missing": 0.0,
        "groups": 4,
        "zero_variance_groups": 1,
        "weight_share": 0.5,
        "influence_share": 3 / 5,
    }
    assert {key: wide[key] for key in expected} == pytest.approx(expected)
    expected = {"mean": 2 / 6, "first": 1 / 4, "last": 1 / 2, "missing": 2 / 8, "groups": 3}
    expected |= {"zero_variance_groups": 1, "influence_share": 2 / 5}
    assert {key: narrow[key] for key in expected} == pytest.approx(expected)
    assert wide["over_time"]["zero_variance_groups"] == [0.5, 0.0]
    assert narrow["over_time"]["missing"] == [0.0, 0.5]
    # Step 1: Σ z is ±1/√2 four times, step 2: ±1/√2 and ±2/√2; their spread is over n - 1.
    gains = [1 / np.sqrt(2 / 3), 1 / np.sqrt((1 + 4) / 3)]
    assert run["over_time"]["batch_gain"] == pytest.approx(gains)
    # Both vary in b of step 2 alone, and there alike.
    assert run["correlation"][0][1] == pytest.approx(1.0)


def test_the_summary_is_short_and_plain_and_the_rows_add_up(shown, tmp_path):
    out = shown(ignored(tmp_path / "run"))
    lines = out.splitlines()
    assert len(lines) <= 24
    assert lines[0] == f"reading {tmp_path / 'run'}"
    assert lines[1] == "format verl (6 files), detected from the fields input, output, score, step"
    assert lines[2] == "768 rows: 768 read, 0 skipped"
    assert lines[3] == "rewards: all numeric components"
    assert lines[4] == "  assumed: --rewards loud,quiet"
    assert "6 steps (1 to 6)" in lines[5]
    assert "96 groups of 8, by equal prompts" in " ".join(lines)
    table = {line.split()[0]: line for line in lines}
    assert "50 %" in table["loud"]
    assert " 0 % " in table["quiet"]  # it varies in every group, and is ignored nevertheless
    (finding,) = [line for line in lines if line.startswith("! ")]
    assert "`quiet`" in finding
    share = table["quiet"].partition("50 %")[2].strip()
    assert f"but {share} of the influence" in out
    assert "\nverdict: unknown: these columns were guessed; for a verdict: gdpo analyze " in out
    assert out.count("verdict: ") == 2
    assert "→" in out
    assert lines[-2].endswith(": analysis.html")
    assert lines[-1].startswith("verdict: ")  # on one line, whatever the width
    assert "\x1b" not in out


def test_the_share_of_every_reward_with_each_setting_is_printed_on_the_page_and_for_machines(
    machine, shown, folder
):
    arguments = (ignored(folder), "--rewards", "loud,quiet")
    out = shown(*arguments, "--estimators", "grpo,gdpo")
    lines = out.splitlines()
    first = lines.index("influence share of every reward") + 1
    rows = [re.split(r" {2,}", line) for line in lines[first : first + 6]]
    gdpo = "gdpo with reward_weights=[1, "
    settings = ["setting", "as trained", f"{gdpo}1]", f"{gdpo}0.02]", "grpo", "gdpo"]
    assert [row[0] for row in rows] == settings
    assert rows[0][1:] == ["loud", "quiet"]
    assert rows[1][1:] == rows[4][1:] == ["98 % ± 7", "under 9 %"]
    assert rows[2][1:] == rows[5][1:] == ["50 %", "50 %"]
    page = Path("analysis.html").read_text().replace("<wbr>", "")
    assert all(cell in page for row in rows for cell in row)
    found = machine(*arguments, "--estimators", "grpo,gdpo")
    equal, sizes = found["runs"][0]["verdict"]["readings"]
    assert (equal["setting"], equal["needed"], sizes["needed"]) == (settings[2], True, False)
    assert equal["condition"] == "if the rewards should count equally"
    replayed = {each["estimator"]: each["shares"] for each in found["estimators"]}
    shares = {name: pytest.approx(share) for name, share in equal["shares"].items()}
    assert replayed["gdpo"] == shares
    for sure in ("--weights", "loud=1,quiet=1"), ("--sizes-are-weights",):
        verdict = machine(*arguments, *sure)["runs"][0]["verdict"]
        assert verdict["action"] == ("train" if len(sure) > 1 else "nothing")


def test_three_rollouts_are_printed_for_a_function_that_never_varied(analyze, shown, tmp_path):
    rows = [
        {"prompt": f"q{i // 4}", "completion": f"a\x1b{i}\n" + 300 * "x", "step": i // 128}
        | {"form": 0.5, "tone": i % 3}
        for i in range(256)
    ]
    path = written.lines(tmp_path / "run" / "1.jsonl", rows)
    columns = ("--columns", "prompt=prompt,completion=completion,step=step")
    options = ("--rewards", "form,tone", *columns, "--output", "none")
    out = shown(path, *options)
    lines = out.splitlines()
    assert lines[-1].startswith("verdict: check the function of `form` first: it has not varied")
    first = lines.index("three rollouts of step 1, for the function of `form`") + 1
    assert lines[first].split() == ["rollout", "form", "completion"]
    assert [line.split()[:4] for line in lines[first + 1 : first + 4]] == [
        ["1.jsonl,", "row", row, "0.5"] for row in ("128", "192", "255")
    ]
    shown = lines[first + 1]
    assert "a⟨U+001B⟩128 x" in shown
    assert len(shown) < 260
    assert "three rollouts" not in analyze(ignored(tmp_path / "other"))[1]


def test_what_is_worst_comes_first_and_is_told_with_what_to_do(machine, folder):
    found = machine(ignored(folder))
    findings = found["runs"][0]["findings"]
    assert findings[0]["severity"] == "warning"
    assert (findings[0]["kind"], findings[0]["rewards"]) == ("ignored", ["quiet"])
    assert all(f["remedy"] and f["steps"] <= f["of"] == 6 for f in findings)
    assert [f["severity"] for f in findings] == sorted(
        (f["severity"] for f in findings), reverse=True
    )


TYPO = "reward 'narow' is in none of the files: did you mean 'narrow'? Allowed: "


def test_a_reward_that_no_file_has_is_a_mistake_and_no_page_is_written(analyze, dump, here):
    asked = (dump, "--rewards", "wide,narow")
    code, out, err = analyze(*asked)
    assert (code, out) == (2, f"reading {dump}\n")
    assert TYPO in flat(err)
    assert analyze(*asked, "--output", "json")[:2] == (2, "")
    assert analyze(*asked, "--follow")[0] == 2
    assert not list(here.iterdir())


def test_the_exit_code_says_whether_a_finding_lasted(analyze, tmp_path):
    run = ignored(tmp_path / "ignored")
    quiet = ("--output", "none", "--fail-on")
    assert analyze(run, "--output", "none")[0] == 0
    assert analyze(run, *quiet, "warning")[0] == 1
    assert analyze(run, *quiet, "note")[0] == 1
    sized = (run, "--rewards", "loud,quiet", "--sizes-are-weights")  # which explains it
    assert analyze(*sized, *quiet, "warning")[0] == 0
    code, out, _ = analyze(run, "--output", "json", "--fail-on", "warning")
    assert (code, json.loads(out)["failed"]) == (1, True)
    # 48 groups are too few to say who is ignored.
    short = ignored(tmp_path / "short", steps=3)
    assert analyze(short, *quiet, "warning")[0] == 0


def test_estimators_are_replayed_and_nothing_would_change_is_said(machine, shown, dump):
    out = shown(dump, *COLUMNS, "--estimators", "grpo,gdpo")
    assert "baseline: grpo (2 steps, 4 groups)" in out
    assert "no difference" not in out
    one = ("--rewards", "wide", "--columns", "prompt=prompt", "--estimators", "grpo", "gdpo")
    assert "no difference from the baseline, up to a factor: all estimators" in shown(dump, *one)
    found = machine(dump, *one)
    assert [(e["estimator"], e["same"], e["signal_lost"]) for e in found["estimators"]] == [
        ("grpo", True, 0),
        ("gdpo", True, 0),
    ]


@pytest.mark.parametrize("named", ["--estimators gdpo", "--estimators=grpo,gdpo"])
def test_a_folder_with_the_name_of_an_estimator_is_no_obstacle(shown, dump, named):
    Path("gdpo").mkdir()
    assert "gdpo" in shown(dump, *COLUMNS, *named.split())


def test_all_estimators_are_replayed_if_none_is_named(machine, shown, dump):
    found = machine(dump, *COLUMNS, "--estimators")
    by_name = {e["estimator"]: e for e in found["estimators"]}
    assert set(by_name) == {*ESTIMATORS}
    assert by_name["saw"]["problem"]
    assert by_name["saw"]["correlation"] is None
    assert "not computed: saw: estimator 'saw' needs 'low'" in shown(dump, *COLUMNS, "--estimators")


def test_rewards_are_scored_anew(machine, shown, folder):
    path = written.verl_v1(folder)
    out = shown(path, "--rescore", "gsm8k")
    assert "integer" in out
    assert f"! {path}:1: no reference" in out
    found = machine(path, "--rescore", "gsm8k")
    assert [r["name"] for r in found["runs"][0]["rewards"]] == ["correctness", "integer", "format"]
    assert found["files"][0]["rewards_from"] == "rescored"
    notice = next(each for each in found["notices"] if each["what"].startswith("no reference"))
    assert notice | {"what": ""} == {
        "file": str(path),
        "line": 1,
        "what": "",
        "count": 4,
        "rows": 0,
    }


WRITERS = (
    *("verl", "verl_v1", "nemo_rl", "swift", "swift_ray", "tinker", "art", "skyrl"),
    *("open_instruct", "results", "platform"),
)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_format_is_analyzed_by_the_command(shown, tmp_path, here, writer):
    folder = tmp_path / "run"
    folder.mkdir()
    getattr(written, writer)(folder)
    out = shown(folder, "--estimators", "grpo,gdpo")
    name = writer.partition("_v1")[0].replace("_", "-")
    known = {"swift": "ms-swift", "swift-ray": "ms-swift-ray", "results": "verifiers-results"}
    known |= {"platform": "prime-rl"}
    assert out.splitlines()[1].startswith(f"format {known.get(name, name)} (1 file)")
    assert (here / "analysis.html").stat().st_size > 10_000


def test_our_own_runs_are_told_apart_by_their_folders(machine, shown, tmp_path):
    for label in ("grpo", "gdpo"):
        trained(tmp_path / "runs", label, 1, steps=3)
    out = shown(tmp_path / "runs")
    assert "run-0: 3 steps" in out
    assert "run-1: 3 steps" in out
    paths = [tmp_path / "runs" / name for name in ("run-0", "run-1")]
    found = machine(*paths)
    assert [run["run"] for run in found["runs"]] == ["run-0", "run-1"]
    files = sorted((paths[0] / "rollouts").iterdir(), reverse=True)
    found = machine(*files, files[0].parent)
    assert [run["over_time"]["step"] for run in found["runs"]] == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "PATH is missing"),
        ("nowhere", "nowhere: "),
        ("run --columns format=trll", "did you mean 'trl'"),
        ("run --rewards ,", "--rewards is empty"),
        ("run --columns prompt", "write MEANING=COLUMN"),
        ("run --columns promt=prompt", "did you mean 'prompt'"),
        ("run --columns group-size=4", "did you mean 'group_size'"),
        ("run --columns forms=trl", "format, group, group_size"),
        (f"run {TYPED} --weights wid=1", "did you mean 'wide'"),
        ("run --weights wide=much", "'much' is not a number"),
        ("run --weights wide=inf", "--weights wide=inf: "),
        ("run --weights wide=1e300", "between -1e+60 and 1e+60"),
        (f"run {TYPED} --range wid=1:", "range: unknown reward 'wid': did you"),
        ("run --range ''", "--range is empty"),
        ("run --range wide=:", "write NAME=LOW:HIGH"),
        ("run --range wide=0:most", "--range wide=0:most: "),
        ("run --range wide=1", "write NAME=LOW:HIGH"),
        (f"run {TYPED} --range wide=1:0", "must have low < high"),
        ("run --weights wide=1,wide=2", "--weights lists wide twice"),
        (
            "run --weights wide=1 --sizes-are-weights",
            "--weights and --sizes-are-weights both say how much each reward should count: "
            "remove one of the two",
        ),
        ("run --columns format=verl --columns step=a", "does not apply to format=verl"),
        (f"run {TYPED} --estimators recorded", "contain no advantages"),
        ("run --fail-on error", "Allowed: note, warning"),
        ("run --estimators gpdo", "did you mean 'gdpo'"),
        ("--estimators run", "PATH is missing"),
        ("run --estimators run", "--estimators run: this is a path"),
        ("run --rescore gsm9k", "did you mean 'gsm8k'"),
        ("run --rescore gsm8k --rewards wide", "--rescore cannot be combined with --rewards"),
        ("run --output no/a.html", "not a writable folder"),
        ("run --output JSON", "--output JSON: write json, or ./JSON"),
        ("run --columns format=metrics,group_size=8", "group_size=8 does not apply to"),
        ("run --columns format=metrics", "run: no metrics found"),
        ("run --columns group_size=0", "write a whole number"),
        ("run --no-such-option", "no-such-option"),
        ("empty", "no rollout files found"),
    ],
)
def test_what_is_typed_wrong_is_told_with_code_2(
    analyze, dump, tmp_path, monkeypatch, typed, message
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    code, out, err = analyze(*shlex.split(typed))
    assert code == 2
    assert message in flat(out + err)
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("buffered", "options"),
    [(True, "--output none"), (False, "--estimators grpo,gdpo"), (False, "--help")],
)
def test_a_reader_that_goes_is_no_finding_for_a_script_that_waits_for_one(dump, buffered, options):
    """rich makes an exit with 1 of it."""
    python = [sys.executable, *([] if buffered else ["-u"])]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        done = subprocess.run(
            [*python, "-m", "gdpo", "analyze", str(dump), *COLUMNS, *options.split()],
            stdout=nobody,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_rewards_are_given_anew_without_an_output_to_be_kept(folder):
    path = written.verl(folder)
    line = f"{sys.executable} -m gdpo analyze {path} --rescore gsm8k --output none >&-"
    done = subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_log_of_some_steps_alone_is_told(summary, folder):
    for step in (10, 20, 30):
        rows = [{"step": step, "prompt": "a", "r": float(i)} for i in range(4)]
        written.lines(folder / f"step_{step}.jsonl", rows)
    assert "3 steps (10 to 30, every 10), 12 rollouts" in summary(folder, "--rewards", "r")


def test_the_summary_fits_a_terminal_and_a_pipe_gets_whole_names(analyze, tmp_path, monkeypatch):
    rng = default_rng(0)
    names = [f"a_reward_function_with_a_long_name_{k}" for k in range(9)]
    for run in ("the_first_run_of_a_comparison", "the_second_run_of_a_comparison"):
        rows = [
            {"step": s, "prompt": str(p), **dict(zip(names, rng.random(9), strict=True))}
            for s in range(6)
            for p in range(2)
            for _ in range(4)
        ]
        written.lines(tmp_path / run / "a.jsonl", rows)
    options = ("--rewards", ",".join(names), "--output", "none", "--estimators", "grpo,gdpo")
    _, piped, _ = analyze(tmp_path, *options)
    assert "…" not in piped
    assert all(f"  {names[k]}  " in piped for k in range(3))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    _, colored, _ = analyze(tmp_path, *options)
    out = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert all(f"name_{k}" in out for k in range(3))  # where these names differ
    assert max(map(len, out.splitlines()[:-1])) <= 100  # the verdict is one line
    for text in (out, piped):
        assert len(text.split("influence share of every reward")[0].splitlines()) <= 22


def test_the_batch_step_s_median_is_between_two_steps(shown, folder):
    gains = []
    for step, scale in ((1, 1.0), (2, 3.0)):
        rewards = default_rng(step).normal(size=(4, 4, 2)) ** scale
        rows = [
            {"step": step, "prompt": str(p), "a": a, "b": b}
            for p, group in enumerate(rewards.tolist())
            for a, b in group
        ]
        written.lines(folder / f"step_{step}.jsonl", rows)
        gains.append(diagnose(rewards, None, ["a", "b"]).batch_gain)
    asked = ("--rewards", "a,b", "--estimators", "grpo", "--output", "none")
    assert f"by {sum(gains) / 2:.3g} (median" in shown(folder, *asked)


JUDGES = """
import os
from gdpo import Reward

def loud(completion, reference):
    print("noise")
    os.write(1, b"noise")
    return 1.0

rewards = [Reward("loud", loud, low=0, high=1), Reward("later", loud, low=0, high=1, deadline=9)]

def factory():
    raise SystemExit(3)

def fifth(rewards, weights, _seen=[]):
    _seen += [1] * (len(rewards) == 4)  # no call with a made-up batch
    if len(_seen) == 5:
        raise ValueError("the fifth step")
    return rewards[..., 0] - rewards[..., :1, 0]

def strange(rewards, weights, _seen=[]):
    _seen += [1] * (len(rewards) == 4)
    return rewards[..., 0] * (float("nan") if len(_seen) == 2 else 1.0)
"""


@pytest.fixture
def judges(here, monkeypatch):
    (here / "judges_of_test.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(here)
    yield "judges_of_test"
    sys.modules.pop("judges_of_test", None)


def test_what_rewards_print_is_not_among_what_is_found(judges, folder):
    path = written.verl(folder)
    options = ("--rescore", f"{judges}:rewards", "--output", "json")
    done = python("-m", "gdpo", "analyze", path, *options, check=True)
    (run,) = json.loads(done.stdout)["runs"]
    assert [reward["mean"] for reward in run["rewards"]] == [1.0, 1.0]
    assert done.stderr.count("noise") >= 8


def test_what_makes_rewards_may_fail_in_any_way(refused, judges, folder):
    path = written.verl(folder)
    assert "failed with SystemExit: 3" in refused(path, "--rescore", f"{judges}:factory")


@pytest.mark.parametrize(
    ("name", "why", "after"),
    [("fifth", "ValueError: the fifth step", 4), ("strange", "advantages that are not finite", 1)],
)
def test_an_estimator_that_fails_on_the_way_changes_nothing_that_is_known(
    machine, summary, judges, folder, name, why, after
):
    rng = default_rng(0)
    for step in range(1, 9):
        rows = [{"step": step, "prompt": str(i // 4), "r": float(rng.random())} for i in range(16)]
        written.lines(folder / f"step_{step}.jsonl", rows)
    asked = ("--rewards", "r", "--estimators", f"grpo_no_std,{judges}:{name}")
    out = summary(folder, *asked)
    assert "no difference" not in out
    assert f"{judges}:{name} failed after {after} step" in out
    assert why in flat(out)
    found = machine(folder, *asked)
    assert [each["same"] for each in found["estimators"]] == [True, False]


def test_a_page_that_cannot_be_is_told_before_anything_is_read(analyze, dump, here):
    code, out, err = analyze(dump, *COLUMNS, "--output", "a" * 300 + ".html")
    assert code == 2
    assert "File name too long. Choose another file" in flat(err)
    assert "rows" not in out
    assert analyze(dump, *COLUMNS, "--output", "a" * 245 + ".html")[0] == 0
    assert (here / ("a" * 245 + ".html")).is_file()


def test_a_page_of_this_command_is_replaced_and_nothing_else(analyze, refused, dump, here):
    page = here / "analysis.html"
    assert analyze(dump, *COLUMNS)[0] == 0
    first = page.read_text()
    page.write_text(first + "<!-- old -->")
    assert analyze(dump, *COLUMNS)[0] == 0
    assert page.read_text() == first
    page.write_text("<p>My own notes</p>")
    assert "not overwritten" in refused(dump, *COLUMNS)
    assert page.read_text() == "<p>My own notes</p>"
    program = here / "mine.py"
    program.write_text('# <meta name="generator" content="gdpo analyze">')
    assert "not overwritten" in refused(dump, *COLUMNS, "--output", program)
    assert program.read_text().startswith("# <meta")


def test_a_page_is_written_beside_a_given_file(shown, dump, monkeypatch):
    (file, *_) = sorted(dump.iterdir())
    for place in (dump, dump / "inner"):
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        assert ": analysis.html\nverdict: " in shown(file, *COLUMNS)
        assert (place / "analysis.html").is_file()


def test_nothing_is_written_into_the_run_unless_asked_to(analyze, shown, dump, monkeypatch):
    monkeypatch.chdir(dump)
    before = sorted(dump.iterdir())
    assert f"no page written, because this folder is part of {dump}" in shown(".", *COLUMNS)
    assert sorted(dump.iterdir()) == before
    assert analyze(".", *COLUMNS, "--output", "json")[0] == 0
    assert analyze("..", *COLUMNS, "--output", "none")[0] == 0
    assert sorted(dump.iterdir()) == before
    assert analyze(".", *COLUMNS, "--output", "page.html")[0] == 0
    assert (dump / "page.html").is_file()


def test_it_says_what_it_reads_before_it_imports_what_is_heavy(dump):
    script = (
        "import sys\n"
        "class Out:\n"
        "    first = None\n"
        "    def write(self, text):\n"
        "        Out.first = Out.first or (text, 'pyarrow' in sys.modules)\n"
        "    def flush(self): pass\n"
        "    def isatty(self): return False\n"
        "real, sys.stdout = sys.stdout, Out()\n"
        "from gdpo.cli import main\n"
        "try: main(['analyze', sys.argv[1], '--output', 'none'])\n"
        "except SystemExit: pass\n"
        "print(Out.first, 'torch' in sys.modules, file=real)"
    )
    done = python("-c", script, str(dump), check=True)
    assert done.stdout == f"({f'reading {dump}'!r}, False) False\n"


def test_texts_that_are_not_shown_are_not_read(shown, summary, folder, here):
    """The bytes of the completions are garbage: whoever reads them fails."""
    row = {"step": 1, "prompt": "a", "completion": "", "advantage": 0.0}
    rows = [row | {"completion": f"completion {i} " * 20, "r": i / 4} for i in range(8)]
    path = written.parquet(folder / "completions_00001.parquet", rows, compression="none")
    column = pq.read_metadata(path).row_group(0).column(2)
    assert column.path_in_schema == "completion"
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    with pytest.raises((OSError, pa.ArrowException)):
        pq.read_table(path)
    assert "8 rows: 8 read, 0 skipped" in summary(path, "--estimators", "grpo,gdpo")
    shown(path)
    assert "could not be read" in (here / "analysis.html").read_text()


@pytest.fixture
def following():
    """Starts the command that follows a run; it has ended when the test has."""
    started = []

    def start(run, *arguments):
        command = [sys.executable, "-m", "gdpo", "analyze", str(run), "--follow"]
        command += ["--output", "json"]
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed_until_ctrl_c(following, folder):
    run = written.verl(folder, steps=(1,))
    process = following(run)
    assert json.loads(process.stdout.readline())["rows"]["read"] == 4
    written.verl(run, steps=(2,))
    path = run / "1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"input": "a", "outp')
    rows = {"read": 0}
    while rows["read"] < 8 or not rows["skipped"]:
        rows = json.loads(process.stdout.readline())["rows"]
    assert (rows["all"], rows["skipped"]) == (9, 1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
def test_what_is_followed_ends_with_the_first_warning_that_is_certain(following, analyze, folder):
    """Of 96 groups, one look shows the warning. It is repeated, and therefore not certain yet."""
    run = ignored(folder)
    assert analyze(run, "--output", "none", "--fail-on", "warning")[0] == 1
    process = following(run, "--fail-on", "warning")
    found = json.loads(process.stdout.readline())
    (warning,) = [f for f in found["runs"][0]["findings"] if f["severity"] == "warning"]
    assert (warning["kind"], warning["lasting"], warning["certain"]) == ("ignored", True, False)
    assert not found["failed"]
    ignored(run, steps=12)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["failed"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "`quiet`" in err


def test_what_is_followed_says_why_it_ended(analyze, folder, here):
    code, out, err = analyze(ignored(folder, steps=12), "--follow", "--fail-on", "note")
    assert (code, err) == (1, "")
    last = out.splitlines()[-1]
    assert "--fail-on" in last
    assert "`quiet`" in last
    assert (here / "analysis.html").is_file()


def test_of_a_total_alone_nothing_is_said_about_other_estimators(shown, folder, here):
    rng = default_rng(0)
    rows = [
        {"input": f"q{i // 4}", "output": "x", "gts": "", "score": float(s), "step": 1}
        for i, s in enumerate(rng.random(32))
    ]
    written.lines(folder / "1.jsonl", rows)
    out = shown(folder, "--estimators", "grpo,gdpo")
    assert "no difference from the baseline" not in out
    assert "--rescore recomputes" in out
    assert "these files contain only a scalar reward" in out
    assert "no difference with a scalar reward" in next(
        line for line in out.splitlines() if "gdpo  " in line
    )
    page = (here / "analysis.html").read_text()
    assert "equal those of the baseline" not in page
    assert "contain only a scalar reward" in page


def test_of_a_scalar_reward_estimators_without_a_std_are_said_to_differ(shown, folder, here):
    rng = default_rng(0)
    scales = np.where(np.arange(64) // 4 % 2, 10.0, 0.1)
    rows = [
        {"prompt": f"q{i // 4}", "completion": "x", "reward": r, "step": 1}
        for i, r in enumerate(rng.normal(size=64) * scales)
    ]
    path = written.lines(folder / "1.jsonl", rows)
    out = shown(path, "--estimators", "grpo,gdpo,grpo_no_std,rloo")
    said = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert all("differs on every step" in said[name] for name in ("grpo_no_std", "rloo"))
    assert "differs" not in said["gdpo"]
    assert "those without a per-group std still differ" in flat(out)
    assert "these files contain only a scalar reward" in (here / "analysis.html").read_text()


def test_a_total_without_texts_is_not_offered_to_be_scored_anew(analyze, shown, folder):
    dump = written.open_instruct(folder)
    out = shown(dump, "--estimators", "grpo,gdpo")
    assert "rewards: scalar reward only: " in out
    assert "no texts" in out
    assert "these files contain only a scalar reward" in out
    assert ". --rescore" not in out
    code, out, _ = analyze(dump, "--rescore", "gsm8k")
    assert code == 2
    assert "contain no texts that could be rescored" in flat(out)


def test_weights_that_nobody_knows_are_named_where_no_estimator_fits(shown, folder):
    rng = default_rng(0)
    rewards = rng.random((8, 4, 2))
    advantages = grpo(rewards, [1.0, 0.1]).reshape(-1)
    rows = [
        {"step": 1, "prompt": f"q{i // 4}", "completion": "x", "a": a, "b": b, "advantage": c}
        for i, ((a, b), c) in enumerate(zip(rewards.reshape(-1, 2), advantages, strict=True))
    ]
    written.lines(folder / "step_1.jsonl", rows)
    asked = (folder, "--rewards", "a,b", "--estimators", "recorded,grpo,gdpo")
    out = shown(*asked)
    assert "rerun with --weights" in flat(out)
    out = shown(*asked, "--weights", "a=1,b=0.1")
    assert "rerun with --weights" not in flat(out)
    assert "no difference from the baseline, up to a factor: grpo" in out
    for row, advantage in zip(rows, rloo(rewards, [1.0, 1.0]).reshape(-1), strict=True):
        row["advantage"] = advantage
    written.lines(folder / "step_1.jsonl", rows)
    out = shown(*asked, "rloo")
    assert "no difference from the baseline, up to a factor: rloo" in out
    assert "rerun with --weights" not in flat(out)


def test_a_learned_reward_of_our_own_record_is_no_warning(analyze, summary, folder):
    run = run_of(folder, LEARNED, declared={"format": {"low": 0.0, "high": 1.0}})
    out = summary(run)
    told = flat(out)
    assert "`format` is constant in 100 % of its 64 groups from step 7, at 1, the top" in told
    assert "no action needed: keep" in told
    assert "verdict: nothing to do: `format` is learned" in told
    assert "\n!" not in out
    assert analyze(run, "--output", "none", "--fail-on", "warning")[0] == 0


def test_a_reward_whose_range_is_said_is_learned(summary, folder):
    run = run_of(folder, LEARNED)
    out = summary(run)
    assert "at 1, the highest value of this run" in flat(out)
    said = ("--range", "format=0:1")
    out = summary(run, *said)
    assert "at 1, the top of its range" in flat(out)


def test_a_rescored_reward_has_its_own_range_unless_another_is_said(machine, judges, folder):
    said = (written.verl(folder), "--rescore", f"{judges}:rewards")
    (run,) = machine(*said)["runs"]
    assert run["verdict"]["learned"] == ["loud", "later"]
    (run,) = machine(*said, "--range", "loud=1:3")["runs"]
    assert run["verdict"]["learned"] == ["later"]


def test_why_a_step_was_not_analyzed_names_the_option(gdpo_says, tmp_path):
    rows = (
        {"step": 0, "prompt": str(max(i, 3000)), "completion": "c", "reward_a": i % 3}
        for i in range(6000)
    )
    file = tmp_path / "one_large.jsonl"
    written.lines(file, rows)
    code, out, _ = gdpo_says("analyze", file, "--output", "none")
    assert code == 2
    assert "--columns group_size=" in out
