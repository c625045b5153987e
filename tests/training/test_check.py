"""What is found before anything is trained."""

import json
import re
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.refusals import config_error, missing_extra_error, refusal
from tests.rollouts.readers import written
from tests.training.conftest import wrong_in

from gdpo.errors import ConfigError, DataError, GdpoError, RewardError
from gdpo.lab.recipes.data import read_data
from gdpo.lab.recipes.models import context_length, load_tokenizer, locate_model, prompt_lengths
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.tasks import TASKS, Problem, Task
from gdpo.lab.training import check, train
from gdpo.lab.training.preflight import prepare
from gdpo.lab.training.reward_checks import CheckResult, Level, check_rewards
from gdpo.rewards import Reward, Scorer
from gdpo.rewards.length import token_limit


def texts_of(findings, level=None):
    return "\n".join(f.text for f in findings if level in (None, f.level))


def test_a_sound_recipe_passes_and_all_that_was_checked_is_reported(recipe):
    findings = check(recipe)
    assert not texts_of(findings, Level.WRONG)
    for part in (
        "recipe: task gsm8k, estimator gdpo",
        "is available",
        "a local folder",
        "10 rows of",
        "on 10 of 10 reference answers",
        "accepts all",
        "2 prompts × 4 samples = 8 rollouts per generation",
        "5 steps per epoch",
        "1, 2, 4, 8",
        "the longest of 10 prompts has",
    ):
        assert part in texts_of(findings)


def test_one_mistake_does_not_hide_another(load, tmp_path):
    recipe = load(
        "model=./nowhere", f"data.source={tmp_path}/missing.jsonl", "trainer.learning_rate=-1"
    )
    wrong = "\n".join(wrong_in(recipe))
    assert "folder nowhere" in wrong
    assert "missing.jsonl" in wrong
    assert "learning_rate" in wrong


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "ZeroDivisionError"),
        ("not_a_number", "row 1: not a number: returned nan"),
        ("text", "row 1: not a number: returned str"),
        ("too_high", "row 1: out of range: returned 2.0"),
    ],
)
def test_a_reward_that_breaks_its_contract_is_found_before_training(
    load, own_rewards, name, message
):
    recipe = load(f"rewards=[{{name: '{own_rewards}:{name}'}}]")
    assert message in "\n".join(wrong_in(recipe))
    assert message in refusal(train, recipe, error=RewardError)
    assert not recipe.run_dir.exists()


def task_with(reward):
    return Task(
        name="own",
        columns=(("question",),),
        read_row=lambda row: Problem([], {"answer": row["question"]}),
        rewards=(reward,),
        gold_completion=lambda reference: reference["answer"],
        bad_completion="bad",
    )


SAMPLES = [Problem([], {"answer": "right"}), Problem([], {"answer": "wrong in the data"})]


def exact(completion, reference):
    return float(completion == "right")


def only_right(completion, reference):
    return 1.0 if reference["answer"] == completion == "right" else None


def forgets(completion, reference):
    float(len(completion))


NO_GOLD = Problem([], {"answer": None})


@pytest.mark.parametrize(
    ("function", "problems", "level", "text"),
    [
        (exact, SAMPLES, Level.WRONG, "answer of row 2 scores 0, not the maximum 1"),
        (exact, [*SAMPLES[1:], *SAMPLES[:1] * 18], Level.WRONG, "answer of row 1 scores 0"),
        (exact, [*SAMPLES[1:], *SAMPLES[:1] * 19], Level.NOTE, "19 of 20 .*not on row 1"),
        (exact, [SAMPLES[0], NO_GOLD], Level.FINE, r"on 1 of 1 .* \(1 of 2 rows have no"),
        (exact, [NO_GOLD], Level.NOTE, "no row has a reference answer"),
        (exact, [Problem([], {})], Level.WRONG, "gold_completion failed on row 1: KeyError"),
        (only_right, SAMPLES, Level.FINE, r"on 1 of 1 .* \(it applies to 1 of 2 rows\)"),
        (forgets, SAMPLES, Level.NOTE, "it returned None on every row"),
    ],
)
def test_what_reference_answers_get_is_reported(function, problems, level, text):
    reward = Reward("exact", function, low=0, high=1)
    found, *_ = check_rewards(task_with(reward), Scorer([reward]), problems)
    assert (found.level if isinstance(found, CheckResult) else Level.WRONG) is level
    assert re.search(text, found.text if isinstance(found, CheckResult) else str(found))


def test_a_published_reward_and_one_of_the_user_need_not_reach_their_maximum():
    reward = Reward("exact", exact, low=0, high=1)
    published = replace(task_with(reward), is_published=True)
    finding, _ = check_rewards(published, Scorer([reward]), SAMPLES)
    assert isinstance(finding, CheckResult)
    reward = Reward("boxed", lambda completion, _: 0.25 * ("boxed" not in completion), 0, 1)
    finding, *_ = check_rewards(TASKS["gsm8k"], Scorer([reward]), [Problem([], {"answer": "4"})])
    assert finding.level is Level.NOTE
    assert "0 of 1" in finding.text
    assert "scores 0.25" in finding.text


