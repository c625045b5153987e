"""Measures cost, effect and forks on a pretrained model of 135 M parameters, SmolLM2.

Each part runs in a process of its own, so that its peak memory is its own, and writes one record. A
part whose record exists is not run again:

- `forks`: 15 training steps after a supervised start, forked after 5 and 10 steps with weight 0 for
  each reward. Effects after 1 and 5 steps are measured on the same fresh samples for all policies,
  by importance weights.
- `effect-5`, `effect-10`: the effect at these steps, as `gdpo effect RUN --step N` measures it.
- `training`, `account`: three further steps, without and with `effect_every`, on equal batches.

The default sizes should fit nine minutes on an H200. This is an estimate from the number of
operations, and from the sketches of the effect, which are made on the CPU: they were not run on a
GPU. `--small` takes about 50 minutes on one CPU core.
"""

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import transformers
import trl
from benchmarks._shown import row
from benchmarks.forks._fork import base_run, fork, named, trained, without
from benchmarks.forks._measure import Fresh, effect, state, weighed
from benchmarks.forks._tasks import ForkedTask, score_noise
from benchmarks.forks._unit import write_record
from benchmarks.pretrained._prepare import problems, recipe
from benchmarks.pretrained.arithmetic import ARITHMETIC

from gdpo.diagnostics.account import WINDOW
from gdpo.lab.recipes.recipe import BatchConfig, RewardConfig
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.checkpoints import Checkpoint
from gdpo.lab.training.effect import measure_run
from gdpo.lab.training.preflight import prepare, quiet
from gdpo.policy.account import Window
from gdpo.rewards import Reward

POINTS, HORIZONS = (5, 10), (1, 5)
"""Steps to fork at, and further steps. The account begins at the last point."""

FURTHER = 3
"""Steps whose cost is measured."""

WARM_START = 1

