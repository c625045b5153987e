"""Tests that packed micro-batches, with and without shared prompts, give TRL's gradient."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.integrations import prepared
from tests.integrations.prepared import alive, constant, gap, half_dead, ours, theirs, with_tools
from tests.integrations.two_ranks import launched
from tests.integrations.variants import CHECKPOINTING
from tests.refusals import config_error
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gdpo.integrations.trl import _flat, _packing

pytestmark = pytest.mark.slow

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
STEPS = {
    "cispo": {"epsilon_high": 1.0, "learning_rate": 1.0},
    "luspo": {"learning_rate": 0.05},
    "vespo": {"learning_rate": 0.05},
}
"""Settings for loss types that clip at 1 %, or for which large steps leave nothing to compare.

vespo's weight of a sequence falls so steeply with its ratio that after a step of 0.5, float32
rounding alone changes a gradient by 2e-5.
"""

WINDOWS = {
    "one micro-batch": (1, 1, 1),
    "accumulation": (3, 3, 1),
    "generation below accumulation": (4, 2, 1),
    "generation above accumulation": (2, 4, 1),
    "windows across generations, 2 iterations": (2, 3, 2),
}


def accumulated(name):
    steps, generation, iterations = WINDOWS[name]
    return {
        "gradient_accumulation_steps": steps,
        "steps_per_generation": generation,
        "num_iterations": iterations,
    }


ACCUMULATED = accumulated("accumulation")
ACROSS = accumulated("windows across generations, 2 iterations")


def across(loss_type, beta):
    return {**ACROSS, **STEPS.get(loss_type, {}), "loss_type": loss_type, "beta": beta}


def shares(run):
    return not run.trainer._packer.flat.is_off


def sizes(run):
    """Return the number of rollouts of each micro-batch."""
    return [len(batch["advantages"]) for batch in run.micro_batches]


def assert_same(policy, folder, *, model=lambda: None, how=None, **changed):
    trl, packed = (
        variant(policy, folder, how={**(how or {}), "model": model()}, **changed)
        for variant in (theirs, ours)
    )
    assert max(gap(packed, trl)) < 1e-5
    return trl, packed


def counting(policy):
    """Return a model, and a list that gets the number of tokens of each call of its embedding."""
    model, read = AutoModelForCausalLM.from_pretrained(policy), []
    model.get_input_embeddings().register_forward_hook(
        lambda _, ids, __: read.append(ids[0].numel())
    )
    return model, read


def assert_shared_and_same(policy, folder, *, how=None, own=None, **changed):
    """Return TRL's run, and ours without shared prompts, in which the model reads more tokens."""
    trl, few = theirs(policy, folder, how=how, **changed), 0
    for share in (True, False):
        model, read = counting(policy)
        settings = {**changed, **(own or {}), "share_prompts": share}
        packed = ours(policy, folder, how={"model": model, **(how or {})}, **settings)
        assert max(gap(packed, trl)) < 1e-5
        few = few or sum(read)
    assert few < sum(read)
    return trl, packed


def tokens(run):
    return sum(b["prompt_ids"].numel() + b["completion_ids"].numel() for b in run.micro_batches)


# With a KL term, one loss type for each normalizer.
LOSSES = [*((each, 0.0) for each in LOSS_TYPES), ("grpo", 0.1), ("bnpo", 0.1), ("dapo", 0.1)]


@pytest.mark.parametrize(("loss_type", "beta"), LOSSES)
def test_every_loss_type_keeps_its_gradient(loss_type, beta, place):
    trl, packed = assert_shared_and_same(*place, **across(loss_type, beta))
    assert tokens(packed) < (0.95 if beta else 0.75) * tokens(trl)


def of_kind(kind):
    torch.manual_seed(4)
    sizes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 48, "pad_token_id": 0}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config, model = kind
    return model(config(**sizes, **heads, tie_word_embeddings=model is Qwen2ForCausalLM))


