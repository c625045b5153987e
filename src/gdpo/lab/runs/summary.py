"""Summarizes a run in a table and a README, with each reward at the start and at the end."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gdpo.diagnostics import Diagnosis
from gdpo.lab.recipes.models import SMOLLM2
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.yaml import dump_yaml
from gdpo.lab.runs.directory import Facts
from gdpo.rewards import Reward

_SHARE = 0.1
"""Share of the measured steps over which start and end are averaged."""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """Stores the mean of one reward at the start and at the end of a run."""

    name: str
    weight: float
    """The weight in the last step, which a schedule may have changed."""
    low: float
    high: float
    start: float | None
    """Mean over the first tenth of the steps with this reward. None: no step has this reward."""
    end: float | None
    """Mean over the last tenth of the steps with this reward. None: no step has this reward."""

    @property
    def change(self) -> float | None:
        """Return the end minus the start, or None if no step has this reward."""
        return None if self.start is None or self.end is None else self.end - self.start


def reward_changes(
    steps: Sequence[Facts], rewards: Sequence[Reward], weights: Sequence[float]
) -> tuple[RewardChange, ...]:
    """Return the start and end of each reward from the metrics of the training steps."""
    changes: list[RewardChange] = []
    for reward, weight in zip(rewards, weights, strict=True):
        # A step that reuses the generation of an earlier step has no means.
        means, logged = (
            [v for row in steps if (v := number(row, f"rewards/{reward.name}/{key}")) is not None]
            for key in ("mean", "weight")
        )
        tenth = max(1, round(_SHARE * len(means)))
        start, end = (
            sum(values) / len(values) if values else None
            for values in (means[:tenth], means[-tenth:])
        )
        last = logged[-1] if logged else weight
        changes.append(RewardChange(reward.name, last, reward.low, reward.high, start, end))
    return tuple(changes)


def summary_table(changes: Sequence[RewardChange]) -> Table:
    """Return the table that is printed at the end of a training run."""
    table = Table(
        title="mean reward over the first and the last tenth of the steps", title_justify="left"
    )
    for heading in ("reward", "range", "weight", "start", "end", "change"):
        table.add_column(heading, justify="left" if heading == "reward" else "right")
    for change in changes:
        table.add_row(*(escape(cell) for cell in _cells(change)))
    return table


def readme(
    recipe: Recipe,
    environment: Facts,
    changes: Sequence[RewardChange],
    *,
    steps: int,
    diagnosis: Diagnosis | None = None,
) -> str:
    """Return the README of a finished run, in Markdown."""
    packages = environment.get("packages") or {}
    engine = environment.get("engine", "trl")
    folder, verb = ("verl/", "launch verl") if engine == "verl" else ("", "train")
    versions = ", ".join(
        f"{name} {packages[name]}" for name in (engine, "transformers", "torch") if name in packages
    )
    device = environment.get("device") or {}
    git = environment.get("git") or {}
    commit = (
        f", commit {git['commit'][:12]}{' with uncommitted changes' if git.get('changed') else ''}"
        if git
        else ""
    )
    rows = "\n".join(f"| {' | '.join(_cells(change))} |" for change in changes)
    diagnosed = ""
    if diagnosis is not None:
        diagnosed = f"\nDiagnosis of the last steps together:\n\n```\n{diagnosis.summary()}\n```\n"
    return f"""{_front_matter(recipe, engine)}# {recipe.name}

{recipe.initial_model} trained on {", ".join(recipe.data.sources)} with `{recipe.advantage}`: task
`{recipe.task}`, {steps:,} steps.

Mean reward over the first and the last tenth of the steps:

| reward | range | weight | start | end | change |
|---|---|---|---|---|---|
{rows}
{diagnosed}
This is one run with one seed ({environment.get("seed")}), so it does not show which estimator is
better.

- gdpo {environment.get("gdpo")}, {versions}, Python {environment.get("python")}{commit}
- {device.get("name") or device.get("type", "?")}, {environment.get("processes", 1)} process(es);
  started {environment.get("started")}, finished {environment.get("finished", "?")}; recipe digest
  {recipe.digest}
- `model/` is the trained model: `AutoModelForCausalLM.from_pretrained("{recipe.run_dir}/model")`
- `{folder}metrics.jsonl` has a line per step, `{folder}rollouts/` the completions and rewards
- repeat the run: `gdpo {verb} {recipe.run_dir} --set name=...`

## Recipe

```yaml
{recipe.to_yaml().strip()}
```
"""


def _cells(change: RewardChange) -> tuple[str, ...]:
    moved = change.change
    return (
        change.name,
        f"{change.low:g} to {change.high:g}",
        f"{change.weight:g}",
        *("–" if value is None else f"{value:.3f}" for value in (change.start, change.end)),
        "–" if moved is None else f"{moved:+.3f}",
    )


def number(row: Facts, key: str) -> float | None:
    """Return a metric if it is a finite number, else None."""
    value = row.get(key)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def duration(seconds: float) -> str:
    """Format a duration in seconds as readable text.

    >>> [duration(s) for s in (9, 95, 4000)]
    ['9 s', '1:35 min', '1:06 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


_FILE = re.compile(r"\.(jsonl?|parquet|csv|arrow|gz)$")


_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


def _front_matter(recipe: Recipe, engine: str) -> str:
    """Return the metadata of a model card: the base model, the datasets on the Hub, and tags."""
    base = _SMOLLM2 if recipe.model == SMOLLM2 else recipe.initial_model
    data = [source for source in recipe.data.sources if _is_on_hub(source)]
    tags = ("gdpo", engine, "multi-reward", recipe.task, recipe.advantage)
    facts = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base} if _is_on_hub(base) else {}),
        **({"datasets": data} if data else {}),
        # A user's module:attribute is not a tag.
        "tags": [tag for tag in dict.fromkeys(tags) if ":" not in tag],
    }
    return f"---\n{dump_yaml(facts).strip()}\n---\n\n"


def _is_on_hub(name: str) -> bool:
    """Return whether a name can be a Hub name and is not a local path."""
    named = _ON_HUB.fullmatch(name) is not None and not _FILE.search(name)
    return named and not Path(name).exists()
