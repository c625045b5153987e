"""Tests when prompts are computed once. `test_packing.py` compares the gradient with TRL's."""

import itertools
from functools import partial

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tests.integrations.prepared import ours
from tests.integrations.test_packing import ACROSS, shares
from tests.integrations.variants import CHECKPOINTING
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from gdpo.integrations.trl import _caches
from gdpo.integrations.trl._plan import CallCost, RolloutTokens, call_of, planned, split
from gdpo.integrations.trl._probe import Trial


@pytest.mark.parametrize("bf16", [True, False])
def test_gradients_may_differ_by_their_rounding(bf16, place):
    trainer = ours(*place, max_steps=1, bf16=bf16).trainer
    trls, packer = GRPOTrainer._get_per_token_logps_and_entropies.__get__(trainer), trainer._packer

    def scaled(by, model, ids, *more, **options):
        """Scale the gradient of whole rows, which only TRL's code computes, and not the value."""
        logps, *others = trls(model, ids, *more, **options)
        return logps + (by if ids.shape[1] == 18 else 0.0) * (logps - logps.detach()), *others

    for by, is_off in zip((0.05, 0.2) if bf16 else (5e-4, 5e-3), (False, True), strict=True):
        Trial(trainer, partial(scaled, by), [packer, packer.shared]).run(12, 6)
        assert packer.is_off == packer.shared.is_off == is_off


def test_where_sharing_saves_nothing_the_log_says_so_once(place, caplog):
    ours(*place, **ACROSS)
    said = [each for each in caplog.messages if each.startswith("share_prompts")]
    assert len(said) == 1
    assert "sharing saves nothing" in said[0]


def with_dropout(model, patch):
    model.config.attention_dropout = 0.1
    return model


def with_a_learned_prompt(model, patch):
    return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def with_a_broken_cache(broken, model, patch):
    update = _caches.ContinuedLayer.update

    def own(self, *args, **kwargs):
        self.keys = broken(self.keys)
        return update(self, *args, **kwargs)

    patch.setattr(_caches.ContinuedLayer, "update", own)
    return model


def with_layers_that_drop_the_cache(model, patch):
    patch.setattr(_caches, "_KEEPS_CACHE", "missing")
    return model


REENTRANT = {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}}
DIFFERS = "differ from TRL's in a trial"
UNSHARED = [
    (lambda model, _: model, {"pad_to_multiple_of": 8}, "pad_to_multiple_of is set"),
    (lambda model, _: model, REENTRANT, "(gradient checkpointing: True)"),
    (with_dropout, {}, "config.attention_dropout is 0.1"),
    (with_a_learned_prompt, {}, DIFFERS),
    (partial(with_a_broken_cache, torch.Tensor.detach), {}, DIFFERS),
    (partial(with_a_broken_cache, lambda keys: keys.roll(1, 0)), {}, DIFFERS),
    (with_layers_that_drop_the_cache, {CHECKPOINTING: True}, "(gradient checkpointing: True)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "settings", "reason"), UNSHARED)
def test_where_prompts_cannot_be_shared_the_log_says_why(
    change, settings, reason, tiny_policy, tmp_path, caplog, monkeypatch
):
    model = change(AutoModelForCausalLM.from_pretrained(tiny_policy), monkeypatch)
    run = ours(tiny_policy, tmp_path, how={"model": model}, max_steps=1, **settings)
    assert not shares(run)
    (said,) = [each for each in caplog.messages if each.startswith("share_prompts")]
    assert reason in said


def cost_of(rows, parts, call):
    """Return what parts of rows that continue shared prompts cost."""
    groups = {row.group for row in rows}
    prompts = call.cost(len(groups) * (max(row.prompt for row in rows) - 1))
    widths = (len(part) * (1 + max(rows[i].completion for i in part)) for part in parts)
    return prompts + sum(map(call.cost, widths))


def partitions(places):
    if not places:
        yield []
        return
    first, *rest = places
    for size in range(len(rest) + 1):
        for more in itertools.combinations(rest, size):
            left = [place for place in rest if place not in more]
            yield from ([[first, *more], *others] for others in partitions(left))


@pytest.mark.parametrize("seed", range(40))
def test_the_plan_costs_no_more_than_any_other(seed):
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1, 30, (5, 3), generator=draw).tolist()
    rows = [
        RolloutTokens(2 + 3 * prompt, completion, group=i % 3) for prompt, completion, i in numbers
    ]
    call = CallCost(seed % 4 * 10, seed % 3 * 50)
    plan = planned(rows, call)
    plain = call.cost(5 * (max(r.prompt for r in rows) + max(r.completion for r in rows)))
    shared = min(cost_of(rows, parts, call) for parts in partitions(range(5)))
    if len({row.group for row in rows}) == 5:
        shared = plain
    assert plan.cost == min(plain, shared)
    assert plan.shared == (shared < plain)
    assert sorted(itertools.chain(*plan.chunks)) == list(range(5))
    if plan.shared:
        assert cost_of(rows, plan.chunks, call) == plan.cost


def test_a_gpu_computes_few_tokens_with_their_prompts():
    """In the shape of Qwen2.5-1.5B, fewer than 4,900 tokens save no time there."""
    cpu, gpu = (call_of(device, 28, 1_543_714_304) for device in ("cpu", "cuda"))
    few, many = ([RolloutTokens(600, 100, group=i // 4) for i in range(count)] for count in (8, 64))
    assert planned(few, cpu).shared
    assert not planned(few, gpu).shared
    assert planned(many, gpu).shared


def test_rows_that_have_no_prompt_in_common_or_only_one_prompt_token_are_computed_as_in_trl():
    assert not planned([RolloutTokens(50, 5, group=i) for i in range(4)], CallCost()).shared
    assert not planned([RolloutTokens(1, n) for n in (1, 50)], CallCost()).shared
    assert not planned([RolloutTokens(50, 5)] * 4, None).shared


@pytest.mark.parametrize(("prompt", "together"), [(20, False), (200, True)])
def test_a_group_stays_together_where_its_prompt_is_long(prompt, together):
    rows = [RolloutTokens(prompt, length, group=i % 2) for i, length in enumerate([90, 80, 10, 5])]
    places = split(rows, 4, 2, CallCost(50))
    assert places == ([[0, 2], [1, 3]] if together else [[0, 1], [2, 3]])


def test_groups_are_sorted_by_their_longest_completion():
    rows = [
        RolloutTokens(200, length, group=i // 2) for i, length in enumerate([5, 10, 90, 1, 50, 60])
    ]
    assert split(rows, 6, 3, CallCost()) == [[2, 3], [5, 4], [1, 0]]