LLAMA, QWEN = (LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)


@pytest.mark.parametrize(
    ("loss_type", "beta", "kind"),
    [(*each, kind) for each in LOSSES for kind in ((None,) if each[1] else (LLAMA, QWEN))],
)
def test_calls_of_several_groups_keep_the_gradient(loss_type, beta, kind, place, monkeypatch):
    """Plans as on a GPU. Key and value heads are shared, and one model's embeddings are tied."""
    monkeypatch.setattr(_packing, "_APART", ())
    _, packed = assert_same(
        *place,
        model=lambda: kind and of_kind(kind),
        how={"reward": alive},
        **across(loss_type, beta),
    )
    assert shares(packed)
    groups = [len(batch["prompt_ids"].unique(dim=0)) for batch in packed.micro_batches]
    assert max(groups) > 1
    assert (0 in groups) == (loss_type != "bnpo" or not beta)


@pytest.mark.parametrize(
    ("loss_type", "windows"),
    [*(("grpo", each) for each in list(WINDOWS)[:-1]), ("dapo", "generation above accumulation")],
)
def test_every_kind_of_window_keeps_its_gradient(loss_type, windows, place):
    assert_same(*place, loss_type=loss_type, **accumulated(windows))


def test_the_short_window_at_the_end_of_an_epoch_is_one_of_its_own(place):
    """Uses 9 micro-batches per epoch in windows of 5 and 4, and generations of 3."""
    trl, _ = assert_same(
        *place,
        loss_type="bnpo",
        how={"rows": 9, "reward": alive},
        gradient_accumulation_steps=5,
        steps_per_generation=3,
    )
    assert len(trl.micro_batches) == 5 + 4 + 5 + 4 + 5


@pytest.mark.parametrize(
    "changed",
    [
        {"how": {"rollout_func": with_tools}, "loss_type": "bnpo"},
        {"how": {"reward": alive}},
        {"importance_sampling_level": "sequence"},
        {"mask_truncated_completions": True},
        {"delta": 1.02, "off_policy_mask_threshold": 1e-4},
        {"temperature": 0.7},
        {"entropy_coef": 0.1},
        {CHECKPOINTING: True},
        {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}},
        {"own": {"completion_only_head": False}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_belongs_to_a_rollout_travels_with_it(changed, place):
    assert_shared_and_same(*place, **{"loss_type": "grpo", **ACROSS, **changed})


def test_sequences_are_padded_to_a_multiple(place):
    _, packed = assert_same(*place, pad_to_multiple_of=5, **ACROSS)
    assert {b["completion_ids"].shape[1] % 5 for b in packed.micro_batches} == {0}


def adapted(policy):
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(policy)
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(base, config)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_rollouts_that_teach_nothing_are_not_computed(masked, share, place):
    how = {"mask_truncated_completions": masked, "share_prompts": share}
    packed = ours(*place, **how, **ACCUMULATED)
    for i in range(0, len(packed.micro_batches), 3):
        window = packed.micro_batches[i : i + 3]
        sizes = [len(batch["advantages"]) for batch in window]
        full = [batch for batch in window if len(batch["advantages"])]
        assert window[3 - len(full) :] == full
        for batch in full:
            assert (batch["advantages"] != 0).all()
            assert batch["completion_mask"].any(1).all()
            assert batch["completion_mask"].any(0).all()
            assert batch["prompt_mask"].any(0).all()
        if share:
            assert all(len(batch["prompt_ids"].unique(dim=0)) == 1 for batch in full)
            continue
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes)
        longest = [batch["completion_mask"].sum(1).max() for batch in window]
        shortest = [batch["completion_mask"].sum(1).min() for batch in window]
        assert all(a >= b for a, b in zip(shortest, longest[1:], strict=False))


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        (AutoModelForCausalLM.from_pretrained, {CHECKPOINTING: True}),
        (adapted, {"learning_rate": 0.02}),
    ],
)
def test_gradients_and_log_probabilities_without_gradients_are_trls(model, changed, place):
    """Those of the policy before a step, and of the reference, whose rows are flat, too."""
    trl, own = assert_same(*place, model=lambda: model(place[0]), **ACROSS, beta=0.1, **changed)
    assert shares(own)
    for ours_, trls in zip(own.trainer._buffered_inputs, trl.trainer._buffered_inputs, strict=True):
        for key in ("old_per_token_logps", "ref_per_token_logps"):
            difference = (ours_[key] - trls[key]) * trls["completion_mask"]
            assert 0 < difference.abs().max() < 1e-5


