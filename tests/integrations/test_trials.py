"""Tests that each speed-up is tried before the training, and that TRL's code runs if it differs."""

import copy
import re
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.integrations import variants
from tests.integrations.generating import MODELS, model_of
from tests.integrations.prepared import ours
from tests.integrations.variants import CHECKPOINTING
from transformers import AutoModelForCausalLM, GenerationMixin
from trl import GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, _packing, _sampling
from gdpo.integrations.trl._adapter import agree
from gdpo.integrations.trl._sampling import difference_from_generate
from gdpo.integrations.trl.generation import model_not_covered
from gdpo.integrations.trl.logprobs import CompletionOnlyHead


def trainer_of(policy, folder, **options):
    options = {"max_steps": 1, **options}
    return variants.trainer_of(GDPOTrainer, GDPOConfig, policy, folder, **options)


def told(caplog, speed_up):
    """Return the messages about a speed-up."""
    return [text for text in caplog.messages if text.startswith(speed_up)]


def missing_part(patch):
    patch.delattr(GenerationMixin, "_prefill")


def missing_class(patch):
    patch.setitem(sys.modules, "gdpo.integrations.trl._sampling", None)


def with_selected(patch, change):
    own = _sampling._DecodingBatch.select
    patch.setattr(_sampling._DecodingBatch, "select", lambda *given: change(own, *given))


def mask_that_does_not_grow(patch):
    def change(own, batch, rows):
        own(batch, rows)
        mask = batch._model_kwargs["attention_mask"]
        batch._model_kwargs["attention_mask"] = torch.ones_like(mask)

    with_selected(patch, change)


def rows_that_leave_in_the_wrong_place(patch):
    with_selected(patch, lambda own, batch, rows: own(batch, rows - int(len(rows) < 4)))


GENERATION = [
    (missing_part, "_prefill"),
    (missing_class, "_sampling"),
    (mask_that_does_not_grow, "the scores of token 2 differ"),
    (rows_that_leave_in_the_wrong_place, "the scores of token 3 differ"),
]


@pytest.mark.parametrize(("moved", "named"), GENERATION)
def test_trl_generates_if_a_part_of_transformers_moved(moved, named, place, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        moved(patch)
        trainer = trainer_of(*place)
        assert trainer.rollout_func is None
        (message,) = told(caplog, "fast_generation")
        assert named in message
        if moved is not missing_part:  # TRL needs that part too
            trainer.train()
            assert trainer.state.global_step == 1
        assert named in model_not_covered(trainer.model)  # gdpo evaluate


def shifted(own, *given):
    logps, entropies = own(*given)
    return logps.roll(1, 1), entropies


def failing(own, *given):
    raise TypeError("forward() got an unexpected keyword argument")


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (shifted, "log-probabilities or gradients differ"),
        (failing, r"transformers.*unexpected keyword argument"),
    ],
)
def test_trls_head_is_used_if_ours_differs_or_fails(broken, named, place, monkeypatch, caplog):
    own = CompletionOnlyHead._score
    monkeypatch.setattr(CompletionOnlyHead, "_score", lambda *given: broken(own, *given))
    differing = trainer_of(*place)
    differing.train()
    (message,) = told(caplog, "completion_only_head")
    assert re.search(named, message)
    trls = trainer_of(*place, completion_only_head=False)
    trls.train()
    norm, expected = (each.state.log_history[0]["grad_norm"] for each in (differing, trls))
    assert norm == pytest.approx(expected, rel=1e-4)


def test_our_head_is_used_if_only_trls_fails(place, monkeypatch, caplog):
    def fails(*_, **__):
        raise TypeError("'NoneType' object is not callable")  # a kernel without Triton

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", fails)
    trainer = trainer_of(*place)
    assert not told(caplog, "completion_only_head")
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shift_of_log_probabilities_is_no_rounding(dtype):
    theirs = -(torch.arange(20.0) / 2).to(dtype)
    assert agree(theirs + 1e-3 * torch.finfo(dtype).eps, theirs, dtype)
    assert not agree(theirs + 0.45, theirs, dtype)


