"""Whether vLLM, on the GPU that trains, has room for one whole rollout."""

from typing import Any

from gdpo.errors import ConfigError
from gdpo.training._models import LocatedModel, model_config
from gdpo.training._recipe import DataConfig, Recipe

_GIB = 2**30
_USUAL_GIB = 80
"""Memory of a GPU, where none is here to be asked."""

_BYTES = 2
"""Bytes of a number in bfloat16."""

TRL_DEFAULTS = {
    "max_completion_length": 512,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_mode": "colocate",
    "vllm_tensor_parallel_size": 1,
}
"""What TRL takes where the recipe says nothing."""


def shares_gpu_with_vllm(recipe: Recipe) -> bool:
    """Whether vLLM runs on the GPUs that train; a server has GPUs of its own."""
    return bool(recipe.trainer.get("use_vllm")) and _field(recipe, "vllm_mode") == "colocate"


def longest_rollout(recipe: Recipe, completion: int | None) -> int | None:
    """Return the tokens of the longest prompt and completion, or None where no limit is set."""
    data: list[DataConfig] = [each for each in (recipe.data, recipe.eval_data) if each is not None]
    limits = [each.max_prompt_length for each in data if each.max_prompt_length is not None]
    if completion is None or len(limits) < len(data):
        return None
    return max(limits) + completion


def vllm_memory(model: LocatedModel, recipe: Recipe) -> str:
    """Say what vLLM's weights and its cache of keys and values take.

    vLLM starts only where its share of the memory, less the weights, holds one sequence of the
    greatest length: 2 × layers × heads of keys × size of a head × 2 bytes for each token. What vLLM
    needs beside, a few GiB, is left out: what is refused here cannot start.

    Raises:
        ConfigError: It does not fit.
    """
    config: Any = model_config(model, recipe)
    text = config.get_text_config()
    tokens = (
        recipe.trainer.get("vllm_max_model_length")
        or longest_rollout(recipe, _field(recipe, "max_completion_length"))
        or text.max_position_embeddings
    )
    share = _field(recipe, "vllm_gpu_memory_utilization")
    memory, whose = _gpu_memory()
    split = _field(recipe, "vllm_tensor_parallel_size")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    per_token = 2 * text.num_hidden_layers * heads * head * _BYTES / split
    weights = _parameters(config) * _BYTES / split
    room = share * memory - weights
    needs = (
        f"vLLM: {weights / _GIB:.1f} GiB of weights and {tokens * per_token / _GIB:.2f} GiB of "
        f"keys and values for a rollout of {tokens:,} tokens; it has {share:g} of {whose}"
    )
    if room < tokens * per_token:
        raise ConfigError(
            f"{recipe.place('trainer', 'use_vllm')}: {needs}, where that does not fit. Limit the "
            "rollout (data.max_prompt_length, trainer.max_completion_length), or raise "
            "trainer.vllm_gpu_memory_utilization or trainer.vllm_tensor_parallel_size"
        )
    return f"{needs}: room for {int(room / (tokens * per_token)):,} at once"


def _field(recipe: Recipe, name: str) -> Any:
    return recipe.trainer.get(name, TRL_DEFAULTS[name])


def _gpu_memory() -> tuple[float, str]:
    """Return the bytes of the GPU's memory, and which GPU that is."""
    import torch

    if not torch.cuda.is_available():
        return _USUAL_GIB * _GIB, f"a GPU of {_USUAL_GIB} GiB (none is here)"
    total = torch.cuda.get_device_properties(0).total_memory
    return total, f"this GPU's {total / _GIB:.0f} GiB"


def _parameters(config: Any) -> int:
    """Count the weights without making any."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model.num_parameters()