def test_an_evaluation_is_trls(place):
    runs = [variant(*place, max_steps=1, beta=0.1) for variant in (theirs, ours)]
    trl, packed = (run.trainer.evaluate(run.trainer.train_dataset) for run in runs)
    assert packed["eval_loss"] == pytest.approx(trl["eval_loss"], rel=1e-4)
    assert packed["eval_kl"] == pytest.approx(trl["eval_kl"], rel=1e-3)


def test_a_batch_without_any_signal_keeps_one_rollout_for_each_micro_batch(place):
    how = {"reward": constant}
    packed = ours(*place, how=how, **ACCUMULATED)
    assert sizes(packed) == [0, 0, 1] * 5
    assert all(torch.count_nonzero(gradient) == 0 for gradient in packed.gradients)


def test_a_kl_term_keeps_every_rollout(place):
    for share in (True, False):
        packed = ours(*place, beta=0.1, share_prompts=share, **ACCUMULATED)
        assert sum(sizes(packed)) == 4 * 15


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"loss_type": "bnpo", "beta": 0.1}, "loss_type='bnpo' averages the KL term"),
        ({"entropy_coef": 0.1}, "entropy bonus"),
        ({"use_adaptive_entropy": True, "entropy_coef": 0.1}, "entropy bonus"),
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
    ],
)
def test_where_a_micro_batch_shares_a_mean_it_is_only_trimmed(changed, reason, place, caplog):
    windows = accumulated("generation above accumulation")
    trl, packed = assert_same(*place, **windows, **changed)
    assert caplog.text.count("pack_micro_batches") == 1
    assert reason in caplog.text
    assert tokens(packed) < tokens(trl)
    for key in ("entropy", "clip_ratio/region_mean", "clip_ratio/high_max"):
        assert packed.logged(key) == pytest.approx(trl.logged(key), rel=1e-4)


def test_a_parameter_without_a_gradient_is_said(place, caplog):
    model = AutoModelForCausalLM.from_pretrained(place[0])
    model.expert = torch.nn.Parameter(torch.ones(()))
    ours(*place, how={"model": model}, **ACCUMULATED)
    assert caplog.text.count("a trained parameter has no gradient") == 1


def test_experts_loads_are_balanced_as_in_trl(place, caplog):
    def model():
        torch.manual_seed(2)
        sizes = {"vocab_size": 260, "hidden_size": 16, "intermediate_size": 16, "pad_token_id": 0}
        heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
        experts = {"num_local_experts": 4, "router_aux_loss_coef": 0.5}
        config = MixtralConfig(**sizes, **heads, **experts, output_router_logits=True)
        return MixtralForCausalLM(config)

    trl, packed = assert_same(*place, model=model, **ACCUMULATED)
    assert "expert load" in caplog.text
    assert packed.logged("aux_loss") == pytest.approx(trl.logged("aux_loss"), rel=1e-5)


def test_prompts_of_a_model_with_absolute_positions_keep_their_padding(place, caplog):
    def model():
        torch.manual_seed(2)
        sizes = {"vocab_size": 260, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
        config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return GPT2LMHeadModel(config)

    windows = accumulated("generation above accumulation")
    _, packed = assert_same(*place, model=model, **windows)
    assert any(not batch["prompt_mask"].any(0).all() for batch in packed.micro_batches)
    assert "pack_micro_batches" not in caplog.text  # completions are trimmed


class OwnLoss:
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs)


