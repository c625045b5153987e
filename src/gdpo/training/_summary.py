"""What came out of a run: each reward at its start and end, as a table and a README."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from gdpo.diagnostics import Diagnosis
from gdpo.rewards import Reward
from gdpo.training._front_matter import front_matter
from gdpo.training._progress import number
from gdpo.training._recipe import Recipe

_SHARE = 0.1
"""Share of the measured steps that count as the start, and as the end."""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """One reward over a run."""

    name: str
    weight: float
    low: float
    high: float
    start: float | None
    """Mean over the first tenth of the steps that have it; None where it was never measured."""
    end: float | None
    """Mean over the last tenth."""

    @property
    def change(self) -> float | None:
        """How far it moved, in its own unit."""
        return None if self.start is None or self.end is None else self.end - self.start


def reward_changes(
    rows: Sequence[Mapping[str, Any]], rewards: Sequence[Reward], weights: Sequence[float]
) -> tuple[RewardChange, ...]:
    """How each reward moved, from the lines of `metrics.jsonl`."""
    steps = [row for row in rows if "loss" in row]
    return tuple(
        _reward_change(steps, reward, weight)
        for reward, weight in zip(rewards, weights, strict=True)
    )


def _reward_change(
    steps: Sequence[Mapping[str, Any]], reward: Reward, weight: float
) -> RewardChange:
    # Steps that learn from an earlier step's generation have no means of their own.
    means = [m for row in steps if (m := number(row, f"rewards/{reward.name}/mean")) is not None]
    tenth = max(1, round(_SHARE * len(means)))
    return RewardChange(
        name=reward.name,
        weight=weight,
        low=reward.low,
        high=reward.high,
        start=_mean(means[:tenth]),
        end=_mean(means[-tenth:]),
    )


def summary_table(changes: Sequence[RewardChange]) -> Table:
    """The changes for a terminal."""
    table = Table(title="mean reward, first and last tenth of the steps", title_justify="left")
    for heading in ("reward", "range", "weight", "start", "end", "change"):
        table.add_column(heading, justify="left" if heading == "reward" else "right")
    for change in changes:
        table.add_row(*(escape(cell) for cell in _cells(change)))
    return table


def readme(
    recipe: Recipe,
    environment: Mapping[str, Any],
    changes: Sequence[RewardChange],
    *,
    steps: int,
    has_curves: bool,
    diagnosis: Diagnosis | None = None,
) -> str:
    """The README of a finished run, in Markdown."""
    packages = environment.get("packages") or {}
    engine = environment.get("engine", "trl")
    folder, verb = ("verl/", "launch verl") if engine == "verl" else ("", "train")
    versions = ", ".join(
        f"{name} {packages[name]}" for name in (engine, "transformers", "torch") if name in packages
    )
    device = environment.get("device") or {}
    git = environment.get("git") or {}
    commit = (
        f", commit {git['commit'][:12]}{' with changes' if git.get('changed') else ''}"
        if git
        else ""
    )
    rows = "\n".join(f"| {' | '.join(_cells(change))} |" for change in changes)
    picture = (
        "\n![mean rewards and answer length over the steps](curves.png)\n" if has_curves else ""
    )
    return f"""{front_matter(recipe, recipe.data.sources, engine=engine)}# {recipe.name}

{recipe.model} trained on {", ".join(recipe.data.sources)} with `{recipe.advantage}`: task
`{recipe.task}`, {steps:,} steps.

Mean reward over the first and the last tenth of the steps:

| reward | range | weight | start | end | change |
|---|---|---|---|---|---|
{rows}
{picture}{_diagnosis_section(diagnosis)}
One run with one seed ({environment.get("seed")}): it shows what happened here, not which method is
better.

- gdpo {environment.get("gdpo")}, {versions}, Python {environment.get("python")}{commit}
- {device.get("name") or device.get("type", "?")}, {environment.get("processes", 1)} process(es);
  started {environment.get("started")}, finished {environment.get("finished", "?")}; recipe digest
  {recipe.digest}
- `model/` is the trained model: `AutoModelForCausalLM.from_pretrained("{recipe.run_dir}/model")`
- `{folder}metrics.jsonl` has a line per step, `{folder}rollouts/` what was sampled and how it was
  rewarded
- again: `gdpo {verb} {recipe.run_dir} --set name=...`

## Recipe

```yaml
{recipe.to_yaml().strip()}
```
"""


def _diagnosis_section(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    return f"""
What the rewards did in the last steps, all together:

```
{diagnosis.summary()}
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


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
