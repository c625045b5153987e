"""Creates responders: local models, models on servers, reference answers or empty texts."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.lab.evaluation.benchmarks import Benchmark
from gdpo.lab.evaluation.responders import (
    LocalModel,
    Responder,
    RowAnswers,
    Sampling,
    VllmModel,
    VllmOptions,
)
from gdpo.lab.evaluation.server import ServerModel
from gdpo.lab.recipes.models import WEIGHTS, load_tokenizer, locate_model, make_ready
from gdpo.lab.recipes.recipe import DataConfig, Recipe
from gdpo.lab.recipes.yaml import Document
from gdpo.lab.runs.directory import RunDirectory

_SAMPLED = 1 << 20
"""Number of bytes at the start and at the end of a file to include in its digest."""


FIXED = ("gold", "empty")
"""Names that do not refer to a model: reference answers and empty responses."""


ENGINES = ("transformers", "vllm")
"""Libraries that can run a model in this process. The libraries give different samples, so the user
chooses the library."""

_VLLM = "vLLM (pip install vllm; use a separate environment if it needs another torch)"


def responder_of(
    model: str,
    sampling: Sampling,
    *,
    server: ServerModel | None,
    at_once: int,
    engine: str = "transformers",
    vllm: VllmOptions | None = None,
) -> Callable[[Benchmark], Responder]:
    """Return a function that returns the responder for a benchmark and loads the model only once.

    `model` is as for `gdpo evaluate`. Responses of a server are saved in the benchmark's folder.
    `engine`, one of `ENGINES`, runs a model in this process. vLLM requires `vllm`.

    Raises:
        ConfigError: If the model or engine does not exist, or the model has no chat template.
        MissingExtraError: If the engine is not installed.
    """
    _check_engine(engine, apart=server is not None or model in FIXED)
    if server is not None:
        return lambda each: replace(server, kept=server.kept and server.kept / each.name)
    if model in FIXED:
        gold = model == "gold"
        return lambda benchmark: RowAnswers(benchmark.task(), gold=gold)
    # A recipe with the fields that `locate_model` needs.
    recipe = Recipe(task="none", model=_model_of(model), data=DataConfig(source="none"))
    recipe._document = Document("the model", {}, {})  # pyright: ignore[reportPrivateUsage]
    located = locate_model(recipe)
    loaded: list[Responder] = []

    def answering(_: Benchmark) -> Responder:
        if not loaded:
            make_ready(located, recipe)
            tokenizer = load_tokenizer(located, recipe)
            with located.loading():
                if engine == "vllm":
                    assert vllm is not None, "the vllm engine requires its options"
                    loaded.append(VllmModel(located.source, tokenizer, sampling, vllm))
                else:
                    source = located.source
                    loaded.append(LocalModel(source, tokenizer, sampling, at_once=at_once))
        return loaded[0]

    return answering


def _check_engine(engine: str, *, apart: bool) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: {did_you_mean(engine, ENGINES)}")
    if engine == "vllm" and apart:
        raise ConfigError(
            "--engine vllm runs a model in this process, so it cannot be combined with "
            "--server, gold or empty: omit --engine"
        )
    if engine == "vllm" and find_spec("vllm") is None:
        raise MissingExtraError(_VLLM, None, "for --engine vllm")


def weights_of(model: str) -> str:
    """Return a digest (12 hex digits) of the weights in a run or folder, or "" for other models.

    It covers the size, both ends and 64 blocks of each file: training changes all weights.
    """
    run = RunDirectory(Path(model))
    folder = run.model if run.recipe.is_file() else Path(model)
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted(f for f in folder.iterdir() if f.suffix in WEIGHTS):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as data:
            for place in (0, *(size * i // 65 for i in range(1, 65)), max(0, size - _SAMPLED)):
                data.seek(place)
                digest.update(data.read(_SAMPLED if place in (0, size - _SAMPLED) else 4096))
    return digest.hexdigest()[:12]


def folder_of(model: str) -> Path:
    """Return the default folder for an evaluation of this model."""
    if RunDirectory(Path(model)).recipe.is_file():
        return Path(model) / "evaluation"
    return Path("evaluations") / re.sub(r"[^A-Za-z0-9._-]+", "_", model.strip("./~"))


def _model_of(name: str) -> str:
    """Return the model folder of a run, or the name unchanged if it is not a run."""
    run = RunDirectory(Path(name))
    if not run.recipe.is_file():
        return name
    if not run.model.is_dir():
        raise ConfigError(
            f"the run {name} has no model yet, because it is not finished. Finish it, or evaluate "
            f"a checkpoint: {name}/checkpoints/checkpoint-…"
        )
    return str(run.model)
