"""`gdpo analyze` on logs and rollouts in other forms, and on files that it refuses."""

import json

import pytest
from tests.cli.printed import commands_in, printed_by, run_printed
from tests.environments import ROOT
from tests.rollouts.readers.written import lines, trl

FORMS = ROOT / "tests/analysis/logs/golden_forms"
ROWS = [
    {"step": step, "prompt": f"p{i // 4}", "good_reward": i % 3, "style_reward": i % 2}
    for step in range(3)
    for i in range(8)
]


pytestmark = pytest.mark.usefixtures("here")


NAMES = sorted(file.name for file in FORMS.iterdir() if "." in file.name[:-3])
LOGS = [name for name in NAMES if not name.startswith(("README", "make"))]


@pytest.mark.parametrize("name", LOGS)
def test_logs_in_every_form_are_logs(shown, name):
    out = shown(FORMS / name)
    text = " ".join(out.split())
    assert "metrics only, no rollouts: 20 logged" in text
    assert "\naccuracy" in out or "\nformat" in out
    assert "influence share" not in out.split("metrics cannot show")[0]
    with_std = {
        "console_5.txt",
        "logging.jsonl",
        "history.csv",
        "history.parquet",
        "spreadsheet.csv",
    }
    assert ("without the std of a reward" in text) == (name not in with_std)
    assert ("weight × std" in out) == (name in with_std)
    assert ("the rows contain no step" in text) == (
        name in ("pasted.jsonl", "pasted.json", "console.log", "console_5.txt")
    )


