"""Tests that prompts which are computed once give TRL's gradient with fewer tokens."""

import itertools
from functools import partial

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tests.integrations.prepared import alive, gap, ours, theirs, with_tools
from tests.integrations.test_packing import LOSS_TYPES, ON_CUDA, STEPS, accumulated
from tests.integrations.two_ranks import launched
from tests.integrations.variants import CHECKPOINTING
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from gdpo.integrations.trl import _caches, _shared_prompts
from gdpo.integrations.trl._plan import CallCost, RolloutTokens, call_of, planned, split
from gdpo.integrations.trl._probe import Trial

WINDOWS = accumulated("windows across generations, 2 iterations")


@pytest.fixture
def always(monkeypatch):
    """Let the short prompts of these tests be shared, too."""
    monkeypatch.setattr(_shared_prompts, "call_of", lambda *_: CallCost())


def counting(policy):
    """Return a model, and a list that gets the number of tokens of each call of its embedding."""
    model, read = AutoModelForCausalLM.from_pretrained(policy), []
    model.get_input_embeddings().register_forward_hook(
        lambda _, ids, __: read.append(ids[0].numel())
    )
    return model, read


def variants(policy, folder, *, own=None, **changed):
    """Return the run of TRL, ours, and the tokens that ours reads with and without sharing."""
    how = changed.pop("how", {})
    trl = theirs(policy, folder, how=how, **changed)
    runs = []
    for share in (True, False):
        model, read = counting(policy)
        settings = {**changed, **(own or {}), "share_prompts": share}
        runs.append((ours(policy, folder, how={"model": model, **how}, **settings), read))
    (shared, few), (_, many) = runs
    return trl, shared, sum(few), sum(many)


