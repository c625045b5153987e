"""Evaluations: reference answers score 1, parts are saved, and a model responds."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.evaluation.conftest import written
from tests.refusals import config_error, data_error
from transformers import AutoModelForCausalLM

from gdpo.integrations.trl.logprobs import KERNELS
from gdpo.lab.evaluation import evaluate
from gdpo.lab.evaluation.benchmarks import find_benchmark
from gdpo.lab.evaluation.evaluation import EvaluationSettings, read_results
from gdpo.lab.evaluation.named import folder_of, responder_of, weights_of
from gdpo.lab.evaluation.responders import LocalModel, Response, Sampling
from gdpo.lab.evaluation.server import ANSWERED, Answered
from gdpo.lab.evaluation.tables import add_to_readme, differences_table
from gdpo.rollouts import read_rollouts

TRL = "gdpo.integrations.trl"
SETTINGS = EvaluationSettings("gold", Sampling(), 4000)


def run(folder, names, files, settings=SETTINGS, **options):
    benchmarks = [find_benchmark(name, file) for name, file in zip(names, files, strict=True)]
    answering = options.pop("answering", None) or responder_of(
        settings.model, settings.sampling, server=None, at_once=8
    )
    return evaluate(settings, benchmarks, answering, folder, **options)


@pytest.fixture
def evaluated(gsm8k_file):
    """Evaluate on gsm8k in a folder, where the answers are those of the model or of an object."""

    def in_folder(folder, settings=SETTINGS, *, answers=None, **options):
        answering = {"answering": lambda _: answers} if answers else {}
        return run(folder, ["gsm8k"], [gsm8k_file], settings, **answering, **options)

    return in_folder


def means(results):
    return {r.benchmark: {name: e.mean for name, e in r.estimates.items()} for r in results}


def test_reference_answers_score_1_and_empty_responses_0(gsm8k_file, mbpp_file, tmp_path):
    names, files = ["gsm8k", "mbpp"], [gsm8k_file, mbpp_file]
    assert means(run(tmp_path / "gold", names, files)) == {
        "gsm8k": {"correct": 1, "integer": 1, "format": 1, "correct, flexible": 1, "too long": 0},
        "mbpp": {"all tests": 1, "tests passed": 1, "bug": 0, "too long": 0},
    }
    nothing = replace(SETTINGS, model="empty")
    assert means(run(tmp_path / "empty", names, files, nothing)) == {
        "gsm8k": {"correct": 0, "integer": 0, "format": 0, "correct, flexible": 0, "too long": 0},
        "mbpp": {"all tests": 0, "tests passed": 0, "bug": 1, "too long": 0},
    }


class Counting:
    """Responds correctly and at length to every other problem. `begin` is called at each part."""

    def __init__(self, begin=lambda seed: None, samples=1):
        self.asked, self.begin, self.samples = [], begin, samples

    def respond(self, problems, seed, samples, heard):
        self.begin(seed)
        self.asked.append((seed, len(problems)))
        heard(len(problems) * self.samples)
        answers = [p.reference["answer"] for p in problems]
        return [
            [
                Response(f"<answer>{a}</answer>", 5000, "stop")
                if int(a) % 4
                else Response("no", 3, "length")
            ]
            * self.samples
            for a in answers
        ]


def test_finished_parts_are_kept_when_an_evaluation_is_resumed(evaluated, tmp_path):
    def stop(seed):
        if seed == 32:
            raise KeyboardInterrupt

    first, second, progress = Counting(stop), Counting(), []
    with pytest.raises(KeyboardInterrupt):
        evaluated(tmp_path / "e", answers=first)
    results = evaluated(tmp_path / "e", answers=second, on_progress=progress.append)
    assert first.asked == [(0, 32)]
    assert second.asked == [(32, 32), (64, 6)]
    assert [(now.done, now.part, now.answered, now.responses) for now in progress] == [
        (32, 0, 0, 0),
        *((32, 32, 0, 32), (32, 32, 32, 32), (64, 0, 0, 0)),
        *((64, 6, 0, 6), (64, 6, 6, 6), (70, 0, 0, 0)),
    ]
    assert {(now.benchmark, now.problems) for now in progress} == {("gsm8k", 70)}
    whole = evaluated(tmp_path / "f", answers=Counting())
    assert results == whole
    assert means(results)["gsm8k"] == {
        "correct": 0.5,
        "integer": 0.5,
        "format": 0,
        "correct, flexible": 0.5,
        "too long": 0.5,
    }
    assert read_results(tmp_path / "e") == results
    again = evaluated(tmp_path / "e", answering=lambda _: pytest.fail("asked"))
    assert again == results


def test_two_at_once_in_one_folder_are_refused(evaluated, tmp_path):
    folder = tmp_path / "evaluation"
    refused = []

    def again(seed):
        with config_error(f"another process .*{folder}") as e:
            evaluated(folder)
        refused.append(e)

    evaluated(folder, answers=Counting(again))
    assert len(refused) == 3
    evaluated(folder)


def test_half_written_files_of_a_killed_evaluation_are_removed(evaluated, tmp_path):
    folder = tmp_path / "evaluation"
    halves = [folder / "gsm8k" / "problems_000032.99.partial", folder / ".settings.json.99.partial"]
    for half in halves:
        half.parent.mkdir(parents=True, exist_ok=True)
        half.touch()
    (folder / "gsm8k").rename(tmp_path / "aside")
    (folder / ".lock").touch()
    evaluated(folder)  # killed before its settings: the folder is free
    (tmp_path / "aside" / halves[0].name).rename(halves[0])
    evaluated(folder)
    assert not any(half.exists() for half in halves)


@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_part_that_cannot_be_read_is_renamed_and_evaluated_again(
    left, evaluated, tmp_path, caplog
):
    folder = tmp_path / "e"
    whole = evaluated(folder, answers=Counting())
    part = folder / "gsm8k" / "problems_000032.parquet"
    for number in (1, 2):
        part.write_bytes(part.read_bytes()[:left])
        again = Counting()
        assert evaluated(folder, answers=again) == whole
        assert again.asked == [(32, 32)]
        assert part.with_name(f"{part.name}.broken-{number}").is_file()
    assert [f"{part.name}.broken-" in line for line in caplog.messages] == [True, True]


def test_responses_of_a_part_in_progress_are_removed_when_it_is_saved(evaluated, tmp_path):
    kept = tmp_path / "e" / "gsm8k" / ANSWERED

    def keep(seed):
        assert not kept.exists()
        Answered(kept).add({"seed": seed}, Response("a", 1, "stop"))

    evaluated(tmp_path / "e", answers=Counting(keep))
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_to_is_reported(evaluated, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "e"
    with config_error(f"{folder} .*Not a directory"):
        evaluated(folder)


def test_a_score_that_failed_is_recorded_with_its_reason(tmp_path):
    row = {"text": "Add.", "test_list": ["assert f(1)"], "code": "def f(x): return x"}
    rows = written(tmp_path / "rows.jsonl", [{**row, "test_setup_code": "import nothing_of_it"}])
    run(tmp_path / "e", ["mbpp"], [rows])
    [record] = read_rollouts(next((tmp_path / "e" / "mbpp").iterdir()))
    failed = record.extra["failed"]
    assert set(failed) == {"pass_all", "pass_rate", "no_bug"}
    assert all("raised DataError: " in why and "nothing_of_it" in why for why in failed.values())


def test_a_model_in_bfloat16_keeps_few_kernels_on_the_cpu(tiny_policy, tmp_path, monkeypatch):
    caches = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in caches:
        monkeypatch.setenv(name, "")  # so that what is set does not outlive the test
        monkeypatch.delenv(name)
    for dtype, bound in ((torch.float32, None), (torch.bfloat16, str(KERNELS))):
        folder = tmp_path / str(dtype)
        AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=dtype).save_pretrained(folder)
        LocalModel(str(folder), None, Sampling(), at_once=1)
        assert [os.environ.get(name) for name in caches] == [bound, bound]


def test_every_response_is_a_rollout_record(evaluated, tmp_path):
    answering = Counting(samples=2)
    evaluated(tmp_path / "e", answers=answering)
    files = sorted((tmp_path / "e" / "gsm8k").iterdir())
    records = [record for file in files for record in read_rollouts(file)]
    assert [(r.group_id, r.sample_id) for r in records] == [
        (i, s) for i in range(70) for s in (0, 1)
    ]
    assert records[2].completion == "<answer>2</answer>"
    assert records[2].rewards == {
        "correctness": 1,
        "integer": 1,
        "format": 0,
        "flexible": 1,
        "length": 0,
    }
    assert (records[0].num_tokens, records[0].finish_reason) == (3, "length")
    assert records[2].extra["reference"] == {"answer": "2"}


def test_an_evaluation_is_not_resumed_with_other_settings_or_rows(evaluated, gsm8k_file, tmp_path):
    folder = tmp_path / "e"
    evaluated(folder)
    other = replace(SETTINGS, model="empty", token_limit=5, rows=3)
    said = "model is gold, not empty; token_limit is 4000, not 5; rows is None, not 3"
    with config_error(said):
        evaluated(folder, other)
    others = written(tmp_path / "other.jsonl", [{"question": "9?", "answer": "#### 9"}])
    with config_error("different rows of gsm8k"):
        run(folder, ["gsm8k"], [others])
    run(folder, ["gsm8k"], [shutil.copy(gsm8k_file, tmp_path / "moved.jsonl")])


def test_a_folder_with_other_files_is_not_written_to(evaluated, tmp_path):
    with config_error("--output"):
        evaluated(tmp_path)
    with config_error(r"results\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"problems": "70"}, r"results\.json .*0\.problems: .*integer, got '70'"),
        ({"of_problems": {"correct": ["1"]}}, r"results\.json .*0\.of_problems\.correct\.0: .*'1'"),
        (None, r"results\.json .*content: Invalid JSON"),
    ],
)
def test_results_that_cannot_be_read_are_named_in_one_line(evaluated, tmp_path, change, said):
    evaluated(tmp_path / "e")
    file = tmp_path / "e" / "results.json"
    [plain] = json.loads(file.read_text())
    file.write_text("[" if change is None else json.dumps([plain | change]))
    with config_error(said) as raised:
        read_results(tmp_path / "e")
    assert "\n" not in str(raised.value)


def test_rows_that_cannot_be_read_are_reported_before_anything_is_generated(gsm8k_file, tmp_path):
    broken = written(tmp_path / "broken.jsonl", [{"question": "1?", "answer": "1"}])
    with data_error("--data mbpp=FILE"):
        run(tmp_path / "e", ["gsm8k", "mbpp"], [gsm8k_file, broken])
    assert not (tmp_path / "e").exists()


def test_benchmarks_are_found_by_name_or_are_tasks_with_a_file(tmp_path):
    with config_error("did you mean 'math500'"):
        find_benchmark("math50", None)
    assert find_benchmark("gdpo.lab.tasks.gsm8k:TASK", "rows.jsonl").task().name == "gsm8k"
    assert find_benchmark("humaneval", None).file().is_file()


@pytest.mark.parametrize("samples", [1, 2])
def test_a_model_answers(samples, tiny_policy, evaluated, tmp_path):
    sampling = Sampling(samples, 1.0 if samples > 1 else 0.0, max_tokens=6)
    settings = EvaluationSettings(str(tiny_policy), sampling, token_limit=3, rows=5)
    one, two = (evaluated(tmp_path / name, settings) for name in "ab")
    assert one == two
    (file,) = (tmp_path / "a" / "gsm8k").iterdir()
    records = read_rollouts(file)
    assert len(records) == 5 * samples
    assert {r.finish_reason for r in records} <= {"stop", "length"}
    assert all(1 <= r.num_tokens <= 6 for r in records)
    assert all((r.num_tokens < 6) <= (r.finish_reason == "stop") for r in records)
    (result,) = one
    assert result.estimates["too long"].mean == pytest.approx(
        sum(r.num_tokens > 3 for r in records) / len(records)
    )
    if samples > 1:
        assert any(a.completion != b.completion for a, b in zip(*[iter(records)] * 2, strict=True))


def test_a_run_is_evaluated_in_its_own_folder(tmp_path):
    run_folder = tmp_path / "run"
    (run_folder / "model").mkdir(parents=True)
    (run_folder / "recipe.yaml").write_text("")
    assert folder_of(str(run_folder)) == run_folder / "evaluation"
    assert str(folder_of("Qwen/Qwen2.5-1.5B")) == "evaluations/Qwen_Qwen2.5-1.5B"
    (run_folder / "model").rmdir()
    with config_error("checkpoints/checkpoint-"):
        responder_of(str(run_folder), Sampling(), server=None, at_once=1)


def test_a_new_evaluation_replaces_the_one_in_the_readme_of_a_run(evaluated, tmp_path, saved):
    readme = saved("README.md", "# run\n\n## Recipe\n")
    for rows in (70, 10):
        settings = replace(SETTINGS, rows=rows)
        add_to_readme(readme, evaluated(tmp_path / f"e{rows}", settings), settings)
    text = readme.read_text()
    assert text.startswith("# run\n\n## Recipe\n\n## Evaluation\n\n")
    assert "temperature 0, top-p 1, " in text
    assert "| gsm8k | 10 | correct | 1.000 | 0.722 to 1.000 |\n" in text
    assert "| gsm8k | 70 |" not in text
    assert text.count("## Evaluation") == 1


def test_a_model_answers_where_trl_is_not_installed(tiny_policy, evaluated, tmp_path, monkeypatch):
    settings = EvaluationSettings(str(tiny_policy), Sampling(max_tokens=4), 4000, rows=3)
    texts = []
    for name in ("with", "without"):
        evaluated(tmp_path / name, settings)
        (file,) = (tmp_path / name / "gsm8k").iterdir()
        texts.append([rollout.completion for rollout in read_rollouts(file)])
        for module in [each for each in sys.modules if each.startswith(("trl", TRL))]:
            monkeypatch.setitem(sys.modules, module, None)
    assert texts[0] == texts[1]


def test_a_model_without_a_chat_template_is_refused(tiny_policy, evaluated, tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(tiny_policy, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with config_error("chat template"):
        evaluated(tmp_path / "e", replace(SETTINGS, model=str(folder)))


@pytest.mark.parametrize("place", [0, 2**20 - 1, -(2**20), -1])
def test_the_digest_of_the_weights_changes_with_both_ends(tmp_path, place):
    (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
    before = weights_of(str(tmp_path))
    assert weights_of(str(tmp_path)) == before != ""
    changed = bytearray(3_000_000)
    changed[place] = 1
    (tmp_path / "model.safetensors").write_bytes(changed)
    assert weights_of(str(tmp_path)) != before
    assert weights_of("Qwen/Qwen2.5-1.5B-Instruct") == ""


def test_models_are_paired_by_problem_and_not_by_place(evaluated, gsm8k_file, tmp_path):
    rows = [json.loads(line) for line in Path(gsm8k_file).read_text().splitlines()]
    backwards = written(tmp_path / "backwards.jsonl", rows[::-1][:40])
    every_other = Counting()
    [ours] = evaluated(tmp_path / "a", answers=every_other)
    [theirs] = run(tmp_path / "b", ["gsm8k"], [backwards], answering=lambda _: Counting())
    table = differences_table([ours], [theirs], "b")
    columns = [list(column.cells) for column in table.columns]
    assert columns[1] == ["40"] * 5
    assert set(columns[3]) == {"+0.000"}
    other = written(tmp_path / "other.jsonl", [{"question": "9?", "answer": "#### 9"}])
    [stranger] = run(tmp_path / "c", ["gsm8k"], [other])
    with config_error("--baseline c"):
        differences_table([ours], [stranger], "c")
