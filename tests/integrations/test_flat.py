"""Tests flat rows and their plan. `test_packing.py` compares the gradient with TRL's."""

import itertools
from functools import partial

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tests.integrations.prepared import ours
from tests.integrations.test_packing import shares
from tests.integrations.variants import CHECKPOINTING, trainer_of
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from trl import GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, _flat
from gdpo.integrations.trl._flat import FlatRow, flat_row_of
from gdpo.integrations.trl._plan import RolloutTokens, calls_needed, dealt, pieces_of, split
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
        with torch.set_grad_enabled(bf16):  # a `_generate` of one's own may run without gradients
            Trial(trainer, partial(scaled, by), packer, None).run(12, 6)
        assert packer.is_off == packer.flat.is_off == is_off


def padded_rows():
    """Return ids and mask of five rows, of which two have the same prompt and one no completion."""
    prompts, completions = [3, 5, 3, 2, 4], [4, 1, 2, 0, 3]
    ids = torch.arange(10, 55).view(5, 9)
    ids[2, 2:5] = ids[0, 2:5]
    place = torch.arange(9)
    mask = [(5 - p <= place) & (place < 5 + n) for p, n in zip(prompts, completions, strict=True)]
    return ids, torch.stack(mask).long(), 4


def test_a_flat_row_has_each_prompt_once_and_no_padding():
    ids, mask, keep = padded_rows()
    row = flat_row_of(ids, mask, keep)
    assert row.groups == [[3, 4, 2], [7], [6]]
    first = [*ids[0, 2:9], *ids[2, 5:7]]
    assert row.ids.tolist() == [*first, *ids[4, 1:8], *ids[1, :6]]
    assert row.positions.tolist() == [*range(2, 9), 5, 6, *range(1, 8), *range(6)]
    assert row.before.tolist() == [2, 3, 4, 5, 2, 7, 12, 13, 14, 20]
    assert row.scored.tolist() == [0, 1, 2, 3, 8, 9, 16, 17, 18, 4]


def test_masks_with_holes_and_rows_without_completions_stay_padded():
    ids, mask, keep = padded_rows()
    for place in (3, 6):
        hole = mask.clone()
        hole[0, place] = 0
        assert flat_row_of(ids, hole, keep) is None
    mask[:, 5:] = 0
    assert flat_row_of(ids, mask, keep) is None


def varlen(query, key, value, ends, key_ends, longest, longest_key, *, scale, window_size, **more):
    """Compute what torch's `varlen_attn` does: causal attention of segments, from the last key."""
    assert window_size == (-1, 0)
    assert more == {"enable_gqa": query.shape[1] != key.shape[1]}
    assert (longest, longest_key) == (int(ends.diff().max()), int(key_ends.diff().max()))
    assert ends.dtype == key_ends.dtype == torch.int32
    found = torch.empty_like(query)
    for (a, b), (c, d) in zip(
        itertools.pairwise(ends.tolist()), itertools.pairwise(key_ends.tolist()), strict=True
    ):
        for i in range(a, b):
            last = d - (b - 1 - i)
            one = (x.transpose(0, 1)[None] for x in (query[i : i + 1], key[c:last], value[c:last]))
            found[i] = scaled_dot_product_attention(*one, scale=scale, enable_gqa=True)[0, :, 0]
    return found


@pytest.mark.parametrize("attend", [_flat._by_segment, _flat._at_once])
def test_each_token_attends_to_its_prompt_and_to_its_completion(attend, monkeypatch):
    monkeypatch.setattr(_flat, "varlen_attn", varlen)
    nothing = torch.zeros(0, dtype=torch.long)
    row = FlatRow(nothing, nothing, [[3, 4, 2], [5, 1, 1]], nothing, nothing)
    group = torch.tensor([0] * 9 + [1] * 7)
    part = torch.tensor([0] * 3 + [1] * 4 + [2] * 2 + [0] * 5 + [1, 2])
    sees = (group[:, None] == group) & ((part == 0) | (part[:, None] == part))
    sees &= torch.ones(16, 16, dtype=torch.bool).tril()
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(16, heads, 8, generator=draw, requires_grad=True) for heads in (4, 2, 2)]
    expected = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in given), sees, scale=0.3, enable_gqa=True
    )[0].transpose(0, 1)
    q, k, v = given
    found = attend(row, (q, row.with_prompts(k), row.with_prompts(v)), 0.3)
    weights = torch.randn(expected.shape, generator=draw)
    for one, other in zip(
        (found, *torch.autograd.grad((found * weights).sum(), given)),
        (expected, *torch.autograd.grad((expected * weights).sum(), given)),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-6)


def test_varlen_attention_computes_what_a_loop_over_segments_does(place, monkeypatch):
    """The layout of a GPU, with a slow kernel."""
    runs, calls = [ours(*place, max_steps=2)], []
    monkeypatch.setattr(_flat, "varlen_attn", lambda *a, **k: calls.append(a) or varlen(*a, **k))
    monkeypatch.setattr(_flat, "_by_segment", _flat._at_once)
    runs.append(ours(*place, max_steps=2))
    assert calls
    assert all(shares(run) for run in runs)
    for one, other in zip(*(run.gradients for run in runs), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)


