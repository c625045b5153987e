import dataclasses

import numpy as np
import pytest
from benchmarks.tool_policy import _policy as policy_module
from benchmarks.tool_policy._policy import PolicySettings, build_model, make_policy
from benchmarks.tool_policy._texts import Carelessness
from benchmarks.tool_policy._tokenizer import END, build_tokenizer
from benchmarks.tool_policy._tools import tool_rows
from hypothesis import given
from hypothesis import strategies as st

TINY = PolicySettings(layers=1, width=16, heads=2, inner_width=16, vocabulary=300, steps=2, batch=4)


@pytest.fixture(scope="module")
def tokenizer():
    """Return the tokenizer of a tenth of the texts, with a vocabulary of the same size."""
    settings = PolicySettings()
    rng = np.random.default_rng(settings.seed)
    examples = settings.texts.draw(rng, settings.steps * settings.batch // 10)
    return build_tokenizer(examples, settings.vocabulary)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gdpo"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_decodes_what_it_encodes(tokenizer, text):
    if not any(special in text for special in tokenizer.all_special_tokens):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_a_chat_becomes_its_messages_and_the_start_of_the_response(tokenizer):
    chat = [{"role": "system", "content": "timer()"}, {"role": "user", "content": "set a timer"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == "<|system|>timer()<|user|>set a timer<|assistant|>"


def test_every_reference_answer_fits_into_the_longest_response(tokenizer):
    golds = [row["reward_model"]["ground_truth"] + END for row in tool_rows(5000, seed=1)]
    longest = max(len(ids) for ids in tokenizer(golds)["input_ids"])
    assert longest <= 40, "the limit of the study"


def test_the_policy_has_at_most_one_and_a_half_million_parameters(tokenizer):
    assert build_model(tokenizer, PolicySettings()).num_parameters() <= 1_500_000


def test_a_policy_is_made_once_and_loads(cache):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make_policy(TINY)
    assert folder.parent == cache
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_policy(TINY) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() < 20_000
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_same_settings_give_the_same_policy(cache, monkeypatch):
    first = (make_policy(TINY) / "model.safetensors").read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "other"))
    assert (make_policy(TINY) / "model.safetensors").read_bytes() == first


def test_making_a_policy_leaves_torch_as_it_was(cache):
    import torch

    torch.manual_seed(7)
    threads, before = torch.get_num_threads(), torch.get_rng_state()
    make_policy(TINY)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_warm_start_leaves_no_files(cache, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(policy_module, "_supervise", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_policy(TINY)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(PolicySettings)])
def test_the_key_of_a_policy_depends_on_every_setting(field):
    other = Carelessness(bare=0.5) if field == "texts" else getattr(TINY, field) + 1
    assert dataclasses.replace(TINY, **{field: other}).key != TINY.key


def test_the_key_of_a_policy_depends_on_code_and_libraries(monkeypatch, saved):
    before = TINY.key
    monkeypatch.setattr(policy_module, "version", lambda name: "0.0")
    assert TINY.key != before
    monkeypatch.undo()
    changed = saved("changed.py", "# other code")
    monkeypatch.setattr(policy_module, "_SOURCES", (str(changed),))
    assert TINY.key != before
