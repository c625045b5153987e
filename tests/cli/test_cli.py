"""The command line: fast, silent about libraries, and without a traceback for a user's mistake."""

import json
import os
import re
import subprocess
import sys

import pytest
from tests.checkout import environment, python
from tests.experiments.conftest import DECLARED, write_run

import gdpo


def test_help_loads_nothing_that_is_slow_to_import():
    script = (
        "import sys\nfrom gdpo.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'trl', 'transformers', 'accelerate', 'datasets', 'matplotlib',"
        " 'pyarrow', 'pandas', 'scipy', 'pydantic', 'beartype', 'jaxtyping'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = python("-c", script, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for verb in ("train", "check", "init", "analyze"):
        assert verb in done.stdout


@pytest.mark.parametrize("verb", ["train", "check", "init", "analyze"])
def test_every_verb_explains_itself(printed, verb):
    assert len(printed(verb, "--help").splitlines()) > 5


def test_the_version_is_printed(gdpo_says):
    assert gdpo_says("--version") == (0, f"{gdpo.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    ["trian", "train", "train x --sett a=1", "check x --rows 0"],
)
def test_a_wrong_command_line_is_reported(gdpo_says, arguments):
    code, out, err = gdpo_says(*arguments.split())
    assert code != 0
    assert "Traceback" not in out + err
    assert out + err


@pytest.mark.parametrize("verb", ["train", "check"])
def test_a_mistake_is_one_message_and_exit_code_2(gdpo_says, mistake, tmp_path, saved, verb):
    path = saved(
        "recipe.yaml", "task: gsm8k\nmodle: '[bold]x'\nmodel: x\ndata: {source: '[/red]'}\n"
    )
    code, out, err = gdpo_says(verb, path)
    assert code == 2
    assert out == ""
    assert err.startswith("gdpo: ")
    assert "recipe.yaml:2: unknown key 'modle'" in err
    assert "did you mean 'recipe.yaml'" in mistake(verb, tmp_path / "recipes.yaml")


def test_markup_in_a_message_is_printed_as_it_is(gdpo_says, saved):
    path = saved(
        "recipe.yaml",
        "task: gsm8k\nmodel: x\ndata: {source: a}\nrewards: [{name: '[/red] [bold]'}]\n",
    )
    assert "'[/red] [bold]'" in gdpo_says("check", path)[2]


FIRST = """
import os, pathlib, time
ready, sleep = pathlib.Path(__file__).with_name("ready"), time.sleep
if os.environ.get("RANK") == "1":
    time.sleep = lambda seconds: (ready.touch(), sleep(600))
while os.environ.get("RANK") == "0" and not ready.exists():
    sleep(0.01)
"""
"""Process 0 starts once process 1 waits for it, which then waits until it is ended."""


@pytest.mark.slow
def test_rank_0_complains_before_the_launcher_ends_it(tmp_path, saved):
    """The other process fails first, and the launcher ends all that still run."""
    saved("sitecustomize.py", FIRST)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    command = (*launcher, "-m", "gdpo", "check", str(tmp_path / "missing.yaml"))
    done = python(*command, env=environment(tmp_path))
    assert done.returncode != 0
    assert re.findall("^gdpo: (rank 1)?", done.stderr, re.MULTILINE) == [""]


def test_another_rank_complains_if_it_fails_alone(gdpo_says, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("gdpo.cli._app._RANK_0_S", 0.0)
    code, out, err = gdpo_says("check", tmp_path / "missing.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("gdpo: rank 1: ")


def test_rewards_are_found_in_the_working_directory(gdpo_says, here, monkeypatch):
    (here / "rewards_here.py").write_text(
        "from gdpo import Reward\nmine = Reward('mine', lambda c, r: 0.0, low=0, high=1)\n"
    )
    (here / "rows.jsonl").write_text('{"question": "2?", "answer": "#### 2"}\n')
    (here / "recipe.yaml").write_text(
        "task: gsm8k\nmodel: ./x\ndata: {source: rows.jsonl}\n"
        "rewards: [{name: 'rewards_here:mine'}]\n"
    )
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    _, out, _ = gdpo_says("check", "recipe.yaml")
    assert "reward mine in [0, 1]" in out


def test_ctrl_c_before_the_training_is_no_traceback(tmp_path):
    """A recipe that cannot be read to its end: a pipe that nobody writes to."""
    pipe = tmp_path / "recipe.yaml"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "gdpo", "check", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("w"):  # which waits until it is read from
        process.send_signal(2)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped" in err
    assert "Traceback" not in out + err


def test_a_terminal_that_knows_ascii_only_gets_no_traceback():
    command = ("-m", "gdpo", "analyze", "--example", "--output", "none")
    done = python(*command, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "96 % ? 4" in done.stdout


def test_recipes_are_listed_shown_and_copied(printed, mistake, here):
    assert "math_length_7b" in printed("recipes", "ls")
    out = printed("recipes", "show", "gsm8k")
    assert "Expect" in out
    assert "task: gsm8k" in out
    printed("recipes", "copy", "gsm8k")
    assert (here / "gsm8k" / "recipe.yaml").is_file()
    assert "nothing is overwritten" in mistake("recipes", "copy", "gsm8k")
    assert "gdpo recipes ls" in mistake("check", "math_lenght")


def test_evaluate_prints_intervals_and_differences(gdpo_says, here):
    (here / "rows.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n' * 3)
    rows = ("--benchmarks", "gsm8k", "--data", "gsm8k=rows.jsonl")
    code, out, err = gdpo_says("evaluate", "gold", *rows)
    assert code == 0
    assert err.splitlines() == ["gsm8k: 0 of 3 problems", "gsm8k: 3 of 3 problems"]
    assert "1.000" in out
    assert "0.439" in out
    code, out, _ = gdpo_says("evaluate", "empty", *rows, "--baseline", "evaluations/gold")
    assert code == 0
    assert "-1.000" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--benchmarks gsm9k", "did you mean 'gsm8k'"),
        ("--benchmarks ,", "--benchmarks"),
        ("--benchmarks gsm8k --data rows.jsonl", "NAME=FILE"),
        ("--benchmarks gsm8k --data mbpp=a", "mbpp"),
        ("--benchmarks gsm8k --samples 4", "--temperature"),
        ("--benchmarks gsm8k --top-p 0", "--top-p"),
        ("--benchmarks gsm8k --baseline no", "results.json"),
        ("--benchmarks gsm8k --deadline 9", "add --server"),
    ],
)
def test_evaluate_tells_what_is_wrong_before_it_begins(mistake, arguments, message):
    assert message in mistake("evaluate", "gold", *arguments.split())


def test_where_vllm_writes_is_told_only_if_it_runs(gdpo_says):
    code, out, err = gdpo_says("evaluate", "gold", "--benchmarks", "gsm8k", "--engine", "vllm")
    assert (code, out) == (2, "")
    assert "omit --engine" in err


def test_a_full_disk_is_named_and_what_is_done_is_gone_on_with(
    gdpo_says, tmp_path, saved, small_disk
):
    row = json.dumps({"question": "1+1?", "answer": f"#### {'2' * 99}"})
    saved("rows.jsonl", f"{row}\n" * 3)
    folder = small_disk(20_480)
    rows = ("--benchmarks", "gsm8k", "--data", f"gsm8k={tmp_path / 'rows.jsonl'}")
    command = ("evaluate", "gold", *rows, "--output", folder / "e")
    filling = folder / "filling"
    filling.write_bytes(bytes(12_288))
    code, _, err = gdpo_says(*command)
    assert code == 70
    assert f"{folder}/e/gsm8k/problems_000000.parquet" in err.splitlines()[-1]
    assert "full" in err.splitlines()[-1]
    assert "--resume" not in err  # the same command continues
    filling.unlink()
    assert gdpo_says(*command)[0] == 0


def test_a_report_that_cannot_be_written_is_reported(gdpo_says, tmp_path):
    curves = {"format": [0.0, 0.5], "correctness": [1.0] * 2}
    write_run(tmp_path / "runs", "gdpo", 1, curves, declared=DECLARED)
    (tmp_path / "file").touch()
    page = tmp_path / "file" / "page.html"
    code, _, err = gdpo_says("report", tmp_path / "runs", "--output", page)
    assert code == 2
    assert len(err.splitlines()) == 1
    for part in ("gdpo: ", str(page), "Not a directory", "--output"):
        assert part in err


def test_benchmarks_are_checked_with_progress_and_each_failure_printed_once(
    gdpo_says, tmp_path, saved
):
    row = {"text": "Add.", "test_list": ["assert f(1)"], "code": "def f(x): return x"}
    row["test_setup_code"] = "import nothing_of_it"
    saved("rows.jsonl", [row])
    rows = ("--benchmarks", "mbpp", "--data", f"mbpp={tmp_path / 'rows.jsonl'}")
    code, out, err = gdpo_says("check", *rows)
    assert code == 1
    assert out.count("nothing_of_it") == 1
    assert "pass_all, pass_rate, no_bug: raised DataError" in out
    assert [line.rpartition(": ")[2] for line in err.splitlines()] == [
        *("0 of 1 problems", "1 of 1 problems"),  # reference answers
        *("0 of 1 problems", "1 of 1 problems"),  # empty responses
    ]
    assert all(line.startswith("mbpp") for line in err.splitlines())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "--data mbpp=a",
        "recipe.yaml --benchmarks mbpp",
        "recipe.yaml --data mbpp=a",
    ],
)
def test_a_check_is_of_a_recipe_or_of_benchmarks(given, mistake):
    err = mistake("check", *given.split())
    assert "--benchmarks" in err
    assert "without a recipe" in err


def test_a_ctrl_c_while_something_is_imported_is_one_line(tmp_path, saved):
    """Also of a library that would make another error of it, or swallow it."""
    saved(
        "slow_start.py",
        "import os, signal\n"
        "try: os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException: raise ImportError('half a library')\n",
    )
    saved("recipe.yaml", "task: slow_start:task\nmodel: none\ndata: {source: rows.jsonl}\n")
    done = python("-m", "gdpo", "train", "recipe.yaml", cwd=tmp_path)
    assert done.returncode == 130
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.strip().startswith("gdpo: stopped")
    assert "--resume" in done.stderr


def test_a_ctrl_c_that_is_swallowed_is_sent_again(tmp_path, saved):
    saved(
        "swallowing.py",
        "import os, signal, time\n"
        "class Swallows:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\n"
        "def task():\n"
        "    Swallows()\n"
        "    time.sleep(600)\n",
    )
    code = (
        "import sys; from gdpo.cli import _quick_to_stop; from gdpo.cli._app import _code_of, app\n"
        "from swallowing import task; app.command(task, name='swallow')\n"
        "with _quick_to_stop(): sys.exit(_code_of(['swallow']))"
    )
    done = python("-c", code, cwd=tmp_path, timeout=500)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr


def test_an_error_of_a_user_without_its_own_text_is_printed(tmp_path):
    code = (
        "from gdpo import RewardError; from gdpo.cli import main; from gdpo.cli._app import app\n"
        "class Own(RewardError):\n"
        "    def __init__(self, code): self.code = code\n"
        "def fail(): raise Own('code 3')\n"
        "app.command(fail); main(['fail'])"
    )
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "gdpo: code 3\n")


def test_what_answers_a_ctrl_c_is_there_before_anything_heavy():
    listing = "import sys, gdpo.cli; print(*{'numpy', 'rich', 'pydantic'} & set(sys.modules))"
    done = python("-c", listing)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
@pytest.mark.parametrize("command", ["recipes show gsm8k", "analyze --example --output none"])
def test_a_full_disk_is_one_line(command):
    with open("/dev/full", "w") as full:  # noqa: PTH123 (a device)
        done = subprocess.run(
            [sys.executable, "-m", "gdpo", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    assert done.returncode == 70
    assert done.stderr.startswith("gdpo: the disk")
    assert "full" in done.stderr
    assert len(done.stderr.splitlines()) == 1