def with_dropout(model, patch):
    model.config.attention_dropout = 0.1
    return model


def with_a_learned_prompt(model, patch):
    return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def with_broken_keys(broken, model, patch):
    own = FlatRow.with_prompts
    patch.setattr(FlatRow, "with_prompts", lambda row, states: broken(own(row, states)))
    return model


def with_other_attention_in_the_backward_pass(model, patch):
    patch.setattr(_flat, "_again", lambda _, checkpoint, *given: checkpoint(*given))
    return model


def with_an_attention_of_its_own(model, patch):
    AttentionInterface.register("shifted", AttentionInterface()["sdpa"])
    model.set_attn_implementation("shifted")
    return model


def with_tokens_that_switch_an_adapter_on(model, patch):
    targets = {"target_modules": ["q_proj"], "alora_invocation_tokens": [42, 50]}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, **targets))


def with_a_sliding_window(model, patch):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "pad_token_id": 0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 128}
    return MistralForCausalLM(MistralConfig(vocab_size=260, **sizes, **heads))


DIFFERS = "differ from TRL's in a trial"
UNSHARED = [
    (lambda model, _: model, {"pad_to_multiple_of": 8}, "pad_to_multiple_of is set"),
    (with_dropout, {}, "config.attention_dropout is 0.1"),
    (with_a_learned_prompt, {}, "the decoder reads more than ids"),
    (with_a_sliding_window, {}, "attention has sliding_window"),
    (with_an_attention_of_its_own, {}, "attn_implementation='shifted'"),
    (with_tokens_that_switch_an_adapter_on, {}, "looks for its invocation tokens"),
    (partial(with_broken_keys, torch.Tensor.detach), {}, "a trial with"),
    (partial(with_broken_keys, lambda keys: keys.roll(1, 0)), {}, DIFFERS),
    (with_other_attention_in_the_backward_pass, {CHECKPOINTING: True}, "a trial with"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "settings", "reason"), UNSHARED)
def test_where_rows_cannot_be_flat_the_log_says_why(
    change, settings, reason, tiny_policy, tmp_path, caplog, monkeypatch
):
    model = change(AutoModelForCausalLM.from_pretrained(tiny_policy), monkeypatch)
    run = ours(tiny_policy, tmp_path, how={"model": model}, max_steps=1, **settings)
    assert not shares(run)
    (said,) = [each for each in caplog.messages if each.startswith("share_prompts")]
    assert reason in said


@pytest.mark.parametrize("sharding", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_a_sharded_model_has_no_flat_rows_and_the_log_says_so_in_one_line(sharding, place, caplog):
    trainer = trainer_of(GDPOTrainer, GDPOConfig, *place)
    caplog.clear()
    setattr(trainer, sharding, True)
    assert _flat.flat_rows_of(trainer).is_off
    (said,) = caplog.messages
    assert "sharded" in said


def drawn(seed, count=24):
    """Return drawn rows in groups of four, and the largest cost of one of them."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1, 60, (count, 2), generator=draw).tolist()
    rows = [
        RolloutTokens(10 + 7 * (i // 4), length, contributes=use > 15, group=i // 4)
        for i, (length, use) in enumerate(numbers)
    ]
    return rows, max(row.prompt + row.completion for row in rows)


def cost_of(rows, places):
    prompts = {rows[i].group: rows[i].prompt for i in places}
    return sum(prompts.values()) + sum(rows[i].completion for i in places)


@pytest.mark.parametrize("seed", range(20))
def test_calls_hold_every_rollout_that_contributes_within_the_budget(seed):
    rows, largest = drawn(seed)
    wanted = [i for i, row in enumerate(rows) if row.contributes]
    for budget in (largest, 2 * largest, 100 * largest):
        pieces = pieces_of(rows, budget)
        assert sorted(i for _, places in pieces for i in places) == wanted
        for tokens, places in pieces:
            assert len({rows[i].group for i in places}) == 1
            assert tokens == cost_of(rows, places) <= budget
        count = calls_needed(pieces, 24, budget)
        calls = dealt(pieces, count)
        assert sorted(i for _, places in calls for i in places) == wanted
        assert all(cost_of(rows, places) <= tokens <= budget for tokens, places in calls)
        assert [tokens for tokens, _ in calls] == sorted((t for t, _ in calls), reverse=True)
        assert count == 1 or dealt(pieces, count - 1)[0][0] > budget
    assert len(pieces) == len({rows[i].group for i in wanted})
    assert count == 1


def test_where_the_budget_needs_more_calls_than_there_are_they_are_filled_evenly():
    rows, largest = drawn(3)
    pieces = pieces_of(rows, largest)
    assert calls_needed(pieces, 2, 1) == 2
    (more, _), (less, _) = dealt(pieces, 2)
    assert less > 0.8 * more


def test_without_any_signal_the_shortest_rollout_is_computed():
    rows = [RolloutTokens(9, length, contributes=False) for length in (5, 2, 7)]
    assert pieces_of(rows, 100) == [(11, [1])]


def test_padded_micro_batches_are_sorted_by_length():
    rows = [RolloutTokens(20, length, contributes=length < 90) for length in (5, 10, 90, 1, 50, 60)]
    assert split(rows, 5, 2) == [[5, 4], [1, 0, 3]]
