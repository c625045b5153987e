"""Where `gdpo analyze` guesses, the file decides, or the command is refused with a way out."""

import json

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.layouts import judge
from tests.cli.test_analyze_layouts import run_commands, written

RNG = np.random.default_rng(1)


def rollouts(steps=8, prompts=8, size=4):
    """Known rewards of every rollout of a run: `a` depends on the prompt."""
    for step in range(steps):
        for prompt in range(prompts):
            for sample in range(size):
                a = float(RNG.random() < (0.2 if prompt % 2 else 0.8))
                yield step, prompt, sample, a, round(float(RNG.random()), 4)


def text(step, prompt, sample):
    return {"prompt": f"question {step}-{prompt}", "completion": f"answer {sample}"}


def in_files(folder, kind, rows):
    """Write the rows of each step into a file of its own."""
    folder.mkdir()
    for step in {row["step"] for row in rows}:
        written(folder / f"step_{step}", kind, [row for row in rows if row["step"] == step])
    return folder


def made(more, **sizes):
    """The rollouts of a run, each with its step, its texts, and what a function says of it."""
    found = rollouts(**sizes)
    return [{"step": s} | text(s, p, g) | more(s, p, g, a, b) for s, p, g, a, b in found]


def test_no_verdict_rests_on_columns_that_differ_between_files(machine, tmp_path):
    rows = made(lambda s, p, g, a, b: {"a": a, "b": b, ("uid" if s % 2 else "group_id"): p})
    folder = in_files(tmp_path / "run", "jsonl", rows)
    given = ("--rewards", "a,b", "--columns", "step=step,prompt=prompt")
    (run,) = machine(folder, *given)["runs"]
    assert run["verdict"]["action"] == "unknown"
    assert "'group_id', 'uid' were guessed" in run["verdict"]["sentence"]


def weight_shares(run):
    return [reward["weight_share"] for reward in run["rewards"]]


def names_of(run):
    return [reward["name"] for reward in run["rewards"]]


def assert_of_64_groups(found):
    assert found["groups"]["sizes"] == {"4": 64}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def found_in(machine, folder):
    """Write rows into a file of a kind, and return what the command finds in it."""
    return lambda kind, rows: machine(written(folder, kind, rows))


of_every_kind = pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
of_lines_and_columns = pytest.mark.parametrize("kind", ["jsonl", "parquet"])


@pytest.mark.parametrize("seed", range(12))
def test_a_layout_is_read_right_or_refused_with_commands_that_work(seed):
    verdict, why, layout = judge(seed)
    assert verdict != "wrong", (why, layout.what)


@of_every_kind
def test_weights_in_the_total_are_used(found_in, kind):
    rows = made(lambda s, p, g, a, b: {"a_reward": a, "b_reward": b, "reward": a + 0.1 * b})
    found = found_in(kind, rows)
    (run,) = found["runs"]
    assert run["weights_from"] == "found in the total"
    assert weight_shares(run) == pytest.approx([1 / 1.1, 0.1 / 1.1])
    assert found["notices"] == []


@of_lines_and_columns
def test_rollouts_whose_total_has_other_weights_are_reported(found_in, kind):
    def scored(s, p, g, a, b):
        return {"a_reward": a, "b_reward": b, "reward": a + (0.1 if s < 15 else 0.5) * b}

    rows = made(scored, steps=16, prompts=80)
    found = found_in(kind, rows)
    (notice,) = found["notices"]
    assert "'reward' is not the sum" in str(notice)