def test_scores_in_float64_are_compared_in_float64():
    theirs = torch.tensor([1.0, -torch.inf, 3.0], dtype=torch.float64)
    assert agree(theirs + 1e-13, theirs, torch.float64)
    assert not agree(theirs + 1e-8, theirs, torch.float64)
    assert not agree(theirs.nan_to_num(), theirs, torch.float64)


def test_micro_batches_stay_trls_if_packing_changes_the_loss(place, monkeypatch, caplog):
    monkeypatch.setattr(_packing, "_BY_ROWS", ("dapo",))  # as if TRL had another normalizer
    trainer = trainer_of(*place)
    assert trainer._packer is None
    (message,) = told(caplog, "pack_micro_batches")
    assert "TRL's loss for a made-up batch changes" in message


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_generation_is_not_given_up_for_rounding(kind, dtype):
    for seed in range(5):
        model = model_of(kind, seed).to(dtype)
        config = copy.deepcopy(model.generation_config)
        config.min_new_tokens = 99  # more than are compared
        assert difference_from_generate(model, config) is None


def under_checkpointing(model, tokens):
    return model.training and model.is_gradient_checkpointing


def in_bfloat16(model, tokens):
    return torch.is_autocast_enabled("cpu")


def with_an_adapter(model, tokens):
    return any("lora_" in name for name, _ in model.named_parameters())


def past_18_tokens(model, tokens):
    return tokens > 18


def wrong_where_flat(policy, condition):
    """Return a model whose hidden states are wrong in flat rows under a condition."""

    def hook(module, args, kwargs, output):
        if kwargs["attention_mask"] is None and condition(module, kwargs["position_ids"].max()):
            output.last_hidden_state = output.last_hidden_state.roll(1, -1)
        return output

    model = AutoModelForCausalLM.from_pretrained(policy)
    model.get_decoder().register_forward_hook(hook, with_kwargs=True)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "changed"),
    [
        (under_checkpointing, {CHECKPOINTING: True}),
        (in_bfloat16, {"bf16": True}),
        (with_an_adapter, {}),
        (past_18_tokens, {}),
    ],
)
def test_what_is_wrong_only_under_the_trainings_conditions_is_not_used(
    condition, changed, tiny_policy, tmp_path, caplog
):
    model = wrong_where_flat(tiny_policy, condition)
    if condition is with_an_adapter:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    run = ours(tiny_policy, tmp_path, how={"model": model}, max_steps=1, **changed)
    assert run.trainer._packer.flat.is_off
    assert told(caplog, "share_prompts")


def test_a_trial_is_repeated_for_longer_rollouts(tiny_policy, tmp_path):
    model, lengths = wrong_where_flat(tiny_policy, lambda _, tokens: tokens > 60), []
    trainer = trainer_of(tiny_policy, tmp_path, model=model)
    model.train()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["attention_mask"].shape[1]), with_kwargs=True
    )
    trainer._speed_ups.run(30, 20)
    trainer._speed_ups.run(29, 21)
    assert max(lengths) == 50
    assert 21 in lengths  # a row without padding has 20 completion tokens
    assert not trainer._packer.flat.is_off
    trainer._speed_ups.run(60, 20)
    assert max(lengths) == 80
    assert trainer._packer.flat.is_off
    assert not trainer._packer.is_off