def test_what_may_be_metrics_or_rollouts_is_refused_with_two_commands_that_work(gdpo_says, here):
    file = here / "my rows.jsonl"
    lines(file, ({"step": i // 4, "rewards/a": i % 3, "rewards/b": i / 9} for i in range(80)))
    code, out, err = gdpo_says("analyze", "my rows.jsonl")
    assert code == 2
    assert "reward" not in out
    assert "--rewards" not in err
    as_metrics, as_rollouts = commands_in(err)
    assert "metrics only, no rollouts: 20 logged steps" in printed_by(as_metrics, gdpo_says)
    assert "format columns" in printed_by(as_rollouts, gdpo_says)
    code, _, err = run_printed(f"{as_metrics} --follow", gdpo_says)
    assert code == 2
    assert "--follow waits for rollouts" in err


WITHOUT_REWARDS = {
    "x.csv": "step,loss,grad_norm,reward\n1,0.5,1,0.5\n2,0.5,1,0.5\n",
    "chart.csv": "Step,r - train/reward,r - train/reward__MIN,r - train/reward__MAX\n1,2,1,3\n",
    "x.log": "{'loss': 0.5, 'grad_norm': 1.0}\n{'loss': 0.5, 'grad_norm': 1.0}\n",
    "verl.jsonl": '{"step": 1, "data": {"critic/rewards/mean": 0.5, "actor/kl": 0.1}}\n',
    "trainer_state.json": '{"log_history": [{"step": 1, "loss": 0.5, "reward": 1.0}]}',
    "dpo.jsonl": '{"loss": 1, "epoch": 1, "rewards/chosen": 1, "rewards/rejected": 0}\n',
}


@pytest.mark.parametrize("name", WITHOUT_REWARDS)
def test_metrics_without_single_rewards_are_an_error_without_a_proposal(refused, here, name):
    (here / name).write_text(WITHOUT_REWARDS[name])
    err = refused(name)
    assert "no metric of a single reward" in err
    assert commands_in(err) == []


def test_what_tells_nothing_as_metrics_is_proposed_as_rollouts_only(gdpo_says, here):
    lines(here / "x.jsonl", ({"step": i // 4, "reward": i % 3, "loss": 0.5} for i in range(12)))
    code, _, err = gdpo_says("analyze", "x.jsonl")
    assert code == 2
    (command,) = commands_in(err)
    assert "12 rows: 12 read" in printed_by(command, gdpo_says)


def test_rows_that_never_share_a_step_are_metrics(shown, here):
    rows = [{"step": i, "rewards/a": i % 3, "rewards/b": i / 9} for i in range(20)]
    lines(here / "x.jsonl", rows)
    assert "metrics only, no rollouts: 20 logged steps" in shown("x.jsonl")


def test_groups_over_several_steps_are_refused(analyze, shown, here):
    rows = [{"step": i, "reward": i / 9, "reward_a": i % 3, "reward_b": i / 9} for i in range(20)]
    lines(here / "x.jsonl", rows[5:] + rows)
    assert "15 rows repeat the step of an earlier row" not in shown("x.jsonl")
    changed = [{**row, "reward_a": row["reward_a"] + 1} for row in rows]
    lines(here / "x.jsonl", rows[5:] + changed + rows)
    assert "! 35 rows repeat the step of an earlier row" in shown("x.jsonl")
    for more in ((), ("--columns", "format=columns"), ("--columns", "step=step")):
        code, out, err = analyze("x.jsonl", "--columns", "group_size=2", *more)
        assert (code, "reward_a" in out) == (2, False)
        assert "--columns needs rollouts, but x.jsonl contains only metrics" in err


def test_rows_without_a_step_are_proposed_as_metrics_too(gdpo_says, here):
    rows = ({"reward": i + i % 3, "reward_a": i % 3, "reward_b": i} for i in range(20))
    lines(here / "x.jsonl", rows)
    code, _, err = gdpo_says("analyze", "x.jsonl")
    assert code == 2
    for command in commands_in(err):
        printed_by(command, gdpo_says)
    assert commands_in(err)[1] == "gdpo analyze x.jsonl --columns format=metrics"


def test_files_of_trl_are_read_by_the_names_of_their_columns_and_repeated_as_printed(
    shown, gdpo_says, here
):
    trl(here, [row | {"completion": "c", "advantage": row["good_reward"] - 1.0} for row in ROWS])
    out = shown("completions", "--columns", "format=columns")
    assert "6 groups of 4, by equal prompts" in out
    (command,) = commands_in(out)
    assert "6 groups of 4, by equal prompts" in printed_by(command, gdpo_says)


def test_no_group_size_is_proposed_if_each_step_has_one_rollout(analyze, here):
    rows = [{"step": i, "prompt": f"p{i}", "reward_a": i % 3, "reward_b": i / 9} for i in range(20)]
    lines(here / "x.jsonl", rows)
    code, _, err = analyze("x.jsonl")
    assert (code, commands_in(err)) == (2, [])


def kept(*labels, field="kind", **texts):
    return [
        {
            "step": step,
            "prompt": f"p{step}",
            field: label,
            "reward_a": step % 3,
            "reward_b": step / 9,
        }
        | texts
        for step in range(64)
        for label in labels
    ]


OF_ONE = {"a_reward": 1.0, "b_reward": 0.5}
SELECTIONS = {
    "best and worst": kept("best", "worst"),
    "Best of 8": kept("Best of 8", "Worst of 8", completion="c"),
    "top and bottom": kept("top", "bottom", field="rank"),
    "good and bad": kept("good", "bad"),
    "best only": kept("best", completion="c"),
    "with the median": kept("max", "median", "min"),
    "columns": [
        {
            "step": i,
            "best_completion": "x",
            "best_reward": i,
            "worst_completion": "y",
            "worst_reward": 0,
        }
        for i in range(64)
    ],
    "best column": [{"prompt": f"p{i}", "best_response": "x", **OF_ONE} for i in range(64)],
    "objects": [{"step": i, "best": {"completion": "x", **OF_ONE}, "worst": {}} for i in range(64)],
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize(
    "options", [(), ("--columns", "group_size=2"), ("--columns", "format=columns")]
)
def test_a_file_with_only_the_best_and_worst_samples_is_refused(analyze, here, name, options):
    lines(here / "x.jsonl", SELECTIONS[name])
    code, out, err = analyze("x.jsonl", *options)
    assert (code, commands_in(err)) == (2, [])
    assert "x.jsonl: not read: the file keeps only the best and worst samples" in out


WHOLE = {
    "labels in groups of 4": kept("good", "bad", "good", "bad"),
    "another label": kept("best", "worst", "other"),
    "texts": kept("Best is what I say first", "Worst is what I say first"),
    "a long text": kept("-" * 10**5, "." * 10**5),
    "both and their group": [
        {**row, "best_answer": "x", "completion": "c"} for row in kept("a", "b")
    ],
}


@pytest.mark.parametrize("name", WHOLE)
def test_labels_that_select_nothing_are_only_labels(analyze, here, name):
    lines(here / "x.jsonl", WHOLE[name])
    assert analyze("x.jsonl", "--output", "none")[0] == 0


def test_metrics_with_the_best_sample_of_each_step_are_metrics(shown, here):
    row = {"loss": 0.1, "best_completion": "The answer is 4.", "best_reward": 1}
    lines(
        here / "x.jsonl",
        ({"step": i, "rewards/a/mean": i / 9, "rewards/b/mean": 1, **row} for i in range(20)),
    )
    assert "metrics only, no rollouts: 20 logged" in shown("x.jsonl")


def test_a_label_of_prompts_selects_no_samples(analyze, here):
    rows = [{**row, "prompt": i} for i, row in enumerate(kept("good", "bad"))]
    lines(here / "x.jsonl", rows)
    assert "best and worst" not in "".join(map(str, analyze("x.jsonl")))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "my x.log"])
def test_wide_text_is_refused_with_a_command_that_converts_it(gdpo_says, here, name, encoding):
    rows = {"x.jsonl": lines(here / name, ROWS).read_text(), "x.json": json.dumps(ROWS)}
    rows["x.csv"] = "prompt,a_reward\n" + "".join(f"p{i // 4},{i % 3}\n" for i in range(16))
    rows["my x.log"] = (FORMS / "console.log").read_text()
    (here / name).write_bytes(rows[name].encode(encoding))
    code, out, err = gdpo_says("analyze", name)
    assert code == 2
    assert f"the file is {encoding.upper()[:6]}" in out + err
    (command,) = {*commands_in(out), *commands_in(err)}
    printed_by(command, gdpo_says)
    assert gdpo_says("analyze", f"utf8_{name}", "--output", "none")[0] == 0


def test_a_list_in_an_object_is_refused_with_a_command_that_separates_it(gdpo_says, summary, here):
    (here / "x.json").write_text(json.dumps({"n": 3, "train": ROWS, "test": ROWS[:8]}))
    code, out, _ = gdpo_says("analyze", "x.json")
    assert code == 2
    assert "the file is one JSON object" in out
    (command,) = commands_in(out)
    printed_by(command, gdpo_says)
    assert "24 rows: 24 read" in summary("x_rows.jsonl")


def test_folders_that_are_not_read_are_not_counted_as_files(summary, here):
    run = here / "run"
    run.mkdir()
    lines(run / "a.jsonl", ROWS)
    (run / "b.jsonl.zst").write_bytes(b"")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    for number in range(9):
        lines(elsewhere / f"{number}.jsonl", ROWS)
    (run / "linked").symlink_to(elsewhere)
    assert "24 rows: 24 read, 0 skipped; 1 file and 1 folder not read" in summary(run)


def test_files_of_other_kinds_are_counted_if_nothing_can_be_read(analyze, here):
    run = here / "run"
    run.mkdir()
    for number in range(8):
        (run / f"{number}.dat").write_bytes(b"x")
    (run / "a.pkl").write_bytes(b"x")
    code, out, err = analyze(run)
    assert code == 2
    assert "1 file not read" in out
    assert "8 other files have none of the extensions .parquet" in err