def test_a_bad_answer_that_gets_everything_is_a_mistake():
    reward = Reward("generous", lambda completion, _: float(completion != ""), low=0, high=1)
    findings = list(check_rewards(task_with(reward), Scorer([reward]), SAMPLES))
    assert "row 1: a bad response ('bad') gets the maximum" in str(findings[1])
    assert isinstance(findings[1], GdpoError)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "2 + 2?"}, "needs column 'answer'"),
        ({"question": "2 + 2?", "answer": "four"}, "####"),
        ({"question": 4, "answer": "#### 4"}, "column 'question'"),
    ],
)
def test_a_row_that_cannot_be_used_names_itself(recipe, rows, row, message):
    rows.write_text(rows.read_text() + json.dumps(row) + "\n")
    text = refusal(train, recipe, error=DataError)
    assert message in text
    assert "line 11" in text
    assert "recipe.yaml:6" in text
    assert not recipe.run_dir.exists()


def test_one_group_per_generation_is_noted(load):
    recipe = load("batch.prompts=1")
    assert "batch.prompts" in texts_of(check(recipe), Level.NOTE)
    grpo = load("batch.prompts=1", "advantage=grpo")
    assert "one group" not in texts_of(check(grpo))


@pytest.mark.parametrize(("steps", "noted"), [(4, False), (5, True)])
def test_a_schedule_that_is_longer_than_the_run_is_noted(load, steps, noted):
    schedule = f"rewards.0.weight={{from: 1.0, to: 0.2, steps: {steps}}}"
    notes = texts_of(check(load(schedule)), Level.NOTE)
    assert ("takes 5 steps, but this run has 4, so its weight does not reach 0.2" in notes) is noted


def test_a_prompt_beyond_the_context_is_reported(load):
    recipe = load("trainer.max_completion_length=2000")
    assert "1,024 tokens. Lower trainer.max_completion_length" in "\n".join(wrong_in(recipe))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere", "there is no folder nowhere$"),
        ("{folder}", "has no weights"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Hub cannot be reached"),
        ("two words", r"\(owner/name\)"),
    ],
)
def test_a_model_that_is_not_there_is_reported_before_the_data_is_read(
    load, rows, tmp_path, model, message
):
    rows.unlink()
    model = model.format(folder=tmp_path)
    with config_error(f"^--set model=[^:]*: .*{message}"):
        train(load(f"model={model}"))


def test_the_longest_prompt_is_found_wherever_it_stands(recipe, rows, monkeypatch):
    """Of more rows than are tokenized."""
    monkeypatch.setattr("gdpo.lab.training.preflight.PROMPTS_MEASURED", 10)
    lines = [{"question": "1 + 1?", "answer": "#### 2"}] * 11
    lines[-1] = {"question": "1 + 1? " * 20, "answer": "#### 2"}
    written.lines(rows, lines)
    found = check(recipe, rows=4)
    (prompts,) = [f.text for f in found if f.text.startswith("prompts: ")]
    written.lines(rows, lines[-1:])
    (alone,) = [f.text for f in check(recipe, rows=1) if f.text.startswith("prompts: ")]
    assert "11 prompts (measured on the 10 with the most characters)" in prompts
    assert prompts.partition(" has ")[2] == alone.partition(" has ")[2]


def test_each_seed_has_its_own_model(load, tiny_policy, tmp_path):
    (tmp_path / "models").mkdir()
    for seed in (3, 42):
        (tmp_path / "models" / f"{seed}-a").symlink_to(tiny_policy)

    def located(*seed):
        model = f"model={tmp_path}/models/{{seed}}-a"
        return locate_model(load(model, *seed)).source

    assert located("trainer.seed=3") == f"{tmp_path}/models/3-a"
    assert located() == f"{tmp_path}/models/42-a", "TRL's default seed"
    with config_error(r"/models/4-a, .* seed 4\."):
        located("trainer.seed=4")


REFUSES = "{{ raise_exception('no system role') }}"
REJECTED = "the chat template of .* rejects the prompt of row 1 .*: no system role"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("chat_template.jinja", None, "chat template"),
        ("chat_template.jinja", REFUSES, REJECTED),
        ("model.safetensors", None, r"changed has no weights"),
        ("config.json", "{", "cannot be loaded"),
    ],
)
@pytest.mark.parametrize("override", [(), ("trainer.max_completion_length=null",)])
def test_a_model_that_cannot_be_used_is_reported(
    load, tiny_policy, tmp_path, file, text, message, override
):
    folder = tmp_path / "changed"
    shutil.copytree(tiny_policy, folder)
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    recipe = load(f"model={folder}", *override)
    (wrong,) = wrong_in(recipe)
    assert re.search(rf"^--set model=[^:]*: .*{message}", wrong)
    with config_error(message):
        train(recipe)


