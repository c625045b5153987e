"""Writes a small trainable project: a recipe, a task, a reward, problems and a tiny model."""

import errno
import os
import shutil
import string
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gdpo.errors import ConfigError, MissingExtraError

MODEL = "tiny_model"
"""Folder of the model in the project."""

FILES = {
    "recipe.yaml": "the recipe: model, data, rewards, batch, steps",
    "my_task.py": "the task: prompts, reference answers, the reward `correctness`",
    "my_rewards.py": "a second reward, `brevity`",
    "problems.jsonl": "40 problems, one per line",
    MODEL: "a random model with 86,000 parameters; replace it with a real model in recipe.yaml",
}
"""Files that `write_project` writes, each with a description."""

_TEMPLATES = Path(__file__).parent / "_starter"
_NEEDED = ("torch", "transformers", "tokenizers")

_END, _UNKNOWN = "<|end|>", "<|unknown|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHARACTERS = sorted(string.digits + string.ascii_lowercase + " .,:?=+-*/()\n")
"""Characters in the vocabulary of the tiny model. Each character is one token.

The vocabulary is small, so that the random model often generates a digit or stops, and some
responses earn a reward within the first few steps.
"""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_SEED = 0


def write_project(folder: Path) -> list[Path]:
    """Write the project to a folder. The folder is created if it does not exist.

    Args:
        folder: Folder for the project. The folder may contain files with different names.

    Returns:
        Paths of the files and of the model's folder, in the order of `FILES`.

    Raises:
        ConfigError: If one of the files exists or the folder is not writable. In this case nothing
            is written.
        MissingExtraError: If torch, transformers or tokenizers is not installed.
    """
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package, "train", "to build the model that the recipe trains")
    _refuse_existing(folder)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_all(folder)
    except BaseException as error:
        for each in made:
            with suppress(OSError):  # another process may have added files
                each.rmdir()
        if not isinstance(error, OSError):
            raise
        raise ConfigError(f"{folder} cannot be written: {error}. Choose another folder") from error
    return [folder / name for name in FILES]


def _refuse_existing(folder: Path) -> None:
    if existing := [name for name in FILES if os.path.lexists(folder / name)]:
        raise ConfigError(
            f"{folder} already has {', '.join(existing)}, and nothing is overwritten. Choose "
            "another folder: gdpo init FOLDER"
        )


def _write_all(folder: Path) -> None:
    """Write all files through a temporary folder, so that a failure leaves no files behind."""
    partial = Path(tempfile.mkdtemp(prefix=".gdpo-init.", dir=folder))
    try:
        for name in FILES:
            if name != MODEL:
                shutil.copyfile(_TEMPLATES / name, partial / name)
        with _full_disk_is_os_error():
            _save_model(partial / MODEL)
        _move(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _move(partial: Path, folder: Path) -> None:
    """Move all project files, or none if a file already exists. Nothing is overwritten."""
    moved: list[str] = []
    try:
        _refuse_existing(folder)  # check again, because building the model takes seconds
        for name in FILES:
            if os.path.lexists(folder / name):
                raise FileExistsError(errno.EEXIST, "now exists", str(folder / name))
            (partial / name).rename(folder / name)
            moved.append(name)
    except BaseException:
        for name in moved:
            (folder / name).rename(partial / name)
        raise


@contextmanager
def _full_disk_is_os_error() -> Generator[None]:
    """Convert write errors of safetensors and tokenizers to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if "(os error " not in str(error):  # Rust's I/O error messages end with this text
            raise
        raise OSError(str(error)) from error


def _save_model(folder: Path) -> None:
    """Save a random two-layer Llama model and its tokenizer, identical on every machine."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.06,  # such a narrow model learns faster with 0.06 than with 0.02
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]), no_progress_bars():
        torch.manual_seed(_SEED)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> Any:
    """Return a tokenizer with one token per character and a chat template.

    Only the end is a special token, so that a reward sees all other tokens of a response.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    tokens = [_END, *_ROLES, _UNKNOWN, *_CHARACTERS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    characters: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=_UNKNOWN))
    characters.normalizer = normalizers.Lowercase()
    characters.decoder = decoders.Fuse()
    characters.add_tokens([AddedToken(role, special=False, normalized=False) for role in _ROLES])
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        eos_token=_END,
        pad_token=_END,
        padding_side="left",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@contextmanager
def no_progress_bars() -> Generator[None]:
    """Turn off the progress bars of transformers, which are not useful for such a small model."""
    from transformers.utils import logging as hf

    drawn = hf.is_progress_bar_enabled()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            hf.enable_progress_bar()