noise = Reward(
    "noise",
    lambda completion, reference: score_noise(completion, {"question": reference["problem"]}),
    low=0.0,
    high=1.0,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Stores how much is run."""

    worked: int = 960
    """Problems of the supervised start."""
    prompts: int = 16
    """Groups in a batch."""
    samples: int = 8
    groups: int = 96
    """Groups of an effect."""
    fresh: int = 160
    """Groups of the fresh samples."""


SMALL = Sizes(worked=320, prompts=4, samples=4, groups=32, fresh=24)
"""Sizes for a CPU."""


RECORDS = Path(__file__).parents[2] / "research" / "effect-pretrained"


def run_pretrained(folder: Path, *, small: bool) -> None:
    """Run the parts that have no record, and print the records."""
    name = "small" if small else "full"
    folder, records, sizes = folder / name, RECORDS / name, SMALL if small else Sizes()
    parts: dict[str, Any] = {
        "forks": (_forks,),
        "training": (_costs, None),
        "account": (_costs, WINDOW),
        **{f"effect-{point}": (_effect, point) for point in POINTS},
    }
    for part, (run, *given) in parts.items():
        if not (file := records / f"{part}.json").exists():
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                write_record(pool.submit(run, folder, sizes, *given).result(), file)
    print_pretrained(records)


def _recipe(folder: Path, sizes: Sizes) -> Any:
    made = recipe(folder, WARM_START, sizes.worked)
    names = "correctness", "tags", f"{__name__}:noise"
    return made.model_copy(
        update={
            "name": "run",
            "advantage": "gdpo",
            "rewards": tuple(RewardConfig(name=name) for name in names),
            "batch": BatchConfig(prompts=sizes.prompts, samples=sizes.samples, micro_batch=64),
            "trainer": {**made.trainer, "max_steps": POINTS[-1] + HORIZONS[-1]},
            "runs_dir": str(folder / "runs"),
        }
    )


def _forks(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Train, fork at every point, and measure."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    made = _recipe(folder, sizes)
    run = base_run(made, None, POINTS, HORIZONS)
    first, own = POINTS[0] + 1, run.models[POINTS[0] + 1]
    same = fork(named(made, "fork"), run, POINTS[0], 1).models[first]
    rows = problems(WARM_START)["held_out"]
    task = ForkedTask(lambda *_: made, ARITHMETIC, lambda count, **_: rows[:count], sizes.fresh)
    fresh = Fresh(run, task, sizes.samples, rows=64)
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "versions": {each.__name__: each.__version__ for each in (torch, transformers, trl)},
        "sizes": asdict(sizes),
        "unchanged fork equal": all(torch.equal(same[key], own[key]) for key in own),
        "states": [_state(run, made, fresh, point) for point in POINTS],
    }


def _state(run: Any, made: Any, fresh: Fresh, point: int) -> dict[str, Any]:
    """Return the state at a point, and what each reward changes from there on."""
    start = fresh.draw(run.models[point])
    logs = fresh.log_probabilities(run.models[point], start)

    def rewards(models: Any) -> dict[int, Any]:
        others = {h: fresh.log_probabilities(models[point + h], start) for h in HORIZONS}
        return {h: weighed(start, logs, each) for h, each in others.items()}

    usual, effects = rewards(run.models), {}
    for name in fresh.names:
        there = rewards(fork(named(without(made, name), "fork"), run, point, HORIZONS[-1]).models)
        effects[name] = {h: effect(usual[h], there[h]) for h in HORIZONS}
    ranges = {each.name: (each.low, each.high) for each in run.trainer.scorer.rewards}
    return {
        "step": point,
        "rewards": state(start.rewards, fresh.names, made.advantage, ranges),
        "effects": effects,
        "changes": {h: effect(usual[h], start.rewards) for h in HORIZONS},
    }


def _effect(folder: Path, sizes: Sizes, point: int) -> dict[str, Any]:
    """Measure the effect at a step of the run."""
    times: list[float] = []

    def progress(_done: int, _all: int) -> None:
        if not times:
            _forget_peak()
        times.append(_now())

    found = measure_run(folder / "runs" / "run", progress, point, sizes.groups)
    count = len(times) // 2
    return {
        **found.effect.as_dict(),
        "quantile": found.effect.quantile,
        "shares": found.shares.tolist(),
        "said": [*found.sentences, *found.notes],
        "drawing": (times[count - 1] - times[0]) / (count - 1),
        "measuring": (times[-1] - times[count - 1]) / count,
        "memory": _peak(),
    }


def _costs(folder: Path, sizes: Sizes, every: int | None) -> dict[str, Any]:
    """Measure training steps after the last point. `every` is `effect_every`."""
    point, made = POINTS[-1], _recipe(folder, sizes)
    steps, accounts, add = list[float](), list[float](), Window.add

    def timed(*given: Any, **named: Any) -> None:
        begun = _now()
        add(*given, **named)
        accounts.append(_now() - begun)

    class Timing(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not steps:
                _forget_peak()
            steps.append(-_now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps[-1] += _now()

    Window.add = timed
    more = {"max_steps": point + FURTHER, "save_strategy": "no", "effect_every": every}
    start = Checkpoint(folder / "runs" / "run" / "checkpoints" / f"checkpoint-{point}", point)
    with TemporaryDirectory() as runs, quiet():
        made = made.model_copy(update={"trainer": {**made.trainer, **more}, "runs_dir": runs})
        job = prepare(resolve(made), rows=4)
        trained(job, start, set(), kept=lambda _: Timing())
    return {"steps": steps, "accounts": accounts, "memory": _peak()}


def _now() -> float:
    """Return seconds: of the CPU, or with a GPU of the clock after all of its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return perf_counter()
    return process_time()


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """Return the largest memory in GB: of the GPU, or resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)
    return int(line.split()[1]) * 1024 / 1e9


def print_pretrained(records: Path) -> None:
    """Print the tables of the records, as Markdown. ± is half of a 95 % interval."""
    read = {file.stem: json.loads(file.read_text()) for file in records.glob("*.json")}
    forks, training, account = (read[name] for name in ("forks", "training", "account"))
    print(f"{forks['device']}, {forks['versions']}, {forks['sizes']}\n")
    head = ["reward", "mean", "influence share", "predicted effect of a step"]
    row("step", [*head, *(f"recorded after {h}" for h in HORIZONS)], head=True)
    for at in forks["states"]:
        predicted = read[f"effect-{at['step']}"]
        for k, (name, has) in enumerate(at["rewards"].items()):
            margin = predicted["quantile"] * predicted["errors"][k][k]
            recorded = (
                [each[k] / has["std"] for each in at["effects"][name][str(h)]] for h in HORIZONS
            )
            cells = [
                f"{name}",
                f"{has['mean']:.2f}",
                f"{has['share']:.0%}",
                f"{predicted['matrix'][k][k]:+.4f} ± {margin:.4f}",
                *(f"{value:+.4f} ± {1.96 * error:.4f}" for value, error in recorded),
            ]
            row(str(at["step"]), cells)
    print()
    step, (first, *later) = np.mean(training["steps"]), account["accounts"]
    usual = np.mean(np.subtract(account["steps"], account["accounts"]))
    effects = [read[f"effect-{each['step']}"] for each in forks["states"]]
    whole = np.mean([each["drawing"] + each["measuring"] for each in effects])
    row("cost", ["measured", "wanted"], head=True)
    row("three training steps", [f"{_listed(training['steps'])} s", ""])
    row("the same steps with the account", [f"{_listed(account['steps'])} s", ""])
    row("time of the account in these steps", [f"{_listed(account['accounts'])} s", ""])
    added = (first + WINDOW * np.mean(later)) / 100 / usual
    row("time that windows of 10 in 100 steps add", [f"{added:.1%}", "at most 4 %"])
    row("time of the effect, divided by that of training", [f"{whole / step:.2f}", "at most 1.2"])
    for name, peak in ("account", account["memory"]), ("effect", max(e["memory"] for e in effects)):
        shown = f"{peak:.2f} / {training['memory']:.2f} GB = {peak / training['memory']:.2f}"
        row(f"peak memory with the {name}, divided by that of training", [shown, "at most 1.2"])


def _listed(seconds: Any) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)
