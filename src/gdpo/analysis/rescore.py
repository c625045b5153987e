"""Recomputes rewards from recorded texts, for files with only a scalar reward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from gdpo._files import from_json
from gdpo._naming import find
from gdpo.errors import ConfigError, DataError
from gdpo.rewards import BUILT_IN, Reference, Reward, Scorer
from gdpo.rewards.named import make
from gdpo.rewards.reward import Messages
from gdpo.rewards.task import TASKS, Task
from gdpo.rewards.text import after_tag, from_file, left_open, prompt_text
from gdpo.rollouts.readers import Rescored, RolloutText
from gdpo.rollouts.readers.columns import count_of

NO_TEXT = "the completion has no text, so it cannot be rescored"
MIXED = (
    "the text also contains tool results, which cannot be separated from the model's text, "
    "so it cannot be rescored"
)
NO_REFERENCE = "no reference in the files, so rewards that need a reference fail"
NO_TOKENS = "no token count in the files, so rewards that need token counts are missing"

_TRUTHS = ("reference", "ground_truth", "gts", "gold", "label", "target", "answer", "solution")
"""Fields of a record that may contain the reference for the completion."""

_ASKED = ("question", "problem", "prompt")
"""Columns of a task's rows that can be filled with the prompt of a rollout."""

Problems = dict[str, list[int]]

Text: TypeAlias = str | Messages


class Rescorer:
    """Recomputes rewards from the texts of rollouts.

    The reference for a completion is the first of these:

    1. the reference that the task reads from the record, if it has all required columns;
    2. the reference in the file (verl's `gts`, slime's `label`, `reference` of gdpo's record, ...),
       if it is an object, also as JSON text;
    3. `{"answer": ...}`, if the reference in the file is a string or a number.

    A `<think>` at the end of a prompt counts as in training if the prompt is recorded as text, or
    if the record has a field `opened`, as gdpo's does. Otherwise, it is not known.

    Args:
        name: Name of a task or a built-in reward, or `module:attribute` of a task, a `Reward` or a
            list of rewards.

    Raises:
        ConfigError: If `name` does not exist, or is not a task, a reward or a list of rewards.
    """

    def __init__(self, name: str) -> None:
        self.task, self.rewards = _found(name)
        self._scorer = Scorer(self.rewards)
        whole = [reward for reward in self.rewards if reward.of != "turn"]
        self.low = {reward.name: float(reward.low) for reward in whole}
        """Lowest possible value of each reward by name. A total over turns has none."""
        self.high = {reward.name: float(reward.high) for reward in whole}
        """Highest possible value of each reward by name. A total over turns has none."""

    def close(self) -> None:
        """Stop the worker processes."""
        self._scorer.close()

    def __enter__(self) -> "Rescorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, written: Sequence[RolloutText]) -> Rescored:
        """Return the rewards of rollouts, or None where a reward does not apply or fails."""
        problems: Problems = {}
        decode = not any(each.restored for each in written)
        prompts = from_file([each.prompt for each in written], decode=decode)
        completions = from_file([each.completion for each in written], decode=decode)
        references = [
            self._reference(each, prompt, i, problems)
            for i, (each, prompt) in enumerate(zip(written, prompts, strict=True))
        ]
        texts: list[Text | None] = []
        for each, prompt, text in zip(written, prompts, completions, strict=True):
            end = prompt if isinstance(prompt, str) else str(each.extras.get("opened"))
            texts.append(None if each.mixed or text is None else after_tag(text, left_open(end)))
        no_text = [MIXED if each.mixed else NO_TEXT for each in written]
        tokens = [count_of(each.num_tokens) for each in written]
        values: dict[str, list[float | None]] = {r.name: [None] * len(texts) for r in self.rewards}
        for kinds, judged, lacking in (
            (("text", "turn"), texts, no_text),
            (("tokens",), tokens, [NO_TOKENS] * len(texts)),
        ):
            rewards = [reward for reward in self.rewards if reward.of in kinds]
            known = [i for i, value in enumerate(judged) if value is not None]
            if not rewards:
                continue
            for i in sorted({*range(len(judged))} - {*known}):
                problems.setdefault(lacking[i], []).append(i)
            scores = self._scorer.score(
                [texts[i] or "" for i in known],
                [references[i] for i in known],
                num_tokens=[tokens[i] or 0 for i in known],
                only=rewards,
            )
            for failure in scores.failures:
                what = f"reward {failure.reward!r} failed: {failure.kind}"
                problems.setdefault(what, []).append(known[failure.index])
            for i, row in zip(known, scores.values.tolist(), strict=True):
                for reward, value in zip(rewards, row, strict=True):
                    values[reward.name][i] = None if value != value else value
        return Rescored(values, problems)

    def _reference(
        self, written: RolloutText, prompt: Text | None, place: int, problems: Problems
    ) -> Reference:
        why = NO_REFERENCE
        try:
            found = self._read_row(written, prompt)
        except DataError as error:
            found, why = None, f"not a row of task {self.task and self.task.name}: {error}"[:200]
        found = _truth(written) if found is None else found
        if found is None:
            problems.setdefault(why, []).append(place)
        return found or {}

    def _read_row(self, written: RolloutText, prompt: Text | None) -> Reference | None:
        if self.task is None or _as_object(written.extras.get("reference")) is not None:
            return None
        extras = {name: value for name, value in written.extras.items() if value is not None}
        asked = None if prompt is None else prompt_text(prompt)
        for columns in self.task.columns:
            lacking = set(columns) - set(extras)
            if len(lacking) < len(columns) and lacking <= set(_ASKED):
                return self.task.read_row(extras | dict.fromkeys(lacking, asked)).reference
        return None


def _truth(written: RolloutText) -> Reference | None:
    candidates = [written.truth, *(written.extras.get(name) for name in _TRUTHS)]
    given = next((value for value in candidates if value is not None), None)
    found = _as_object(given)
    if found is not None:
        return found
    if isinstance(given, list) and len(cast("list[Any]", given)) == 1:
        given = cast("list[Any]", given)[0]
    if isinstance(given, str | int | float | np.number) and not isinstance(given, bool):
        return {"answer": str(given)}
    return None


def _as_object(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = from_json(value)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _found(name: str) -> tuple[Task | None, list[Reward]]:
    known: Mapping[str, Any] = dict.fromkeys((*BUILT_IN, *TASKS))
    found = TASKS.get(name) or find(BUILT_IN.get(name, name), known, "task or reward")
    if isinstance(found, Callable) and not isinstance(found, Reward | Task):
        found = make(repr(name), found, {})
    if isinstance(found, Task):
        return found, list(found.rewards)
    rewards = [found] if isinstance(found, Reward) else found
    if not isinstance(rewards, list | tuple) or not rewards:
        raise ConfigError(
            f"--rescore {name!r} is a {type(found).__name__}: pass a task, a gdpo.Reward or a list "
            "of rewards"
        )
    return None, list(cast("Sequence[Reward]", rewards))
