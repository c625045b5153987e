"""Training with LoRA: a run ends with a whole model, goes on where it stopped, and is evaluated."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import config_error

pytest.importorskip("peft")

from tests.training.conftest import assert_resumes_exactly

from gdpo.lab.recipes.recipe import LoraSettings
from gdpo.lab.training import check, train
from gdpo.lab.training._loop import peft_config

pytestmark = pytest.mark.slow

LORA = ["lora.r=4", "lora.alpha=8"]
ADAPTER = "adapter_model.safetensors"


def adapter(run, step):
    return load_file(run.checkpoints / f"checkpoint-{step}" / ADAPTER)


@pytest.fixture
def run(trained):
    return trained("name=lora", *LORA).run


# peft asks transformers for a name that transformers has renamed.
def test_the_model_is_whole_and_does_what_adapter_and_base_did(run, tiny_policy):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = {file.name for file in run.model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any(name.startswith("adapter") for name in names)
    whole = AutoModelForCausalLM.from_pretrained(run.model)
    base = AutoModelForCausalLM.from_pretrained(tiny_policy)
    apart = PeftModel.from_pretrained(base, run.checkpoints / "checkpoint-4")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, apart(ids).logits, atol=1e-6, rtol=1e-5)
        with apart.disable_adapter():
            assert (whole(ids).logits - apart(ids).logits).abs().max() > 1e-4
    assert AutoTokenizer.from_pretrained(run.model).chat_template
    assert json.loads((run.model / "config.json").read_text())["vocab_size"] == 260


def test_only_the_matrices_of_lora_are_trained(run, tiny_policy):
    before, after = (
        load_file(tiny_policy / "model.safetensors"),
        load_file(run.model / "model.safetensors"),
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    linear = {name for name in before if "_proj" in name}
    assert changed == linear
    assert all(weights.shape[0] == 4 for k, weights in adapter(run, 4).items() if "lora_A" in k)


def test_a_run_that_is_resumed_ends_as_one_that_was_not_stopped(run):
    whole = adapter(run, 4)
    resumed = assert_resumes_exactly(run, 3)
    assert adapter(resumed.run, 4).keys() == whole.keys()
    for name, weights in adapter(resumed.run, 4).items():
        torch.testing.assert_close(weights, whole[name], atol=0, rtol=0)


def test_the_speed_ups_leave_the_gradient_as_it_is(load, caplog):
    """Trained with TRL's own head and micro-batches, the matrices are the same up to rounding."""
    fast = adapter(train(load(*LORA)).run, 4)
    assert "TRL's head is used" not in caplog.text
    off = ("trainer.completion_only_head=false", "trainer.pack_micro_batches=false")
    slow = adapter(train(load(*LORA, *off, "name=slow")).run, 4)
    for name, weights in fast.items():
        torch.testing.assert_close(weights, slow[name], atol=1e-5, rtol=1e-3)
    moved = max(weights.abs().max() for name, weights in fast.items() if "lora_B" in name)
    assert moved > 1e-4  # they begin at 0


def test_every_setting_reaches_peft():
    lora = LoraSettings(r=4, alpha=8, dropout=0.1, target_modules=("q_proj", "v_proj"))
    config = peft_config(lora)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0.1)
    assert config.target_modules == {"q_proj", "v_proj"}


def test_a_check_says_what_is_trained(load):
    printed = [finding.text for finding in check(load(*LORA))]
    assert "LoRA: r 4, alpha 8, dropout 0, modules all-linear" in printed
    assert not any("LoRA" in finding.text for finding in check(load()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lora.r=0", "greater than 0"),
        ("lora.rank=4", "rank"),
        ("lora.dropout=1.0", "less than 1"),
        ("lora.target_modules=[q_prog]", "q_prog"),
    ],
)
def test_a_lora_that_cannot_be_is_refused(load, change, message):
    with config_error(message):
        train(load(change))
