"""`gdpo effect` of a run, and of a model with rollout files."""

import json
import shutil
import tempfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import saying
from tests.engines.policy import byte_tokenizer
from tests.training.conftest import contents
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from gdpo.lab.runs.checkpoints import complete
from gdpo.lab.training.effect import measure_run
from gdpo.lab.training.resumable import ResumableTrainer
from gdpo.policy import files as policy_files
from gdpo.policy.effect import Policy
from gdpo.policy.files import measure_files
from gdpo.policy.steps import OptimizerStep
from gdpo.rewards import Scorer

NOTES = ["checkpoint of step 3", "the whole step also has the momentum of earlier steps"]


@pytest.fixture
def gdpo_says(capfd):
    return saying(capfd)


@pytest.fixture
def measured(monkeypatch):
    """The batches of each measurement."""
    seen, measure = [], Policy.measured

    def kept(policy, batches, progress):
        seen.append(batches)
        return measure(policy, batches, progress)

    monkeypatch.setattr(Policy, "measured", kept)
    return seen


def ignore(done, count):
    pass


LETTERS = byte_tokenizer()("abcdefghijklmnopqrstuvwxyz").input_ids
ENDS = byte_tokenizer().eos_token_id
SUPPRESSED = sorted({*range(len(byte_tokenizer()))} - {*LETTERS, ENDS})
PLAIN = (
    f"trainer.generation_kwargs={{suppress_tokens: {SUPPRESSED}}}",
    "trainer.temperature=0.7",
    "trainer.max_grad_norm=0.05",
    "trainer.weight_decay=0.1",
    "trainer.save_total_limit=10",
)
"""Completions are letters, so that their texts have the tokens that were generated."""


def rows_of(batch):
    """Return the tokens of each rollout, with those of its completion."""
    return [
        (ids[mask.bool()].tolist(), ids[scored].tolist())
        for ids, mask, scored in zip(*batch[:3], strict=True)
    ]


@pytest.fixture
def changes(monkeypatch):
    """What the first batch of a measurement would add to each parameter, `[vector, *parameter]`."""
    found, of = {}, OptimizerStep.of

    def kept(self, name, gradient, clip):
        change = of(self, name, gradient, clip)
        found.setdefault(name, change.float())
        return change

    monkeypatch.setattr(OptimizerStep, "of", kept)
    return found


def assert_same(changes, others):
    assert changes.keys() == others.keys()
    for name, change in changes.items():
        assert torch.allclose(change, others[name], rtol=0, atol=1e-6)
    assert max(float(each.abs().max()) for each in others.values()) > 1e-3


def test_the_step_is_the_next_one_of_the_training(trained, changes):
    run = trained(*PLAIN).run
    measure_run(run.path, ignore, 2, 1)
    before, after = (
        load_file(run.checkpoints / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3)
    )
    moved = {name: after[name] - before[name] for name in after}
    assert_same({name: each[-1] for name, each in changes.items()}, moved)
    # Without a reward, it is that of a run whose reward has no weight.
    without = {name: each[0] for name, each in changes.items()}
    changes.clear()
    run.recipe.write_text(run.recipe.read_text().replace("weight: 1.0", "weight: 0.0", 1))
    measure_run(run.path, ignore, 2, 1)
    assert_same({name: each[-1] for name, each in changes.items()}, without)


def test_the_record_of_a_step_has_the_tokens_that_were_generated(trained, measured):
    run = trained(*PLAIN).run
    measure_run(run.path, ignore, 2, 1)
    model = run.checkpoints / "checkpoint-2"
    measure_files(model, [run.rollouts], ignore, 3, 1, estimator="gdpo")
    drawn, recorded = measured[0][0], measured[1][-1]
    assert sorted(rows_of(recorded)) == sorted(rows_of(drawn))
    assert np.array_equal(recorded.rewards, drawn.rewards, equal_nan=True)
    ended = [said[-1] == ENDS for _, said in rows_of(drawn)]
    assert 0 < sum(ended) < len(ended)
    assert len(measured[1]) == 3
    measure_files(model, [run.rollouts], ignore, None, 7, estimator="gdpo")
    assert len(measured[2]) == 4


