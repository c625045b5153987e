"""Tests that prompts which are computed once give TRL's gradient with fewer tokens."""

import itertools

import pytest
import torch
from peft import LoraConfig
from tests.integrations.prepared import alive, gap, ours, theirs, with_tools
from tests.integrations.test_packing import LOSS_TYPES, STEPS, accumulated
from tests.integrations.two_ranks import launched
from transformers import AutoModelForCausalLM

from gdpo.integrations.trl import _plan
from gdpo.integrations.trl._plan import Row, planned, split

pytestmark = pytest.mark.slow


@pytest.fixture
def always(monkeypatch):
    """Let short prompts be shared, too."""
    monkeypatch.setitem(_plan.CALL, "cpu", 0)


def counting(policy):
    """Return a model and the list of the numbers of tokens that its embedding reads."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    read = []
    model.get_input_embeddings().register_forward_hook(lambda _, ids, __: read.append(ids[0].numel()))
    return model, read


def assert_same(policy, folder, **changed):
    trl = theirs(policy, folder, **changed)
    how = changed.pop("how", {})
    model, read = counting(policy)
    shared = ours(policy, folder, how={"model": model, **how}, **changed)
    model, unshared = counting(policy)
    ours(policy, folder, how={"model": model, **how}, share_prompts=False, **changed)
    assert max(gap(shared, trl)) < 1e-5
    assert sum(read) < sum(unshared)
    return shared


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_keeps_its_gradient(loss_type, beta, always, tiny_policy, tmp_path):
    windows = accumulated("windows across generations, 2 iterations")
    settings = {**windows, **STEPS.get(loss_type, {})}
    assert_same(tiny_policy, tmp_path, loss_type=loss_type, beta=beta, **settings)


@pytest.mark.parametrize(
    "changed",
    [
        {"how": {"rollout_func": with_tools}, "loss_type": "bnpo"},
        {"how": {"reward": alive}},
        {"importance_sampling_level": "sequence"},
        {"entropy_coef": 0.1},
        {"temperature": 0.7},
        {"gradient_checkpointing": True},
        {"completion_only_head": False},
        {"mask_truncated_completions": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_keep_the_gradient(changed, always, tiny_policy, tmp_path):
    windows = accumulated("windows across generations, 2 iterations")
    own = {k: changed.pop(k) for k in ("completion_only_head",) if k in changed}
    trl = theirs(tiny_policy, tmp_path, **windows, **changed)
    model, read = counting(tiny_policy)
    how = {"model": model, **changed.pop("how", {})}
    shared = ours(tiny_policy, tmp_path, how=how, **windows, **changed, **own)
    assert max(gap(shared, trl)) < 1e-5
    assert shared.trainer._packer._shared is not None
