"""Scores completions with the task, rewards and gates that a framework's configuration names."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from gdpo._files import from_json
from gdpo._shapes import Float
from gdpo.advantages import Weights
from gdpo.diagnostics import Watch, diagnose
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._settings import Settings
from gdpo.integrations.rows import Groups, advantages_of
from gdpo.rewards import Reward, Scorer, apply_gates
from gdpo.rewards.gates import check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import find_reward, read_gates
from gdpo.rewards.reward import Messages
from gdpo.rewards.task import resolve_task, without_arrays

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]
    weights: Weights
    """The weights in force in this batch, `[reward]` or `[prompt, reward]`."""
    changing: Mapping[str, float]
    """`AdvantageRule.metrics()` of this batch."""
    watched: str | None = None
    """Name of the framework's estimator, if that computed the advantages. None: the settings' rule
    did."""
    of_turns: Float[np.ndarray, "prompt sample turn"] | None = None
    """Advantages of each turn, whose means are `advantages`. None: each rollout has only one."""

    def metrics(self, watch: Watch) -> dict[str, float]:
        """Return the metrics of each reward (`gdpo/<reward>/...`) and of the batch (`gdpo/...`).

        The result contains `Diagnosis.metrics()` with the detail of the settings, the mean of each
        reward, which the frameworks do not log, and the metrics of the estimator's state. The
        method also logs each warning that `watch` reports.
        """
        found = diagnose(
            self.groups.rewards,
            self.weights,
            self.settings.names,
            estimator=self.watched or self.settings.rule.name,
            advantages=self.advantages,
        )
        diagnosis = watch.update(found)
        for finding in watch.due:
            logger.warning("gdpo: %s", finding.line)
        metrics = {
            **{f"rewards/{r.name}/mean": r.mean for r in diagnosis.rewards if r.mean is not None},
            **diagnosis.metrics(detail=self.settings.detail),
            **self.changing,
        }
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}


def compute(groups: Groups, settings: Settings) -> Computed:
    """Return a batch with its advantages, and update the state of the settings' rule."""
    rule = settings.rule
    own = groups.weights
    weights = rule.weights_in_force(settings.weights if own is None else own)
    changing = rule.metrics(settings.names, settings.weights)
    advantages = advantages_of(groups, settings)
    if not rule.wants_turns:
        return Computed(settings, groups, advantages, weights, changing)
    assert groups.turns is not None, "an estimator for turns without turns"
    means = groups.turns.means(advantages)
    return Computed(settings, groups, means, weights, changing, of_turns=advantages)


_AT_ONCE = 8
"""Maximum number of batches that a process scores at the same time."""


class Judge:
    """Scores completions with the rewards of one configuration.

    Frameworks call `score` from many threads. A scorer handles only one call at a time, so the
    threads share a pool of scorers.

    The options are those of verl's `compute_score` without `weights`.
    """

    def __init__(self, options: Mapping[str, Any], *, place: str) -> None:
        given: dict[str, Any] = {"workers": 1, **options}
        rewards = _rewards(given.pop("task", None), given.pop("rewards", None), place)
        self.names = tuple(reward.name for reward in rewards)
        self.of_tokens = next((r.name for r in rewards if r.of == "tokens"), None)
        """Name of the first reward that depends on the number of tokens, or None."""
        self._gates = read_gates(given.pop("gates", None))
        check_gates(self.names, self._gates)
        low, high = declared_ranges(rewards, self._gates)
        self.declared = describe_rewards(self.names, low, high, self._gates)
        """Ranges and gates, in the format of the rollout record."""
        self._scorers: SimpleQueue[Scorer] = SimpleQueue()
        for _ in range(_AT_ONCE):
            self._scorers.put(Scorer.from_options(rewards, given))

    def score(
        self,
        completions: Sequence[str | Messages],
        references: Sequence[Mapping[str, Any]],
        *,
        num_tokens: Sequence[int] | None = None,
    ) -> Float[np.ndarray, "rollout reward"]:
        """Return the gated rewards of each completion. NaN: a reward does not apply or failed.

        `num_tokens` holds the number of tokens of each completion; a reward that depends on the
        length requires it.
        """
        scorer = self._scorers.get()
        try:
            values = scorer.score(completions, references, num_tokens=num_tokens).values
        finally:
            self._scorers.put(scorer)
        return apply_gates(values, self.names, self._gates)


def as_reference(ground_truth: Any, *, place: str = "ground_truth") -> dict[str, Any]:
    """Convert a ground truth from a framework's data file to the reference that rewards read.

    A ground truth that is neither a dict nor a JSON object as text raises a DataError.
    """
    given = from_json(ground_truth) if isinstance(ground_truth, str) else ground_truth
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
        raise ConfigError(
            f"{place} sets neither a task nor rewards: set one of them, for example task: gsm8k"
        )
    return [_reward(entry, of_task) for entry in entries]


def _reward(entry: Any, of_task: Mapping[str, Reward]) -> Reward:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name, options = fields.pop("name", None), fields.pop("options", {})
    if fields or not isinstance(name, str):
        raise ConfigError(
            f"rewards contains {entry!r}: write a name, or {{name: ..., options: {{...}}}}"
        )
    return find_reward(name, options, of_task)
