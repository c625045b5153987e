"""LoRA: the trainer learns two small matrices per layer, and a run ends with a whole model.

peft trains and saves them; at the end of a run they are merged into the weights that they were
trained on, so that `model/` loads without peft, in vLLM and anywhere else. The last checkpoint
keeps them apart.

References:
    Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gdpo.errors import MissingExtraError
from gdpo.training._recipe import LoraSettings, Recipe

ADAPTER = ("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json")
"""Files of an adapter in a checkpoint."""

_OF_TRAINING = ("device_map", "quantization_config")
"""Ways of loading a model that are for training it alone: it is merged on the CPU, whole."""


def check_lora(recipe: Recipe) -> str | None:
    """What a recipe's LoRA is, in words; None where it trains all weights.

    Raises:
        MissingExtraError: peft is not installed.
    """
    lora = recipe.lora
    if lora is None:
        return None
    if find_spec("peft") is None:
        raise MissingExtraError("peft", "lora", "to train with LoRA")
    where = lora.target_modules
    modules = where if isinstance(where, str) else ", ".join(where)
    return f"LoRA: r {lora.r}, alpha {lora.alpha}, dropout {lora.dropout:g}, modules {modules}"


def peft_config(lora: LoraSettings | None) -> Any:
    """What TRL takes as `peft_config`; None for None."""
    if lora is None:
        return None
    from peft import LoraConfig

    modules = lora.target_modules
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def merge_adapter(recipe: Recipe, base: str, adapter: Path, folder: Path) -> None:
    """Save the model that an adapter makes of its base, in the type in which it was trained.

    Args:
        recipe: Says how the base was loaded.
        base: What `from_pretrained` takes.
        adapter: The folder of a checkpoint.
        folder: Where the model's files go.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    given = recipe.trainer.get("model_init_kwargs") or {}
    options = {key: value for key, value in given.items() if key not in _OF_TRAINING}
    if recipe.trainer.get("trust_remote_code"):
        options["trust_remote_code"] = True
    # TRL's own default where a recipe names no type.
    model: Any = AutoModelForCausalLM.from_pretrained(base, **{"dtype": "float32", **options})
    merged: Any = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    merged.save_pretrained(folder)