class GatedShift(torch.nn.Module):
    """Adds the row shifted by a token, behind a gate that is closed at first."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.gate = inner, torch.nn.Parameter(torch.zeros(()))

    def forward(self, states):
        return self.inner(states) + self.gate * states.roll(1, 1)


def test_what_a_closed_gate_hides_is_not_used(tiny_policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    layer = model.get_decoder().layers[-1]
    layer.mlp = GatedShift(layer.mlp)
    trainer = trainer_of(tiny_policy, tmp_path, model=model)
    model.train()
    trainer._speed_ups.run(20, 12)
    assert trainer._packer.flat.is_off
    assert layer.mlp.gate == 0


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_parameters_hook_sees_no_made_up_gradients(register, place, caplog):
    seen, trainer = [], trainer_of(*place)
    getattr(next(trainer.model.parameters()), register)(seen.append)
    trainer._speed_ups.run(30, 20)
    assert not seen
    assert trainer._packer.is_off
    assert "share_prompts: each rollout computes its own prompt, because a hook" in caplog.text


def test_a_trial_shows_other_processes_no_gradient(place):
    """DDP waits there for each parameter, and fails if only made-up rows have reached one."""
    seen, trainer = [], trainer_of(*place)
    accumulating = [p.expand_as(p).grad_fn.next_functions[0][0] for p in trainer.model.parameters()]
    for each in accumulating:
        each.register_hook(lambda *_: seen.append(1))
    trainer._speed_ups.run(20, 12)
    assert not seen
    assert not trainer._packer.is_off


class Whole(torch.nn.Sequential):
    """A model of one's own, which only can be called."""

    def forward(self, **rows):
        return self[0](**rows)


@pytest.mark.parametrize("change", [torch.nn.Module.bfloat16, Whole])
def test_a_reference_of_another_kind_keeps_what_the_policy_has(change, place):
    trainer = trainer_of(*place, beta=0.1)
    trainer.ref_model = change(trainer.ref_model)
    trainer.train()
    assert trainer.state.global_step == 1
    assert not any(each.is_off for each in trainer._speed_ups._speed_ups)


def test_another_model_is_scored_by_trls_code(place):
    trainer, ids = trainer_of(*place), torch.ones(1, 5)
    trial, other = trainer._speed_ups, copy.deepcopy(trainer.model)
    trial._fast, trial._trls = lambda *_, **__: "fast", lambda *_, **__: "TRL"
    trial._longest[trainer.model] = 5
    trainer.model.train()
    assert [trial.score(model, ids, ids, 2) for model in (trainer.model, other)] == ["fast", "TRL"]


def test_a_trial_keeps_gradients_random_states_and_dropout(tiny_policy, tmp_path):
    """It runs without dropout, which no two ways of computing would draw alike."""
    adapter = LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_policy), adapter)
    trainer = trainer_of(tiny_policy, tmp_path, model=model)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.full_like(p, i) for i, p in enumerate(trained)]
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient
    state = torch.get_rng_state()
    trainer._speed_ups.run(20, 12)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is gradient for p, gradient in zip(trained, gradients, strict=True))
    assert all(float(gradient.max()) == i for i, gradient in enumerate(gradients))
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.1}
    assert not trainer._packer.is_off


def test_generation_is_tried_as_it_runs_in_the_training(tiny_policy, tmp_path):
    model, seen, widths = AutoModelForCausalLM.from_pretrained(tiny_policy), set(), []

    def watch(module, args, kwargs):
        seen.add((module.training, torch.is_autocast_enabled("cpu")))
        widths.append(kwargs["input_ids"].shape[1])

    model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer = trainer_of(tiny_policy, tmp_path, model=model, bf16=True)
    assert trainer.rollout_func is not None
    assert seen == {(True, True)}
    assert max(widths) > 40
    assert not model.training


def test_a_trial_leaves_no_trace(place):
    states = []
    for wanted in (True, False):
        torch.manual_seed(3)
        trainer = trainer_of(
            *place,
            fast_generation=wanted,
            completion_only_head=wanted,
            pack_micro_batches=wanted,
        )
        assert not any(trainer._metrics["train"].values())
        states.append((torch.get_rng_state().tolist(), sorted(vars(trainer))))
    assert states[0] == states[1]