def with_ids(ids):
    return [
        ({"group_id": p} if ids == "restart" else {"step": s, "rank": p % 2, "group_id": p // 2})
        | text(s, p, g)
        | {"reward_a": a, "reward_b": b}
        for s, p, g, a, b in rollouts()
    ]


@of_every_kind
@pytest.mark.parametrize("ids", ["restart", "worker"])
def test_ids_that_the_prompts_contradict_are_taken_with_the_prompt(found_in, kind, ids):
    found = found_in(kind, with_ids(ids))
    assert_of_64_groups(found)
    assert list(found["groups"]["by"]) == ["group id and prompt"]
    assert len(found["notices"]) == 1


@of_lines_and_columns
def test_ids_that_restart_between_parts_of_a_file_are_told_apart(found_in, kind, monkeypatch):
    from gdpo.rollouts.readers import batches, rewards

    for name in ("_CHUNK", "_BATCH", "LOOKED_AT"):
        monkeypatch.setattr(batches, name, 32)
    monkeypatch.setattr(rewards, "LOOKED_AT", 32)
    found = found_in(kind, with_ids("restart"))
    assert_of_64_groups(found)


@of_every_kind
def test_rows_of_one_rollout_are_its_turns(found_in, kind):
    rows = []
    for s, p, g, a, b in rollouts():
        said = f"question {s}-{p}"
        for turn in range(1 + g % 3):
            place = {"uid": f"{s}-{p}", "rollout_id": g, "turn": turn, "prompt": said}
            rows.append({"step": s, "response": "x"} | place | {"reward_a": a, "reward_b": b})
            said += f" then {s}{p}{g}{turn}"
    found = found_in(kind, rows)
    assert_of_64_groups(found)
    assert found["runs"][0]["rollouts"] == 256
    assert any("turn" in str(notice) for notice in found["notices"])


def test_rewards_that_differ_by_turn_are_added_and_kept_for_each_turn(analyze, folder):
    from gdpo.rollouts.readers import read_rollout_files

    rows = [
        {"step": s, "rollout_id": f"{p}-{g}", "turn": turn}
        | text(s, p, g)
        | {"reward_a": a * (turn == 1), "reward_b": b}
        for s, p, g, a, b in rollouts()
        for turn in range(2)
    ]
    path = written(folder, "jsonl", rows)
    table = next(read_rollout_files(path))
    assert len(table) == 32
    assert table.turns is not None
    assert table.turns.counts.tolist() == [2] * 32
    np.testing.assert_array_equal(table.turns.rewards.sum(axis=1), table.rewards)
    last = [row for row in rows if row["turn"] == 1 and row["step"] == 0]
    wanted = [(row["reward_a"], row["reward_b"]) for row in last]
    assert [tuple(each) for each in table.rewards] == wanted  # `b` is that of the rollout


@pytest.mark.parametrize("options", [(), ("--output", "json")])
def test_groups_of_one_are_refused_and_the_command_compares(analyze, machine, folder, options):
    rows = [
        {"step": s, "prompt": f"in /tmp/{RNG.random()} do {p}", "reward_a": a, "reward_b": b}
        for s, p, g, a, b in rollouts()
    ]
    path = written(folder, "jsonl", rows)
    code, out, err = analyze(path, *options)
    assert code == 2
    assert "%" not in out
    assert "--columns group=" in err
    run_commands(machine, err)


LOG = {"loss": 0.1, "grad_norm": 0.3, "learning_rate": 1e-6, "epoch": 0.1, "reward": 0.4}


@of_every_kind
@pytest.mark.parametrize("rewards", ["rewards/accuracy_reward", "reward_accuracy"])
def test_lines_of_a_log_are_no_rollouts(analyze, tmp_path, kind, rewards):
    rows = [LOG | {"step": s, rewards: s / 30} for s in range(30)]
    path = written(tmp_path / "history", kind, rows)
    code, out, err = analyze(path, "--output", "none")
    assert "rollouts;" not in out
    assert "--rewards" not in err
    assert code == 2 or "metrics" in out


READ = {
    "list": lambda a, b: {"rewards": [a, b], "reward_names": ["a", "b"]},
    "objects": lambda a, b: {"rewards": [{"name": "a", "value": a}, {"name": "b", "value": b}]},
    "JSON": lambda a, b: {"rewards": json.dumps({"a": a, "b": b})},
    "texts": lambda a, b: {"rewards": {"a": str(a), "b": str(b)}},
    "truths": lambda a, b: {"rewards": {"a": a > 0, "b": b}},
}


@of_lines_and_columns
@pytest.mark.parametrize("form", READ)
def test_a_field_called_rewards_is_read(found_in, kind, form):
    rows = made(lambda s, p, g, a, b: {"score": None, "gen_case": g} | READ[form](a, b))
    found = found_in(kind, rows)
    assert names_of(found["runs"][0]) == ["a", "b"]


UNREAD = {
    "text": lambda a, b: {"rewards": f"a is {a}"},
    "list of texts": lambda a, b: {"rewards": ["a is good", "b is bad"]},
    "lists": lambda a, b: {"rewards": [[a], [b, b]]},
    "one per completion": lambda a, b: {"rewards": [a, b], "completions": ["x", "y"]},
}


@pytest.mark.parametrize("form", UNREAD)
def test_a_field_called_rewards_that_cannot_be_read_ends_the_search(analyze, machine, folder, form):
    rows = made(lambda s, p, g, a, b: {"accuracy": a, "format": g % 2} | UNREAD[form](a, b))
    code, _, err = analyze(written(folder, "jsonl", rows), "--output", "none")
    assert code == 2
    assert "'rewards'" in err
    run_commands(machine, err)


@pytest.mark.parametrize("total", ["product", "independent"])
def test_both_readings_of_a_doubtful_total_are_commands_that_work(analyze, machine, folder, total):
    def scored(s, p, g, a, b):
        whole = a * b if total == "product" else float(g % 2)
        return {"a_reward": a, "b_reward": b, "reward": whole}

    rows = made(scored)
    path = written(folder, "jsonl", rows)
    code, out, err = analyze(path, "--output", "none")
    assert code == 2
    assert "! " in out
    both = [["a_reward", "b_reward"], ["reward", "a_reward", "b_reward"], ["reward"]]
    assert run_commands(machine, err) == both


def test_columns_of_the_dataset_are_no_rewards_of_trl_over_all_its_files(machine, tmp_path):
    rows = made(
        lambda s, p, g, a, b: (
            {"correct": a, "short": b, "rating": s + p / 9}
            | {"difficulty": p / 7, "advantage": 0.1 * g}
        ),
        steps=10,
        prompts=4,
    )
    folder = in_files(tmp_path / "completions", "parquet", rows)
    for file in list(folder.iterdir()):
        file.rename(folder / f"completions_{file.stem[5:]:0>5}.parquet")
    (run,) = machine(tmp_path)["runs"]
    assert names_of(run) == ["correct", "short"]


@of_every_kind
@pytest.mark.parametrize("name", ["prompt_uid", "qid", "question_idx", "task_id"])
def test_ids_of_groups_have_many_names(found_in, kind, name):
    rows = [
        {"step": s, name: s * 8 + p, "output": f"{g}", "a_reward": a, "b_reward": b}
        for s, p, g, a, b in rollouts()
    ]
    assert found_in(kind, rows)["groups"]["count"] == 64


@pytest.mark.parametrize("form", [dict, list, "pairs", json.dumps])
def test_rewards_in_structs_lists_and_texts_are_read_from_arrow_files(machine, tmp_path, form):
    forms = {"pairs": lambda found: [{"name": n, "value": v} for n, v in found.items()]}
    forms[list] = lambda found: list(found.values())
    write = forms.get(form, form)
    rows = made(lambda s, p, g, a, b: {"rewards": write({"0": a, "1": b}), "total": a + 0.1 * b})
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(tmp_path / "run.arrow", table.schema) as file:
        file.write_table(table)
    (run,) = machine(tmp_path / "run.arrow")["runs"]
    assert weight_shares(run) == pytest.approx([1 / 1.1, 0.1 / 1.1])


@of_every_kind
def test_a_run_of_small_files_is_judged_on_all_of_them(machine, folder, kind):
    """In the first file, the total does not show the weights, because a reward is constant."""
    rows = made(
        lambda s, p, g, a, b: (
            {"correct": a, "rouge": b * (s > 0), "reward": a + 0.1 * b * (s > 0)}
        ),
        prompts=2,
    )
    found = machine(in_files(folder, kind, rows))
    assert found["notices"] == []
    (run,) = found["runs"]
    assert names_of(run) == ["correct", "rouge"]
    assert weight_shares(run) == pytest.approx([1 / 1.1, 0.1 / 1.1], abs=1e-3)


@of_every_kind
def test_a_refusal_holds_for_all_files_of_a_run(refused, folder, kind):
    """In the last file alone, the product is a sum, because one reward is constant."""

    def scored(s, p, g, a, b):
        b = 1.0 if s == 2 else b
        return {"a_reward": a, "b_reward": b, "reward": a * b}

    in_files(folder, kind, made(scored, steps=3))
    assert "not a weighted sum" in refused(folder, "--output", "none")


@pytest.mark.parametrize(
    "fields",
    [{"example_id": 1}, {"prompt_idx": 1, "response_tokens": 12}, {"gen_step": 1}],
    ids=["verifiers-results", "open-instruct", "ms-swift-ray"],
)
def test_a_file_of_own_fields_is_not_taken_for_a_format_with_a_scalar_reward(found_in, fields):
    rows = made(
        lambda s, p, g, a, b: (
            {name: s * 8 + p if "id" in name else s for name in fields}
            | {"a_reward": a, "b_reward": b, "reward": a + 0.1 * b}
        )
    )
    (run,) = found_in("jsonl", rows)["runs"]
    assert names_of(run) == ["a_reward", "b_reward"]


def test_rewards_that_the_user_names_and_the_total_contradicts_are_marked(analyze, folder):
    rows = made(lambda s, p, g, a, b: {"a_reward": a, "b_reward": b, "reward": a * b})
    path = written(folder, "jsonl", rows)
    code, out, _ = analyze(path, "--rewards", "a_reward,b_reward", "--output", "none")
    assert (code, "\n! " in out) == (0, True)
    assert "--weights a_reward=NUMBER,b_reward=NUMBER" in out


@of_every_kind
def test_ids_that_restart_in_the_file_of_each_rank_are_taken_with_the_prompt(machine, folder, kind):
    files = {}
    for row in with_ids("worker"):
        files.setdefault(f"step{row['step']}_rank{row.pop('rank')}", []).append(row)
    for name, rows in files.items():
        written(folder / name, kind, rows)
    found = machine(folder)
    assert_of_64_groups(found)
    assert list(found["groups"]["by"]) == ["group id and prompt"]


@of_every_kind
def test_ids_of_single_rollouts_do_not_form_groups_if_their_prompts_do(
    analyze, machine, folder, kind
):
    rows = made(lambda s, p, g, a, b: {"uid": f"{s}-{p}-{g}"} | {"reward_a": a, "reward_b": b})
    path = written(folder, kind, rows)
    found = machine(path)
    assert_of_64_groups(found)
    assert list(found["groups"]["by"]) == ["equal prompts"]
    assert "each group id has one rollout" in str(found["notices"])
    assert analyze(path, "--columns", "group=uid")[0] == 2


WEIGHED = {
    "object": lambda a, b, name: {name: {"a": 0.25, "b": 1}, "rewards": {"a": a, "b": b}},
    "list": lambda a, b, name: {name: [0.25, 1], "rewards": [a, b], "reward_names": ["a", "b"]},
    "each": lambda a, b, _: {
        "rewards": {"a": {"value": a, "weight": 0.25}, "b": {"value": b, "weight": 1}}
    },
    "named": lambda a, b, _: {
        "rewards": [
            {"name": "a", "score": a, "weight": 0.25},
            {"name": "b", "score": b, "weight": 1},
        ]
    },
    "text": lambda a, b, _: {"rewards": json.dumps(WEIGHED["each"](a, b, _)["rewards"])},
}


@pytest.mark.parametrize(
    ("name", "named"), [("weights", ()), ("reward_weights", ("--rewards", "a,b"))]
)
@of_lines_and_columns
@pytest.mark.parametrize("form", WEIGHED)
def test_weights_beside_the_rewards_are_read(machine, folder, form, kind, name, named):
    path = written(folder, kind, made(lambda s, p, g, a, b: WEIGHED[form](a, b, name)))
    (run,) = machine(path, *named)["runs"]
    assert weight_shares(run) == pytest.approx([0.2, 0.8])


@of_lines_and_columns
def test_weights_beside_values_of_any_name_are_read(machine, folder, kind):
    def fields(s, p, g, a, b):
        return {"rewards": {"a": {"points": a, "weight": 0.25}, "b": {"points": b, "weight": 1}}}

    named = "rewards.a.points,rewards.b.points"
    (run,) = machine(written(folder, kind, made(fields)), "--rewards", named)["runs"]
    assert weight_shares(run) == pytest.approx([0.2, 0.8])


@of_lines_and_columns
@pytest.mark.parametrize("of", [str, lambda a: str(a > 0), lambda a: "yes" if a > 0 else "no"])
def test_a_reward_that_is_the_text_of_a_number_is_not_dropped_silently(
    analyze, machine, folder, kind, of
):
    rows = made(lambda s, p, g, a, b: {"answer_correct": of(a), "format_reward": b})
    code, _, err = analyze(written(folder, kind, rows), "--output", "none")
    assert code == 2
    both = ["format_reward", "answer_correct"]
    assert run_commands(machine, err) == [both[:1], both]


@of_every_kind
def test_the_steps_of_an_episode_are_its_turns_next_to_the_iteration(found_in, kind):
    rows = [
        {"iteration": s, "task_id": p, "episode_id": f"{s}-{p}-{g}", "step": turn}
        | {"prompt": f"question {s}-{p}", "action": "x"}
        | {"reward_a": a * (turn == 1), "reward_b": b}
        for s, p, g, a, b in rollouts()
        for turn in range(2)
    ]
    found = found_in(kind, rows)
    assert_of_64_groups(found)
    assert found["runs"][0]["rollouts"] == 256


def test_a_list_of_one_number_for_each_completion_is_refused_with_what_to_do(refused, folder):
    rows = [
        {"step": s, "prompt": f"question {s}-{p}", "completions": ["x"] * 4, "rewards": [a, b] * 2}
        for s, p, g, a, b in rollouts(size=1)
    ]
    err = refused(written(folder, "jsonl", rows), "--output", "none")
    assert "'rewards' cannot be read as numbers" in err
    assert "one line per rollout" in err
    assert "gdpo analyze" not in err
