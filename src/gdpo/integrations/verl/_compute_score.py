"""Rewards, tasks and gates of ours as verl's `reward.custom_reward_function`."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, cast

import numpy as np

from gdpo._naming import did_you_mean, find
from gdpo.advantages import weights_by_name
from gdpo.errors import ConfigError, DataError
from gdpo.integrations.verl._settings import plain
from gdpo.rewards import BUILT_IN, Gate, Reward, Scorer, apply_gates, check_gates
from gdpo.tasks import resolve_task

SCORE = "score"
"""verl's own number of a rollout."""

_AT_ONCE = 8
"""Completions that one process scores at a time; verl runs several such processes."""

PATH = "pkg://gdpo.integrations.verl"
"""`reward.custom_reward_function.path` of `compute_score`."""

NUM_TOKENS = "num_tokens"
"""Where the reward manager `gdpo_tokens` leaves the length of a completion in `extra_info`."""


def compute_score(
    data_source: Any = None,  # noqa: ARG001  verl passes it by name
    solution_str: str = "",
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward_router_address: Any = None,  # noqa: ARG001
    reward_model_tokenizer: Any = None,  # noqa: ARG001
    **reward_kwargs: Any,
) -> dict[str, float]:
    """Every reward of one completion by name, and their weighted sum as `score`.

    In verl's configuration:

        reward:
          custom_reward_function:
            path: pkg://gdpo.integrations.verl
            name: compute_score
            reward_kwargs:
              task: gsm8k

    Args:
        data_source: Not used.
        solution_str: The completion.
        ground_truth: What it is judged against: a dict, or a JSON object as text, as our rewards
            take it (`reference`).
        extra_info: Of it, `num_tokens` for rewards that judge the length; verl's configuration
            puts it there with `reward.reward_manager.name=gdpo_tokens`.
        reward_router_address: Not used.
        reward_model_tokenizer: Not used.
        reward_kwargs: `task`: a name or `module:attribute`. `rewards`: names of its rewards, of
            built-in ones, or `module:attribute`, or `{name: ..., options: {...}}`; left out: all of
            the task. `gates`: `{length: {on: correct, at_least: 1}}`. `weights`: of `score`, which
            no estimator of ours uses; by name or in order, left out: all 1. `on_error`, `workers`,
            ...: options of `gdpo.rewards.Scorer`.

    Returns:
        NaN where a reward does not apply or failed; such a one adds nothing to `score`.

    Raises:
        ConfigError: Wrong `reward_kwargs`.
        DataError: `ground_truth` is neither a dict nor a JSON object.
    """
    judge = _judge(json.dumps(plain(reward_kwargs)))
    return judge.scores(
        solution_str, as_reference(ground_truth), (extra_info or {}).get(NUM_TOKENS)
    )


def as_reference(ground_truth: Any) -> dict[str, Any]:
    """What rewards judge against, of what a verl data file holds.

    Raises:
        DataError: It is neither a dict nor a JSON object.
    """
    given = ground_truth
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        raise DataError(
            f"reward_model.ground_truth is {ground_truth!r:.80}; gdpo's rewards judge against "
            "named fields: write a dict, or a JSON object as text"
        )
    return _without_arrays(given)


def with_num_tokens(manager: type[Any]) -> type[Any]:
    """A reward manager of verl that tells the reward function how long the completion is."""

    class NumTokens(manager):
        """`extra_info` holds `num_tokens`: of the completion, the token that ends it included."""

        async def run_single(self, data: Any) -> Any:
            last = data[-1:]
            length = last.batch["responses"].shape[-1]
            given = last.non_tensor_batch.get("extra_info")
            info = {} if given is None else dict(given[0])
            info[NUM_TOKENS] = int(last.batch["attention_mask"][0, -length:].sum())
            last.non_tensor_batch["extra_info"] = np.array([info], dtype=object)
            return await super().run_single(last)

    return NumTokens


def check_keys(reward: Any, keys: Sequence[str]) -> None:
    """Raise unless verl's reward function gives these, where that is known: where it is ours.

    Args:
        reward: `reward` of verl's configuration, or None.
        keys: `algorithm.gdpo_reward_keys`.

    Raises:
        ConfigError: A key that it does not give, or wrong `reward_kwargs`.
    """
    function = plain((reward or {}).get("custom_reward_function")) or {}
    if (function.get("path"), function.get("name")) != (PATH, compute_score.__name__):
        return
    names = _judge(json.dumps(function.get("reward_kwargs") or {})).names
    for key in keys:
        if key not in names:
            raise ConfigError(
                f"algorithm.gdpo_reward_keys names {key!r}, which compute_score does not give "
                f"with these reward_kwargs: {did_you_mean(key, names)}"
            )


