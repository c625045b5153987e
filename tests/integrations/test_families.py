"""Tests that a step of every causal language model of transformers is TRL's.

Where a speed-up cannot be used, the log says why, and the step is TRL's too. A family is skipped
with the reason if TRL itself cannot train it, or if no small model of it can be made.
"""

import contextlib
import copy

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tests.integrations.prepared import Run, alive, options, prepared
from tests.integrations.variants import CHECKPOINTING, trainer_of
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.integrations.trl.generation import kind_not_covered

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WINDOW, ORIGINAL = 12, 24
"""Tokens of a sliding window and of the original context: fewer than in most prompts."""

VALUES = {
    0: "pad_token_id bos_token_id eos_token_id",
    1: "n_group topk_group mamba_n_groups",
    2: "num_hidden_layers n_layer num_layers num_experts_per_tok mamba_expand linear_num_key_heads "
    "index_n_heads",
    4: "num_attention_heads num_key_value_heads n_head attention_heads num_heads num_experts "
    "num_local_experts n_routed_experts moe_num_experts mamba_n_heads linear_num_value_heads",
    8: "head_dim rotary_dim qk_rope_head_dim qk_nope_head_dim v_head_dim linear_key_head_dim "
    "linear_value_head_dim state_size mamba_d_state mamba_chunk_size chunk_size index_topk "
    "o_lora_rank hidden_size_per_layer_input",
    16: "q_lora_rank kv_lora_rank mamba_d_head index_head_dim",
    24: "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size",
    32: "hidden_size n_embd d_model word_embed_proj_dim embedding_size output_embedding_size "
    "input_embedding_size rel_extent",
    48: "intermediate_size ffn_dim dim_ff dff d_inner decoder_ffn_dim dense_intermediate_size "
    "shared_intermediate_size",
    64: "mamba_d_ssm",
    128: "max_position_embeddings n_positions",
    260: "vocab_size vocab_size_per_layer_input unpadded_vocab_size",
    WINDOW: "sliding_window",
    ORIGINAL: "original_max_position_embeddings",
}
SMALL = {name: value for value, names in VALUES.items() for name in names.split()}
SMALL["is_decoder"] = True
DROPOUT = ("dropout", "pdrop", "layerdrop")

CHANGED = {
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

SETTINGS = {
    "checkpointing": {CHECKPOINTING: True},
    "plain": {CHECKPOINTING: False},
    "LoRA": {CHECKPOINTING: True, "lora": True},
}

# Every family with gradient checkpointing, and a fifth of them in each other setting.
CASES = [
    (family, setting)
    for i, family in enumerate(FAMILIES)
    for setting, place in zip(SETTINGS, (i % 5, 1, 3), strict=True)
    if i % 5 == place
]

OFF = ("pack_micro_batches", "share_prompts", "completion_only_head")

PROMPTS = ["".join(chr(97 + i * (i + n) % 26) for i in range(n)) for n in (45, 22, 54, 9)]


class Unavailable(Exception):
    """A family of which no small text model can be made, or that TRL cannot train."""


@contextlib.contextmanager
def otherwise(what):
    try:
        yield
    except Exception as error:
        raise Unavailable(f"{what}: {error!r}") from error


def config_of(family, **changed):
    """Return the configuration of a small model, with as few settings of its own as possible."""
    kind = CONFIG_MAPPING[family]
    default, names = kind(), getattr(kind, "attribute_map", {})
    if default.is_encoder_decoder or default.get_text_config(decoder=True) is not default:
        raise Unavailable("it has an encoder, or reads more than text")
    known = {*default.to_dict(), *names}
    doubled = {name for name in names if names[name] in SMALL}
    small = {name: SMALL[name] for name in known & SMALL.keys() - doubled}
    small |= {name: 0.0 for name in default.to_dict() if any(part in name for part in DROPOUT)}
    config = kind(**{**small, **CHANGED.get(family, {}), **changed})
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if count > 1_300_000:
        raise Unavailable(f"it still has {count:,} parameters")
    return config


def model_of(config, *, lora=False):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)  # so that attention is not the same for all tokens
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if not lora:
        return model
    adapter = LoraConfig(
        r=2,
        lora_alpha=1,
        target_modules="all-linear",
        exclude_modules=["out_proj", "conv1d"],
        init_lora_weights=False,
    )
    return get_peft_model(model, adapter)


def gradient(model, policy, folder, **changed):
    """Return the gradient of a step, and the trainer."""
    settings = {
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "disable_dropout": True,
        "fast_generation": False,
        "advantage": "grpo_no_std",
    }
    run, data = Run(), Dataset.from_dict({"prompt": PROMPTS * 2})
    how = {"train_dataset": data, "callbacks": [run], "rollout_func": prepared}
    made = {"model": model, "rewards": [alive], "how": how}
    changed = options(folder, **{**settings, **changed})
    trainer = trainer_of(GDPOTrainer, GDPOConfig, policy, folder, **made, **changed)
    torch.manual_seed(0)
    trainer.train()
    return run.gradients[0], trainer


def compared(config, policy, folder, caplog, *, lora=False, **changed):
    """Return our trainer, after checking that its step is TRL's."""
    model = model_of(config, lora=lora)
    ours = copy.deepcopy(model)
    with otherwise("TRL's own step fails"):
        expected, _ = gradient(model, policy, folder, **changed, **dict.fromkeys(OFF, False))
        assert 1e-3 < float(expected.norm()) < float("inf")
    caplog.clear()
    found, trainer = gradient(ours, policy, folder, **changed)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    said = [each for each in caplog.messages if each.startswith("share_prompts")]
    assert said or not trainer._packer.flat.is_off
    return trainer


@pytest.mark.parametrize(("family", "setting"), CASES)
def test_a_step_is_trls(family, setting, place, caplog):
    try:
        with otherwise("no small model"):
            config = config_of(family)
        compared(config, *place, caplog, **SETTINGS[setting])
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_most_families_are_made_small():
    count = 0
    for family in FAMILIES:
        with contextlib.suppress(Exception):
            count += bool(config_of(family))
    assert count > 140


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 4.0, 6.0]}
ROPES = {
    "linear": {},
    "yarn": {},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "dynamic": {},
    "longrope": FACTORS,
}


@pytest.mark.parametrize("original", [ORIGINAL, 55])
@pytest.mark.parametrize("kind", ROPES)
def test_past_the_original_context_a_step_is_trls(kind, original, place, caplog):
    """Most rollouts are longer than 24 tokens, and without padding some micro-batches below 55."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **ROPES[kind]}
    lengths = {"original_max_position_embeddings": original}
    config = config_of("llama", rope_parameters={**rope, **lengths})
    config.max_position_embeddings = original if kind == "dynamic" else 4 * original
    small = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    trainer = compared(config, *place, caplog, **small, **SETTINGS["checkpointing"])
    depends = kind in ("dynamic", "longrope")
    assert trainer._packer.flat.is_off == depends
    assert trainer._packer._trims[1] != depends
    assert ("depend on the length" in (kind_not_covered(trainer.model) or "")) == depends
