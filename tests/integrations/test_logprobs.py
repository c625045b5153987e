"""Tests that the head for CPUs equals TRL's, and that TRL's is used where it must be."""

import pytest
import torch
from datasets import Dataset
from tests.integrations.needs import since
from tests.integrations.prepared import constant, gap, options, ours, theirs
from tests.integrations.test_packing import ACROSS
from tests.integrations.variants import trainer_of
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)
from trl import GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, logprobs
from gdpo.integrations.trl.logprobs import head_of

ROWS, PROMPT, COMPLETION = 5, 4, 7


class WithoutChoice(LlamaForCausalLM):
    """Has a forward that ignores `logits_to_keep`."""

    def forward(self, input_ids=None, attention_mask=None, logits_to_keep=0, **kwargs):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


SMALL = {
    "vocab_size": 260,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}


def llama(kind=LlamaForCausalLM, vocabulary=260):
    torch.manual_seed(2)
    sizes = SMALL | {"vocab_size": vocabulary, "num_key_value_heads": 1}
    return kind(LlamaConfig(**sizes, initializer_range=0.5))


def capped():
    config = Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8)
    assert config.final_logit_softcapping
    return Gemma2ForCausalLM(config)


def recurrent():
    sizes = SMALL | {"intermediate_size": 24, "head_dim": 8, "lru_width": 8}
    config = RecurrentGemmaConfig(**sizes, block_types=["recurrent"])
    assert config.logits_soft_cap
    return RecurrentGemmaForCausalLM(config)


def trainer_with(model, policy, folder, **changed):
    how = {"train_dataset": Dataset.from_dict({"prompt": ["x"] * 4})}
    changed = {"share_prompts": False, **changed}
    made = {"model": model, "rewards": [constant], "how": how, **options(folder, **changed)}
    return trainer_of(GDPOTrainer, GDPOConfig, policy, folder, **made)


def batch():
    """Return prompts padded on the left and completions padded on the right, one fully masked."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 260, (ROWS, PROMPT + COMPLETION), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(ROWS):
        mask[row, : row % PROMPT] = 0
        mask[row, PROMPT + COMPLETION - row :] = 0
    mask[0, PROMPT:] = 0
    return ids, mask, COMPLETION


def scores(method, trainer, *, loss="both"):
    """Return log-probabilities, entropies, and the gradient of a random sum of them."""
    trainer._speed_ups.run(PROMPT, COMPLETION)
    trainer.model.zero_grad()
    logps, entropies, _ = method(trainer, trainer.model, *batch(), compute_entropy=True)
    generator = torch.Generator().manual_seed(4)
    for_logps, for_entropies = torch.randn(2, ROWS, COMPLETION, generator=generator)
    total = (for_logps * logps).sum() if loss in ("both", "logps") else 0
    total += (for_entropies * entropies).sum() if loss in ("both", "entropies") else 0
    total.backward()
    gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    return logps.detach(), entropies.detach(), gradient


OURS = GDPOTrainer._get_per_token_logps_and_entropies
TRLS = GRPOTrainer._get_per_token_logps_and_entropies


@since("1.15", "zeroes the scores of padding and has gradients of entropies")
@pytest.mark.parametrize("loss", ["both", "logps", "entropies"])
@pytest.mark.parametrize("block", [1, 260 * 3, 2**21])
def test_scores_and_gradients_are_trls(loss, block, place, monkeypatch):
    monkeypatch.setattr(logprobs, "_BLOCK", block)
    trainer = trainer_with(llama(), *place, temperature=0.6)
    found, expected = (scores(method, trainer, loss=loss) for method in (OURS, TRLS))
    for ours_, trls in zip(found, expected, strict=True):
        assert float((ours_ - trls).norm() / trls.norm()) < 1e-6
    assert not torch.equal(found[2], expected[2])  # it is not TRL's head


@since("1.15", "zeroes the scores of padding and has gradients of entropies")
def test_in_bfloat16_it_is_as_near_to_float32_as_trls(place):
    exact = scores(TRLS, trainer_with(llama(), *place))
    rounded = trainer_with(llama(), *place, bf16=True)
    found, trls = (scores(method, rounded) for method in (OURS, TRLS))
    for values, theirs_, truth in zip(found, trls, exact, strict=True):
        error, allowed = float((values - truth).norm()), float((theirs_ - truth).norm())
        assert 0 < error < 1.2 * allowed


@pytest.mark.slow
def test_a_training_keeps_its_gradients(place):
    changed = {**ACROSS, "beta": 0.1, "temperature": 0.7, "entropy_coef": 0.1}
    trl = theirs(*place, **changed)
    head = ours(*place, pack_micro_batches=False, **changed)
    assert max(gap(head, trl)) < 1e-5
    assert not torch.equal(head.gradients[0], trl.gradients[0])


@pytest.mark.parametrize(
    ("model", "changed", "reason"),
    [
        (capped, {}, r"the model caps its logits (final_logit_softcapping)"),
        (recurrent, {}, r"the model caps its logits (logits_soft_cap)"),
        (lambda: llama(WithoutChoice), {}, "a trial with"),
        (llama, {"cast_lm_head_to_fp32": True}, "cast_lm_head_to_fp32 is set"),
        (lambda: llama(vocabulary=2**16), {}, "more memory than TRL's buffers"),
    ],
)
def test_unsupported_models_use_trls_head_with_one_warning(
    model, changed, reason, place, caplog, monkeypatch
):
    monkeypatch.setattr(logprobs, "_TRL_TOKENS", 9)
    trainer = trainer_with(model(), *place, **changed)
    found, again, expected = (scores(method, trainer) for method in (OURS, OURS, TRLS))
    for a, b, c in zip(found, again, expected, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert caplog.text.count("completion_only_head") == 1
    assert reason in caplog.text


def test_losses_of_experts_are_left_to_trl(place, caplog):
    trainer = trainer_with(llama(), *place)
    reason = head_of(trainer).not_here_because(trainer.model, 1, {"compute_aux_loss": True})
    assert "expert load" in reason
    assert head_of(trainer).not_here_because(trainer.model, 1, {"compute_aux_loss": False}) is None
    image = {"pixel_values": torch.zeros(1)}
    assert "multimodal" in head_of(trainer).not_here_because(trainer.model, 1, image)


def test_switched_off_it_is_trls(place, caplog):
    trainer = trainer_with(llama(), *place, completion_only_head=False)
    for a, b in zip(scores(OURS, trainer), scores(TRLS, trainer), strict=True):
        assert torch.equal(a, b)
    assert "completion_only_head" not in caplog.text
