"""Responders by name: a model of this machine, one on a server, or what is written already."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.evaluation.benchmarks import Benchmark
from gdpo.evaluation.responders import (
    LocalModel,
    Responder,
    RowAnswers,
    Sampling,
    VllmModel,
    check_vllm,
)
from gdpo.evaluation.server import Server
from gdpo.recipes.models import load_tokenizer, locate_model, make_ready
from gdpo.recipes.recipe import DataConfig, Recipe
from gdpo.runs.directory import RunDirectory

_SAMPLED = 1 << 20
"""Bytes of the start and of the end of a file that its digest looks at."""


WRITTEN = ("gold", "empty")
"""Names that are no models: the rows' own answers, and no answer."""


ENGINES = ("transformers", "vllm")
"""What runs a model in this process. It is named, never guessed: each samples in its own way."""


def responder_of(
    model: str,
    sampling: Sampling,
    *,
    server: Server | None,
    at_once: int,
    engine: str = "transformers",
) -> Callable[[Benchmark], Responder]:
    """What answers benchmarks; a model is loaded once, when it is first needed.

    Args:
        model: A run directory, a folder, a name on the Hub, `smollm2-135m`, `gold` or `empty`;
            with a server, what it calls the model.
        sampling: How responses are drawn.
        server: What is asked, or None. What it keeps goes into the folder of the benchmark.
        at_once: Responses that are generated together.
        engine: What runs a model in this process: one of `ENGINES`.

    Raises:
        ConfigError: There is no such model or engine, or the model has no chat template.
        MissingExtraError: The engine is not installed.
    """
    _check_engine(engine, apart=server is not None or model in WRITTEN)
    if server is not None:
        return lambda each: replace(server, kept=server.kept and server.kept / each.name)
    if model in WRITTEN:
        gold = model == "gold"
        return lambda benchmark: RowAnswers(benchmark.task(), gold=gold)
    recipe = _as_recipe(_model_of(model))
    located = locate_model(recipe)
    loaded: list[Responder] = []

    def answering(_: Benchmark) -> Responder:
        if not loaded:
            make_ready(located, recipe)
            tokenizer = load_tokenizer(located, recipe)
            with located.loading():
                loaded.append(
                    VllmModel(located.source, sampling)
                    if engine == "vllm"
                    else LocalModel(located.source, tokenizer, sampling, at_once=at_once)
                )
        return loaded[0]

    return answering


def _check_engine(engine: str, *, apart: bool) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: {did_you_mean(engine, ENGINES)}")
    if engine == "vllm":
        if apart:
            raise ConfigError(
                "--engine vllm runs a model in this process: no server, gold or empty"
            )
        check_vllm()


def weights_of(model: str) -> str:
    """Twelve hex digits of the weights that lie in a run or a folder; empty for other models.

    Of each file the size, the first and the last mebibyte and 64 places between: training changes
    all of them.
    """
    run = RunDirectory(Path(model))
    folder = run.model if run.recipe.is_file() else Path(model)
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted(f for f in folder.iterdir() if f.suffix in (".safetensors", ".bin")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as data:
            for place in (0, *(size * i // 65 for i in range(1, 65)), max(0, size - _SAMPLED)):
                data.seek(place)
                digest.update(data.read(_SAMPLED if place in (0, size - _SAMPLED) else 4096))
    return digest.hexdigest()[:12]


def folder_of(model: str) -> Path:
    """Where an evaluation of this model lies, if nothing else is said."""
    if RunDirectory(Path(model)).recipe.is_file():
        return Path(model) / "evaluation"
    return Path("evaluations") / re.sub(r"[^A-Za-z0-9._-]+", "_", model.strip("./~"))


def _model_of(name: str) -> str:
    """The trained model of a run, or the name as it is."""
    run = RunDirectory(Path(name))
    if not run.recipe.is_file():
        return name
    if not run.model.is_dir():
        raise ConfigError(
            f"the run {name} has no model yet: it is there when the run is finished. A checkpoint "
            f"can be evaluated: {name}/checkpoints/checkpoint-…"
        )
    return str(run.model)


def _as_recipe(model: str) -> Recipe:
    """As much of a recipe as finding a model needs."""
    recipe = Recipe(task="none", model=model, data=DataConfig(source="none"))
    recipe._source = "the model"  # pyright: ignore[reportPrivateUsage]
    return recipe