class _Judge:
    """The rewards of one `reward_kwargs`, ready to score one completion after the other.

    verl calls from many threads, and a scorer serves one at a time: a few are lent in turn.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        task = options.pop("task", None)
        rewards = _rewards(task, options.pop("rewards", None))
        self.names = [reward.name for reward in rewards]
        if SCORE in self.names:
            raise ConfigError(f"a reward may not be called {SCORE!r} in verl: rename it")
        self._weights = weights_by_name(self.names, options.pop("weights", None))
        self._gates = _gates(options.pop("gates", None))
        check_gates(self.names, self._gates)
        self._needs_tokens = next((r.name for r in rewards if r.of == "tokens"), None)
        self._scorers: SimpleQueue[Scorer] = SimpleQueue()
        options = {"workers": 1, **options}
        for _ in range(_AT_ONCE):
            self._scorers.put(Scorer.from_options(rewards, options))

    def scores(
        self, completion: str, reference: Mapping[str, Any], num_tokens: int | None
    ) -> dict[str, float]:
        if self._needs_tokens and num_tokens is None:
            raise ConfigError(
                f"reward {self._needs_tokens!r} judges the number of tokens, which verl does not "
                "pass to a reward function: set reward.reward_manager.name=gdpo_tokens"
            )
        tokens = None if num_tokens is None else [int(num_tokens)]
        scorer = self._scorers.get()
        try:
            values = scorer.score([completion], [reference], num_tokens=tokens).values
        finally:
            self._scorers.put(scorer)
        rewards = apply_gates(values, self.names, self._gates)[0]
        score = float(np.nansum(rewards * self._weights))
        return {SCORE: score, **dict(zip(self.names, rewards.tolist(), strict=True))}


@lru_cache
def _judge(options: str) -> _Judge:
    return _Judge(json.loads(options))


def _rewards(task: str | None, entries: Sequence[Any] | None) -> list[Reward]:
    of_task = {r.name: r for r in resolve_task(task).rewards} if task else {}
    if not entries:
        entries = list(of_task)
    if not entries:
        raise ConfigError(
            "reward_kwargs must name a task or rewards, for example "
            "+reward.custom_reward_function.reward_kwargs.task=gsm8k"
        )
    return [_reward(entry, of_task) for entry in entries]


def _reward(entry: Any, of_task: Mapping[str, Reward]) -> Reward:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name, options = fields.pop("name", None), fields.pop("options", {})
    if fields or not isinstance(name, str):
        raise ConfigError(f"rewards holds {entry!r}: write a name, or {{name: ..., options: {{}}}}")
    place = BUILT_IN.get(name, name) if name not in of_task else name
    reward = find(place, dict.fromkeys(BUILT_IN) | dict(of_task), "reward")
    if callable(reward) and not isinstance(reward, Reward):
        reward = _made(name, reward, options)
    elif options:
        raise ConfigError(f"reward {name!r} takes no options: it is made already")
    if not isinstance(reward, Reward):
        raise ConfigError(
            f"reward {name!r} is of type {type(reward).__name__}; it must be a gdpo.Reward or a "
            "function that returns one"
        )
    return reward


def _made(name: str, function: Any, options: Mapping[str, Any]) -> Any:
    try:
        return function(**options)
    except TypeError as error:
        raise ConfigError(
            f"reward {name!r} cannot be made with the options {dict(options)}: {error}"
        ) from error


def _gates(gates: Any) -> dict[str, Gate]:
    try:
        return {name: Gate(**fields) for name, fields in (gates or {}).items()}
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"gates must be like {{length: {{on: correct, at_least: 1}}}}, got {gates!r}"
        ) from error


def _without_arrays(value: Any) -> Any:
    """As JSON has it: a data frame makes arrays of lists, and fills up what a row lacks."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): _without_arrays(item) for key, item in mapping.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_without_arrays(item) for item in cast("Sequence[Any]", value)]
    return value.item() if isinstance(value, np.generic) else value