class OwnMask:
    @staticmethod
    def get_off_policy_mask(**tensors):
        raise AssertionError("not called here")


class LaterAdvantages:
    def _prepare_inputs(self, batch):
        inputs = super()._prepare_inputs(batch)
        return {**inputs, "advantages": inputs["advantages"] - 1}


def test_advantages_that_change_after_packing_are_refused(place, monkeypatch):
    class Own(LaterAdvantages, prepared.GDPOTrainer):
        pass

    monkeypatch.setattr(prepared, "GDPOTrainer", Own)
    with config_error("changes the advantages after gdpo has left out rollouts"):
        ours(*place, **ACCUMULATED)


class OwnColumn:
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return {**output, "row": torch.arange(len(output["advantages"]))}


@pytest.mark.parametrize(
    ("own", "changed", "reason"),
    [
        (OwnLoss, {}, "TRL's loss"),
        (OwnMask, {}, "TRL's loss"),
        (OwnColumn, {}, "contain row"),
        (object, {"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        (
            object,
            {"bf16": True, "importance_sampling_level": "sequence", "num_iterations": 2},
            "half precision",
        ),
    ],
)
def test_a_trainer_that_packing_does_not_support_gets_trls_micro_batches(
    own, changed, reason, place, caplog, monkeypatch
):
    class Own(*({own} - {object}), prepared.GDPOTrainer):
        pass

    monkeypatch.setattr(prepared, "GDPOTrainer", Own)
    run = ours(*place, **{**ACCUMULATED, **changed})
    assert sizes(run) == [4] * 15
    assert caplog.text.count(reason) == 1
    assert caplog.text.count("pack_micro_batches: micro-batches remain TRL's") == 1


@pytest.mark.parametrize("generated", ["prepared", "by TRL"])
def test_switched_off_it_is_trl_bit_for_bit(generated, place):
    changed = {"beta": 0.1, **ACROSS}
    if generated == "by TRL":
        changed["how"] = {"rollout_func": None}
    off = ("pack_micro_batches", "completion_only_head", "fast_generation")
    trl = theirs(*place, **changed)
    plain = ours(*place, **changed, **dict.fromkeys(off, False))
    assert torch.equal(plain.parameters, trl.parameters)
    for a, b in zip(plain.gradients, trl.gradients, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(plain.micro_batches, trl.micro_batches, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(batch is plain.micro_batches[-1] for batch in plain.trainer._buffered_inputs)


ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("on_cpu", [True, pytest.param(False, marks=ON_CUDA)])
def test_in_bfloat16_it_is_as_near_to_float32_as_trl(on_cpu, place):
    how = {**ACCUMULATED, "use_cpu": on_cpu, "how": {"reward": alive}}
    trl, exact = (theirs(*place, bf16=bf16, **how) for bf16 in (True, False))
    for share in (True, False):
        packed = ours(*place, bf16=True, share_prompts=share, **how)
        found, allowed = (run.gradients[0] - exact.gradients[0] for run in (packed, trl))
        assert shares(packed) == share
        assert 0 < found.norm() < 1.5 * allowed.norm()


@pytest.mark.parametrize("apart", [("cpu",), ()])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_logged_means_are_those_of_one_large_micro_batch(level, apart, place, monkeypatch):
    """Compares 24 rollouts in 6 packed micro-batches with one of TRL's. The second step clips."""
    monkeypatch.setattr(_packing, "_APART", apart)
    how = {"how": {"reward": alive}, "max_steps": 2, "num_iterations": 2, "beta": 0.1}
    how |= {"loss_type": "grpo", "importance_sampling_level": level}
    one = theirs(*place, per_device_train_batch_size=24, **how)
    many = ours(*place, gradient_accumulation_steps=6, **how)
    assert len(many.micro_batches) == 12
    assert any(not len(batch["advantages"]) for batch in many.micro_batches)
    assert one.logged("clip_ratio/region_mean")[1] > 0.1
    for key in ("entropy", "kl", "clip_ratio/region_mean", "clip_ratio/high_mean"):
        assert many.logged(key) == pytest.approx(one.logged(key), rel=1e-3, abs=1e-8)


def test_logged_means_of_rollouts_leave_out_rows_without_tokens_and_empty_micro_batches():
    """Of 4 rollouts with 0.5 and 2 without tokens, 2 with 0.2, and an empty micro-batch."""
    values = defaultdict(list)
    trainer = SimpleNamespace(importance_sampling_level="sequence", _metrics={"train": values})
    for weight, clipped, shares in (
        ((4 * 0.5 + 2) / 6, 4 * 0.5 / 6, (0.5, 1.0, 2.0, 1.0, 1)),
        (0.2, 0.2, (1.0, 1.0, 1.0, 0.0, 0)),
    ):
        values["vespo/phi_seq_mean"].append(weight)
        values["clip_ratio/low_mean"].append(clipped)
        batch = {"advantages": None, _packing._SHARES: (*shares, None)}
        loss = _packing.weighed(trainer, batch, 3.0)
        assert loss == 3.0 * shares[0]
    for found in values.values():
        assert len(found) == 3
        assert sum(found) / 3 == pytest.approx((4 * 0.5 + 2 * 0.2) / 6)


def test_windows_restart_after_an_interruption(place):
    windows = {"gradient_accumulation_steps": 3, "steps_per_generation": 4, "num_iterations": 1}
    assert_same(*place, how={"interrupted": True}, **windows)


ON_TWO_RANKS = [
    ({"loss_type": "grpo", "gradient_accumulation_steps": 2, "steps_per_generation": 4}, half_dead),
    ({"loss_type": "bnpo", "gradient_accumulation_steps": 3, "steps_per_generation": 2}, half_dead),
    (
        {
            "loss_type": "dapo",
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 3,
            "num_iterations": 2,
            "beta": 0.1,
        },
        alive,
    ),
]


def gaps_of_a_rank(policy, folder):
    found, flat_row_of, flat = [], _flat.flat_row_of, []
    _flat.flat_row_of = lambda *given: flat.append(given) or flat_row_of(*given)
    for changed, reward in (*ON_TWO_RANKS, ON_TWO_RANKS[0]):
        _packing._APART = ("cpu",) if len(found) < len(ON_TWO_RANKS) else ()
        how = {"reward": reward}
        trl, packed = (variant(policy, folder, how=how, **changed) for variant in (theirs, ours))
        found.append(
            {
                "gap": max(gap(packed, trl)),
                "flat": len(flat),
                "rows": sizes(packed),
                "blank": sum(
                    int((~b["completion_mask"].any(1)).sum()) for b in packed.micro_batches
                ),
                "alive": [int((b["advantages"] != 0).sum()) for b in packed.micro_batches],
                "rows_of_trl": sizes(trl),
            }
        )
    return found


def test_two_processes_stay_in_step_and_keep_the_gradient(place):
    ranks = launched("tests.integrations.test_packing:gaps_of_a_rank", *place)
    assert len(ranks[0]) == len(ON_TWO_RANKS) + 1
    for first, second in zip(*ranks, strict=True):
        assert max(first["gap"], second["gap"]) < 1e-5
        assert first["rows"] == second["rows"]
        assert len(first["rows"]) == len(first["rows_of_trl"])
    assert 0 < ranks[0][0]["flat"] < ranks[0][1]["flat"] < ranks[0][2]["flat"]
    dropped = [sum(run["rows"]) < sum(run["rows_of_trl"]) for run in ranks[0]]
    assert dropped == [True, True, False, True]
    assert all(any(rank[i]["blank"] for rank in ranks) for i in range(4))
    assert ranks[0][0]["alive"] != ranks[1][0]["alive"]  # so they had to agree
