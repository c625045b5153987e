"""What the decoding loop covers, and the reason where it does not."""

from collections.abc import Iterator
from typing import Any

from accelerate.utils import is_peft_model
from torch import nn
from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from trl.trainer.grpo_trainer import GRPOTrainer

ROW_BY_ROW = (DynamicLayer, DynamicSlidingWindowLayer)
"""Cache layers whose rows can be repeated and left out without an effect on the others."""

COVERED_SETTINGS = frozenset(
    {
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "top_h",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "bad_words_ids",
        "sequence_bias",
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_eos_token_id",
        "exponential_decay_length_penalty",
        "remove_invalid_values",
        "renormalize_logits",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    }
)
"""Fields of `GenerationConfig` with which the loop does what `generate` does; each is tested."""

_WITHOUT_EFFECT = frozenset(
    {
        # Compilation is for static caches.
        "disable_compile",
        "compile_config",
        "max_cache_len",
        # Beams.
        "early_stopping",
        "length_penalty",
        "num_beam_groups",
        "diversity_penalty",
        # Assistant models: TRL passes none.
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "max_matching_ngram_size",
        "assistant_lookbehind",
        "target_lookbehind",
        "assistant_ensemble_weight",
        "speculation_type",
        "decoder_start_token_id",
        "transformers_version",
        "_from_model_config",
    }
)

_OFF: dict[str, tuple[Any, ...]] = {
    "use_cache": (True,),
    "cache_implementation": ("dynamic",),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
}
"""Values, beside None and False, that are the same as not setting the field."""


def generated_by_other(trainer: Any) -> str | None:
    """What generates instead, where the user has chosen something else than `generate`."""
    if trainer.rollout_func is not None:
        return "the trainer has a rollout_func"
    if trainer.use_vllm:
        return "use_vllm is set"
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching is set"
    if trainer.tools or trainer.environment_factories is not None:
        return "completions call tools"
    trls: Any = GRPOTrainer
    if type(trainer)._generate_single_turn is not trls._generate_single_turn:
        return f"{type(trainer).__name__} generates in a way of its own"
    return None


def not_covered(trainer: Any) -> str | None:
    """Why the loop cannot generate for this trainer; None if it can."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "under DeepSpeed and FSDP all processes must take the same number of steps"
    if trainer._is_vlm:
        return "prompts may hold images"
    if trainer.args.neftune_noise_alpha is not None:
        return "neftune_noise_alpha is set, and the rows of a prompt would share its noise"
    more = set(trainer._tokenizer.model_input_names) - {"input_ids", "attention_mask"}
    if more:
        return f"the tokenizer makes more than ids: {', '.join(sorted(more))}"
    model = trainer.model
    if is_peft_model(model):
        if model.active_peft_config.is_prompt_learning:
            return "the adapter is a learnt prompt, which changes how a cache begins"
        model = model.get_base_model()
    return model_not_covered(model) or _setting_not_covered(
        trainer.generation_config, model.generation_config
    )


def model_not_covered(model: Any) -> str | None:
    """What in a model of transformers the loop does not know; None if it knows all of it."""
    name, config = type(model).__name__, model.config
    if config.is_encoder_decoder:
        return f"{name} is an encoder-decoder"
    if config.get_text_config(decoder=True) is not config:
        return f"{name} is multimodal"
    transformers_own: Any = GenerationMixin
    if model.is_remote_code() or type(model).generate is not transformers_own.generate:
        return f"{name} generates with code of its own"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} lies on several devices"
    return _cache_not_covered(model) or _noise_not_covered(model)


def _cache_not_covered(model: Any) -> str | None:
    if not model._supports_default_dynamic_cache():
        return f"{type(model).__name__} makes a cache of its own"
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in ROW_BY_ROW:
            return f"the cache of {type(model).__name__} has layers of kind {type(layer).__name__}"
    return None


def _noise_not_covered(model: Any) -> str | None:
    """TRL samples with dropout on, and the rows of a prompt would share that of the prompt."""
    for name, value in _noise(model):
        if isinstance(value, float) and value > 0:
            return (
                f"{name} is {value}, and TRL samples with dropout on: set disable_dropout=True, "
                f"or dropout to 0 in the model's configuration"
            )
    return None


def _noise(model: Any) -> Iterator[tuple[str, Any]]:
    """Every setting by which a forward pass in training mode may be random, by name."""
    for key in ("dropout", "attention_dropout", "hidden_dropout"):  # read there by some models
        yield f"config.{key}", model.config.to_dict().get(key)
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            yield f"{name}.p", module.p
        for key, value in vars(module).items():
            if "drop" in key or "jitter" in key:
                yield f"{name}.{key}", value


def _setting_not_covered(chosen: Any, of_model: Any) -> str | None:
    """As in `generate`, the model's configuration fills what the chosen one leaves open."""
    settings: dict[str, Any] = of_model.to_dict()
    settings |= {k: v for k, v in chosen.to_dict().items() if v is not None}
    if settings.get("use_cache") is False:
        return "generation without a cache (use_cache=False)"
    for name, value in settings.items():
        known = name in COVERED_SETTINGS or name in _WITHOUT_EFFECT
        if not known and value not in (None, False, *_OFF.get(name, ())):
            return f"the generation setting {name}={value!r}"
    return None