@pytest.mark.parametrize("module", ["trl.trainer.grpo_config", "torch"])
def test_without_the_extra_it_is_named(recipe, monkeypatch, module):
    import sys

    for name in [n for n in sys.modules if n.startswith("gdpo.integrations")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with missing_extra_error(rf"^{package} .*'\.\[train\]'"):
        train(recipe)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Set constants of the client of the Hub, which has an empty cache."""
    from huggingface_hub import constants

    def changed(**values):
        values |= {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": False}
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)

    return changed


def test_a_cached_model_is_taken_at_once_where_the_hub_cannot_be_reached(
    load, tiny_policy, tmp_path, monkeypatch, hub
):
    from huggingface_hub import is_offline_mode

    repository, commit = tmp_path / "hub" / "models--ann--tiny", "0" * 40
    shutil.copytree(tiny_policy, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    hub(ENDPOINT="http://127.0.0.1:9")
    asked_again = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", asked_again.append)
    recipe = load("model=ann/tiny")
    model = locate_model(recipe)
    assert "ann/tiny, from the cache" in model.description
    assert load_tokenizer(model, recipe).chat_template
    assert context_length(model, recipe) == 1024
    assert not asked_again
    assert not is_offline_mode()


def test_a_model_that_the_hub_does_not_have_is_reported(load, hub):
    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    hub(HUGGINGFACE_CO_URL_TEMPLATE=address + "/{repo_id}/resolve/{revision}/{filename}")
    recipe = load("model=ann/tyni")
    with config_error(r"^--set model=ann/tyni: 'ann/tyni' .* `hf auth login`"):
        locate_model(recipe)
    server.shutdown()
    server.server_close()


def test_a_model_of_the_hub_needs_the_extra(load, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with missing_extra_error(r"'\.\[train\]'"):
        locate_model(load("model=Qwen/Qwen2.5-1.5B-Instruct"))


def test_what_a_reward_needs_of_the_machine_is_reported_and_without_it_the_reward_is_not_run():
    def missing():
        raise ConfigError("no sandbox works; install one: apt-get install bubblewrap")

    met, unmet = (
        replace(TASKS["gsm8k"].rewards[0], needs=needs)
        for needs in (lambda: "sandbox: bwrap works here", missing)
    )
    findings = list(check_rewards(task_with(met), Scorer([met]), SAMPLES))
    assert findings[0] == CheckResult(Level.FINE, "sandbox: bwrap works here")
    assert len(findings) == 3
    (finding,) = check_rewards(task_with(unmet), Scorer([unmet]), SAMPLES)
    assert "apt-get install" in str(finding)


def test_a_reward_of_the_number_of_tokens_shows_what_some_counts_get():
    reward = token_limit(100)
    finding, *_ = check_rewards(task_with(TASKS["gsm8k"].rewards[0]), Scorer([reward]), SAMPLES)
    assert isinstance(finding, CheckResult)
    assert "0: 1, 1: 1, 7: 1, 512: 0, 1,000,000: 0" in finding.text


def test_a_judge_is_asked_about_a_few_rows_only():
    asked = []

    async def judge(completion, reference):
        asked.append(completion)
        return 1.0

    reward = Reward("judge", judge, 0, 1)
    samples = [Problem([], {"answer": str(i)}) for i in range(50)]
    with Scorer([reward]) as scorer:
        finding, *_ = check_rewards(TASKS["gsm8k"], scorer, samples)
    assert "on 2 of 2 reference answers" in finding.text
    assert len(asked) < 20


def test_rows_with_long_prompts_are_left_out_and_counted(load, rows):
    recipe = load()
    tokenizer = load_tokenizer(locate_model(recipe), recipe)
    problems = read_data(resolve(recipe).task, recipe.data).problems
    lengths = prompt_lengths(tokenizer, enumerate(problems, 1), recipe)
    with rows.open("a") as file:
        file.write(json.dumps({"question": "What is 1 + 1, please?", "answer": "#### 2"}) + "\n")
    recipe = load(f"data.max_prompt_length={max(lengths)}")
    left_out = "1 longer than data.max_prompt_length; 10 rows remain"
    assert left_out in texts_of(check(recipe), Level.NOTE)
    assert prepare(resolve(recipe)).batches.rows == 10
    found = texts_of(check(load("data.max_prompt_length=3")))
    assert "data.max_prompt_length=3: every prompt has more than 3 tokens" in found
    assert f"the shortest has {min(lengths)}" in found
