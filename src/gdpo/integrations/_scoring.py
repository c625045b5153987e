"""Scores completions with the task, rewards and gates that a framework's configuration names."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.diagnostics import Diagnosis, Watch, diagnose
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._settings import Settings
from gdpo.integrations.rows import Groups
from gdpo.rewards import Reward, Scorer, apply_gates
from gdpo.rewards.gates import check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import find_reward, read_gates
from gdpo.tasks import resolve_task
from gdpo.tasks.rows import without_arrays

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    """Stores a batch with its advantages."""

    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]

    def metrics(self, watch: Watch) -> dict[str, float]:
        """Return `gdpo/<reward>/...` for each reward and `gdpo/...` for the batch.

        These are `Diagnosis.metrics()` and, if the estimator has a state, the metrics of its state.
        Influence shares are computed over the most recent groups. Logs each warning that `watch`
        reports, once.
        """
        diagnosis = watch.update(self._diagnosis())
        for finding in watch.due:
            logger.warning("%s: %s", finding.message, finding.remedy)
        rule = self.settings.rule
        metrics = {**diagnosis.metrics(), **rule.metrics(self.settings.names)}
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}

    def _diagnosis(self) -> Diagnosis:
        return diagnose(
            self.groups.rewards,
            self.settings.rule.weights_in_force(self.settings.weights),
            self.settings.names,
            estimator=self.settings.rule.name,
            advantages=self.advantages,
        )


_AT_ONCE = 8
"""Batches that one process scores at the same time. Frameworks run several such processes."""


class Judge:
    """Scores completions with the rewards of one configuration.

    Frameworks call it from many threads. A scorer serves one call at a time, so a pool of scorers
    is shared.

    Args:
        options: The configuration. `task`: a name, or `module:attribute`. `rewards`: a list with
            names of the task's rewards, names of built-in rewards, `module:attribute`, or
            `{name: ..., options: {...}}`. Default: all rewards of the task. `gates`: for example
            `{length: {on: correct, at_least: 1}}`. All other keys (`on_error`, `workers`, ...) are
            options of `gdpo.rewards.Scorer`.
        place: The name of the configuration section, for messages.

    Raises:
        ConfigError: If a name or an option is unknown or invalid.
    """

    def __init__(self, options: Mapping[str, Any], *, place: str) -> None:
        given: dict[str, Any] = {"workers": 1, **options}
        rewards = _rewards(given.pop("task", None), given.pop("rewards", None), place)
        self.names = tuple(reward.name for reward in rewards)
        self.of_tokens = next((r.name for r in rewards if r.of == "tokens"), None)
        """The first reward that depends on the number of tokens; None if no reward does."""
        self._gates = read_gates(given.pop("gates", None))
        check_gates(self.names, self._gates)
        low, high = declared_ranges(rewards, gated=self._gates)
        self.declared = describe_rewards(self.names, low, high, self._gates)
        """Ranges and gates, in the format of the rollout record."""
        self._scorers: SimpleQueue[Scorer] = SimpleQueue()
        for _ in range(_AT_ONCE):
            self._scorers.put(Scorer.from_options(rewards, given))

    def score(
        self,
        completions: Sequence[str],
        references: Sequence[Mapping[str, Any]],
        *,
        num_tokens: Sequence[int] | None = None,
    ) -> Float[np.ndarray, "rollout reward"]:
        """Return the gated rewards of each completion. NaN: the reward does not apply or failed.

        Args:
            completions: The model's responses.
            references: The reference of each completion.
            num_tokens: Number of tokens of each completion. Required by rewards that depend on it.
        """
        scorer = self._scorers.get()
        try:
            values = scorer.score(completions, references, num_tokens=num_tokens).values
        finally:
            self._scorers.put(scorer)
        return apply_gates(values, self.names, self._gates)


def as_reference(ground_truth: Any, *, place: str = "ground_truth") -> dict[str, Any]:
    """Return the reference that rewards read, from a ground truth in a framework's data file.

    Args:
        ground_truth: A dict, or a JSON object as text.
        place: The field of the data file, for messages.

    Raises:
        DataError: If the ground truth is neither.
    """
    given = ground_truth
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        raise DataError(
            f"{place} is {ground_truth!r:.80}, but gdpo's rewards read named fields: write a "
            "dict, or a JSON object as text"
        )
    return without_arrays(given)


def _rewards(task: str | None, entries: Sequence[Any] | None, place: str) -> list[Reward]:
    of_task = {r.name: r for r in resolve_task(task).rewards} if task else {}
    if not entries:
        entries = list(of_task)
    if not entries:
        raise ConfigError(f"{place} names no task and no rewards: set one, for example task: gsm8k")
    return [_reward(entry, of_task) for entry in entries]


def _reward(entry: Any, of_task: Mapping[str, Reward]) -> Reward:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name, options = fields.pop("name", None), fields.pop("options", {})
    if fields or not isinstance(name, str):
        raise ConfigError(
            f"rewards contains {entry!r}: write a name, or {{name: ..., options: {{...}}}}"
        )
    return find_reward(name, options, of_task)