def shares(run):
    shared = run.trainer._packer.shared
    return shared is not None and not shared.is_off


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_keeps_its_gradient(loss_type, beta, always, tiny_policy, tmp_path):
    settings = {**WINDOWS, **STEPS.get(loss_type, {}), "loss_type": loss_type, "beta": beta}
    trl, shared, few, many = variants(tiny_policy, tmp_path, **settings)
    assert max(gap(shared, trl)) < 1e-5
    assert few < many


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"how": {"rollout_func": with_tools}, "loss_type": "bnpo"},
        {"how": {"reward": alive}},
        {"importance_sampling_level": "sequence"},
        {"entropy_coef": 0.1},
        {"temperature": 0.7},
        {"mask_truncated_completions": True},
        {CHECKPOINTING: True},
        {"own": {"completion_only_head": False}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_settings_keep_the_gradient(changed, always, tiny_policy, tmp_path):
    trl, shared, few, many = variants(tiny_policy, tmp_path, **{**WINDOWS, **changed})
    assert max(gap(shared, trl)) < 1e-5
    assert few < many


@pytest.mark.slow
def test_an_adapter_gets_the_same_gradient(always, tiny_policy, tmp_path):
    def model():
        torch.manual_seed(3)
        base = AutoModelForCausalLM.from_pretrained(tiny_policy)
        config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(base, config)

    settings = {**WINDOWS, "beta": 0.1, "learning_rate": 0.05}
    trl, shared = (
        variant(tiny_policy, tmp_path, how={"model": model()}, **settings)
        for variant in (theirs, ours)
    )
    assert shares(shared)
    assert max(gap(shared, trl)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [True, pytest.param(False, marks=ON_CUDA)])
def test_in_bfloat16_it_is_as_near_to_float32_as_trl(on_cpu, always, tiny_policy, tmp_path):
    how = {**accumulated("accumulation"), "use_cpu": on_cpu, "how": {"reward": alive}}
    trl, exact = (theirs(tiny_policy, tmp_path, bf16=bf16, **how) for bf16 in (True, False))
    shared = ours(tiny_policy, tmp_path, bf16=True, **how)
    found, allowed = (run.gradients[0] - exact.gradients[0] for run in (shared, trl))
    assert shares(shared)
    assert 0 < found.norm() < 1.5 * allowed.norm()


def gap_of_a_rank(policy, folder):
    _shared_prompts.call_of = lambda *_: CallCost()
    trl, shared, few, many = variants(policy, folder, **WINDOWS, beta=0.1)
    return [*gap(shared, trl), few / many]


@pytest.mark.slow
def test_two_processes_keep_the_gradient(tiny_policy, tmp_path):
    function = "tests.integrations.test_shared_prompts:gap_of_a_rank"
    for gradients, parameters, tokens in launched(function, tiny_policy, tmp_path):
        assert gradients < 1e-5
        assert parameters < 1e-5
        assert tokens < 1


def reason_of(policy, folder, caplog, **changed):
    run = ours(policy, folder, max_steps=1, **changed)
    assert not shares(run)
    (said,) = [each for each in caplog.messages if each.startswith("share_prompts")]
    return said


@pytest.mark.parametrize("bf16", [True, False])
def test_gradients_may_differ_by_their_rounding(bf16, tiny_policy, tmp_path):
    trainer = ours(tiny_policy, tmp_path, max_steps=1, bf16=bf16).trainer
    trls, packer = GRPOTrainer._get_per_token_logps_and_entropies.__get__(trainer), trainer._packer

    def scaled(by, model, ids, *more, **options):
        """Scale the gradient of whole rows, which only TRL's code computes, and not the value."""
        logps, *others = trls(model, ids, *more, **options)
        return logps + (by if ids.shape[1] == 18 else 0.0) * (logps - logps.detach()), *others

    for by, is_off in zip((0.05, 0.2) if bf16 else (5e-4, 5e-3), (False, True), strict=True):
        Trial(trainer, partial(scaled, by), [packer, packer.shared]).run(12, 6)
        assert packer.is_off == packer.shared.is_off == is_off


def test_where_sharing_saves_nothing_the_log_says_so_once(tiny_policy, tmp_path, caplog):
    ours(tiny_policy, tmp_path, **WINDOWS)
    said = [each for each in caplog.messages if each.startswith("share_prompts")]
    assert len(said) == 1
    assert "sharing saves nothing" in said[0]


def policy_with(policy, **config):
    model = AutoModelForCausalLM.from_pretrained(policy)
    vars(model.config).update(config)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pad_to_multiple_of": 8}, "pad_to_multiple_of is set"),
        (
            {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}},
            "(gradient checkpointing: True)",
        ),
        ({"config": {"attention_dropout": 0.1}}, "config.attention_dropout is 0.1"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_where_prompts_cannot_be_shared_the_log_says_why(
    changed, reason, tiny_policy, tmp_path, caplog
):
    config = changed.pop("config", None)
    how = {} if config is None else {"how": {"model": policy_with(tiny_policy, **config)}}
    assert reason in reason_of(tiny_policy, tmp_path, caplog, **changed, **how)


@pytest.mark.slow
def test_a_learned_prompt_is_not_shared(tiny_policy, tmp_path, caplog):
    base = AutoModelForCausalLM.from_pretrained(tiny_policy)
    model = get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    said = reason_of(tiny_policy, tmp_path, caplog, how={"model": model})
    assert "differ from TRL's in a trial" in said


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["keys", "gradient"])
def test_a_cache_that_loses_something_is_found_in_the_trial(
    broken, tiny_policy, tmp_path, caplog, monkeypatch
):
    update = _caches.ContinuedLayer.update

    def own(self, keys, values, *args, **kwargs):
        if broken == "gradient":
            self.keys = self.keys.detach()
        else:
            self.keys = self.keys.roll(1, 0)
        return update(self, keys, values, *args, **kwargs)

    monkeypatch.setattr(_caches.ContinuedLayer, "update", own)
    said = reason_of(tiny_policy, tmp_path, caplog)
    assert "differ from TRL's in a trial" in said


@pytest.mark.slow
def test_layers_that_drop_the_cache_in_checkpoints_are_not_used(
    tiny_policy, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(_caches, "_KEEPS_CACHE", "missing")
    said = reason_of(tiny_policy, tmp_path, caplog, **{CHECKPOINTING: True})
    assert "(gradient checkpointing: True)" in said


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