def test_each_batch_has_other_prompts(trained, measured, monkeypatch):
    path = trained(*PLAIN).run.path
    told, training, generate = [], [], ResumableTrainer._generate_groups

    def generated(trainer, inputs):
        training.append(trainer.model.training)
        return generate(trainer, inputs)

    monkeypatch.setattr(ResumableTrainer, "_generate_groups", generated)
    measure_run(path, lambda *each: told.append(each), 2, 5)
    (drawn,) = measured
    prompts = [tuple(ids[: len(ids) - len(said)]) for b in drawn for ids, said in rows_of(b)]
    assert len(set(prompts)) == 6
    assert [batch.rewards.shape for batch in drawn] == [(2, 4, 3)] * 3
    assert training == [True] * 3  # otherwise, TRL generates as for an evaluation
    assert told == [(done, 6) for done in range(1, 7)]


def test_the_command_shows_a_run_and_leaves_it_as_it_is(gdpo_says, finished, tmp_path):
    run = finished.run.path
    before = contents(run)
    code, out, err = gdpo_says("effect", run, "--groups", "6", "--output", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert contents(run) == before
    table = out.splitlines()
    assert table[0] == "how far one step moves each reward (std per step)"
    assert table[1].split("  ")[0] == "reward"
    assert "6 groups (fewer than 512: no reward is said to lack an effect); ±: half of a" in out
    page = (tmp_path / "page.html").read_text()
    assert "by brief" in page.replace("<wbr>", "")
    assert "half of a 95 % interval" in page
    assert "<script" not in page


def test_json_has_all_numbers(gdpo_says, finished):
    code, out, _ = gdpo_says(
        "effect", finished.run.path, "--step", "3", "--groups", "8", "--output", "json"
    )
    found = json.loads(out)
    assert code == 0
    assert set(found) == {"effect", "shares", "sentences", "notes"}
    assert found["notes"] == NOTES
    effect = found["effect"]
    assert effect["names"] == ["vowels", "brief", "format"]
    assert (effect["groups"], effect["unit"]) == (8, "std per step")
    assert np.shape(effect["matrix"]) == np.shape(effect["errors"]) == (3, 3)
    assert np.abs(effect["totals"]).max() > 0
    assert sum(found["shares"]) == pytest.approx(1)


def test_a_learning_rate_that_has_decayed_to_0_is_that_of_the_start(finished):
    """TRL's is 0 at the end of a run."""
    found = measure_run(finished.run.path, ignore, None, 1)
    assert "the learning rate has decayed to 0, so the step has the initial one" in found.notes
    assert np.abs(found.effect.totals).max() > 1e-3


def test_another_loss_is_noted(trained):
    run = trained("trainer.loss_type=grpo", "trainer.max_steps=1").run
    notes = measure_run(run.path, ignore, None, 1).notes
    assert "the gradient is that of loss dapo without KL, although the run has another" in notes


def test_nothing_is_saved_sent_or_evaluated(finished, rows, monkeypatch):
    run = finished.run
    fields = (
        "eval_strategy: steps\n  eval_on_start: true\n  load_best_model_at_end: true\n"
        "  report_to: wandb\n  push_to_hub: true\n  save_steps"
    )
    text = run.recipe.read_text().replace("save_steps", fields)
    text = text.replace("eval_data: null", f"eval_data: {{source: {rows}}}")
    run.recipe.write_text(text.replace("save_minutes: 10.0", "save_minutes: 1e-9"))

    state = run.checkpoints / "checkpoint-3" / "trainer_state.json"
    best = {"best_model_checkpoint": str(run.checkpoints / "checkpoint-4")}
    state.write_text(json.dumps(json.loads(state.read_text()) | best))
    complete(state.parent)

    def fail(*_):
        raise AssertionError

    for method in ("_evaluate", "_save_checkpoint", "_load_best_model"):
        monkeypatch.setattr(ResumableTrainer, method, fail)
    assert measure_run(run.path, ignore, 3, 1).notes == NOTES


def test_ctrl_c_leaves_nothing_behind(finished, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = contents(finished.run.path)

    closed = []
    monkeypatch.setattr(Scorer, "__exit__", lambda *_: closed.append(True))

    def stop(done, count):
        assert list((tmp_path / "temporary").iterdir())
        closed.clear()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_run(finished.run.path, stop, None, 1)
    assert closed
    assert not list((tmp_path / "temporary").iterdir())
    assert contents(finished.run.path) == before


@pytest.fixture
def refused(gdpo_says):
    def said(*arguments):
        code, out, err = gdpo_says("effect", *arguments)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        return err

    return said


def test_a_run_that_cannot_be_measured_is_one_message(refused, finished, tmp_path):
    run = finished.run
    assert "is not a run of gdpo. Pass a run directory" in refused(tmp_path)
    assert "--groups must be an integer of at least 1" in refused(run.path, "--groups", "0")
    page = tmp_path / "none" / "page.html"
    assert f"the folder {page.parent} does not exist" in refused(run.path, "--output", page)
    assert "remove --estimator" in refused(run.path, "--estimator", "gdpo")
    assert "it does not exist. Choose one with --step: 4, 3" in refused(run.path, "--step", "9")
    (run.checkpoints / "checkpoint-4" / "optimizer.pt").write_bytes(b"")
    assert "optimizer.pt has 0 bytes instead of" in refused(run.path)
    shutil.rmtree(run.checkpoints)
    assert "has no checkpoint. Train with trainer.save_steps, or use its final model" in refused(
        run.path
    )


@pytest.mark.parametrize(
    "changed",
    [
        ("advantage: gdpo", "advantage: turn_gdpo"),
        ("weights_column: null", "weights_column: weights"),
        ("advantage_options: {}", "advantage_options: {token_counts: true}"),
    ],
)
def test_what_a_run_cannot_show_is_said_before_a_model_is_loaded(refused, finished, changed):
    recipe = finished.run.recipe
    assert changed[0] in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(*changed).replace("\nmodel: ", "\nmodel: ./no"))
    assert refused(finished.run.path).startswith(
        f"gdpo: {recipe}: the effect cannot be measured with weights per prompt"
    )


def record(finished, steps=3):
    return [finished.run.rollouts / f"step_{step:06d}.parquet" for step in range(1, steps + 1)]


def test_the_command_shows_a_model_with_rollouts(gdpo_says, finished, tiny_policy):
    code, out, err = gdpo_says("effect", tiny_policy, *record(finished, 4), "--step", "3")
    assert (code, err) == (0, "")
    assert out.startswith("how far one step moves each reward (of the largest own effect)\n")
    assert "std per step" not in out
    assert "rollouts of 3 steps up to step 3" in out
    assert "there is no optimizer" in out


def test_the_usual_size_of_the_gradient_is_that_of_a_batch_with_signal(
    finished, tiny_policy, monkeypatch
):
    batches = policy_files._batch

    def silent_at_first(step, *others, **reading):
        batch = batches(step, *others, **reading)
        return batch._replace(rewards=batch.rewards * (step.table.steps[0] > 1))

    monkeypatch.setattr(policy_files, "_batch", silent_at_first)
    found = measure_files(tiny_policy, record(finished), ignore, 3, 1, estimator="gdpo")
    assert np.abs(found.effect.totals).max() > 0


def test_files_that_cannot_be_measured_are_one_message(
    refused, finished, tiny_policy, tmp_path, capfd
):
    files = record(finished)
    assert "needs 3 steps" in refused(tiny_policy, *files[:2])
    assert "Steps found: 1" in refused(tiny_policy, *files, "--step", "1")
    assert "Steps found: 0" in refused(tiny_policy, *files, "--step", "0")
    assert "Allowed: " in refused(tiny_policy, *files, "--estimator", "gpdo")
    assert "is not a causal language model" in refused(tmp_path, *files)
    other = tmp_path / "t5"
    shutil.copytree(tiny_policy, other)
    (other / "config.json").write_text('{"model_type": "t5"}')
    assert "is not a causal language model" in refused(other, *files)
    bare = tmp_path / "bare"
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(bare)
    assert "with a chat template if the prompt" in refused(bare, *files)
    endless, small = tmp_path / "endless", tmp_path / "small"
    for folder in (endless, small):
        shutil.copytree(tiny_policy, folder)
    tokenizer.eos_token = tokenizer.pad_token = None
    tokenizer.save_pretrained(endless)
    assert "a tokenizer with an end token" in refused(endless, *files)
    config = json.loads((tiny_policy / "config.json").read_text()) | {"vocab_size": 9}
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(small)
    capfd.readouterr()
    assert "the model has fewer tokens than its tokenizer" in refused(small, *files)
    wordless = [tmp_path / file.name for file in files]
    for file, place in zip(files, wordless, strict=True):
        rows = pq.read_table(file).to_pylist()
        names = rows[0]["rewards"]
        place.with_suffix(".jsonl").write_text(
            "".join(
                json.dumps({"step": row["step"], "group": row["group_id"], **dict(names)}) + "\n"
                for row in rows
            )
        )
    texts = [place.with_suffix(".jsonl") for place in wordless]
    assert "needs a prompt with one message" in refused(tiny_policy, *texts)
