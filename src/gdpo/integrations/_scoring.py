"""Rewards, a task and gates, as a framework's configuration names them, ready to score."""

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
    """A batch whose advantages have been computed."""

    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]

    def metrics(self, watch: Watch) -> dict[str, float]:
        """`gdpo/<reward>/...` for each reward, `gdpo/...` for the batch.

        These are `Diagnosis.metrics()` and the numbers of the estimator's state if it has one.
        Influence shares are over the last groups. Warnings that last are logged, each once.
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
"""Batches that one process scores at a time; frameworks run several such processes."""


class Judge:
    """The rewards of one configuration.

    Frameworks call from many threads, and a scorer serves one at a time: a few are lent in turn.

    Args:
        options: `task`: a name or `module:attribute`. `rewards`: names of its rewards, of built-in
            ones, or `module:attribute`, or `{name: ..., options: {...}}`; left out: all of the
            task. `gates`: `{length: {on: correct, at_least: 1}}`. `on_error`, `workers`, ...:
            options of `gdpo.rewards.Scorer`.
        place: Where the user writes them, for messages.

    Raises:
        ConfigError: An unknown name or option, or options that do not fit.
    """

    def __init__(self, options: Mapping[str, Any], *, place: str) -> None:
        given: dict[str, Any] = {"workers": 1, **options}
        rewards = _rewards(given.pop("task", None), given.pop("rewards", None), place)
        self.names = tuple(reward.name for reward in rewards)
        self.of_tokens = next((r.name for r in rewards if r.of == "tokens"), None)
        """The first reward that judges the number of tokens; None if none does."""
        self._gates = read_gates(given.pop("gates", None))
        check_gates(self.names, self._gates)
        low, high = declared_ranges(rewards, gated=self._gates)
        self.declared = describe_rewards(self.names, low, high, self._gates)
        """Ranges and gates, as the rollout record keeps them."""
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
        """Gated rewards of each completion; NaN where one does not apply or failed.

        Args:
            completions: What the model wrote.
            references: What each is judged against.
            num_tokens: Of each completion; needed by a reward that judges them.
        """
        scorer = self._scorers.get()
        try:
            values = scorer.score(completions, references, num_tokens=num_tokens).values
        finally:
            self._scorers.put(scorer)
        return apply_gates(values, self.names, self._gates)


def as_reference(ground_truth: Any, *, place: str = "ground_truth") -> dict[str, Any]:
    """What rewards judge against, of what a framework's data file holds.

    Args:
        ground_truth: A dict, or a JSON object as text.
        place: Where the data file holds it, for messages.

    Raises:
        DataError: It is neither.
    """
    given = ground_truth
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        raise DataError(
            f"{place} is {ground_truth!r:.80}; gdpo's rewards judge against named fields: write a "
            "dict, or a JSON object as text"
        )
    return without_arrays(given)


def _rewards(task: str | None, entries: Sequence[Any] | None, place: str) -> list[Reward]:
    of_task = {r.name: r for r in resolve_task(task).rewards} if task else {}
    if not entries:
        entries = list(of_task)
    if not entries:
        raise ConfigError(f"{place} must name a task or rewards, for example task: gsm8k")
    return [_reward(entry, of_task) for entry in entries]


def _reward(entry: Any, of_task: Mapping[str, Reward]) -> Reward:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name, options = fields.pop("name", None), fields.pop("options", {})
    if fields or not isinstance(name, str):
        raise ConfigError(f"rewards holds {entry!r}: write a name, or {{name: ..., options: {{}}}}")
    return find_reward(name, options, of_task)
