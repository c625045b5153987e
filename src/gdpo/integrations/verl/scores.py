"""Scores verl's completions with gdpo's rewards, tasks and gates."""

import functools
import json
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from gdpo._files import from_json
from gdpo._naming import refuse_unknown
from gdpo.advantages.registry import weights_by_name
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._turns import messages_of, spans_of
from gdpo.rewards import Reward, Scorer, apply_gates
from gdpo.rewards.gates import check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import find_reward, read_gates
from gdpo.rewards.reward import Messages
from gdpo.rewards.task import resolve_task, without_arrays
from gdpo.rewards.text import after_tag, left_open
from gdpo.rollouts.readers.formats import ONE_RESPONSE

SCORE = "score"
"""Key under which verl reads the scalar reward of a rollout."""

PATH = "pkg://gdpo.integrations.verl"
"""Value of `reward.custom_reward_function.path` that selects `compute_score`."""

TOKENS_MANAGER = "gdpo_tokens"
"""Value of `reward.reward_manager.name` that selects verl's naive manager with token counts."""

MESSAGES = "gdpo_messages"
"""Key in `extra_info` under which gdpo's plugin stores the messages of a rollout whose tokens the
model did not all generate, or whose prompt ends with `<think>`. verl itself passes one text,
including the tool results."""

NUM_TOKENS = "num_tokens"
"""Key in `extra_info` under which `gdpo_tokens` stores the token count of a completion."""


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
    """Return a dict with every reward for one completion, and their weighted sum as `score`.

    In verl's configuration:

        reward:
          custom_reward_function:
            path: pkg://gdpo.integrations.verl
            name: compute_score
            reward_kwargs:
              task: gsm8k

    Args:
        data_source: Not used.
        solution_str: The completion. If the rollout has messages of tools or users, or the prompt
            ends with `<think>`, the rewards get the messages, which gdpo's plugin adds as
            `extra_info["gdpo_messages"]`. Without the plugin, such a `<think>` is not known.
        ground_truth: The reference that the rewards read: a dict, or a JSON object as text.
        extra_info: Extra fields of the row. Rewards of the length read `num_tokens`, which
            `reward.reward_manager.name=gdpo_tokens` adds.
        reward_router_address: Not used.
        reward_model_tokenizer: Not used.
        reward_kwargs: Keys that define the rewards. `task` is the name of a task or
            `module:attribute`. `rewards` is a list (default: all rewards of the task) of names of
            task or built-in rewards, `module:attribute`, or `{name: ..., options: {...}}`. `gates`
            is a dict, for example `{length: {on: correct, at_least: 1}}`. `weights` sets the
            weights of `score`, by name or as a list (default: all 1); gdpo's estimators do not use
            them. All other keys (`on_error`, `workers`, ...) are options of `gdpo.rewards.Scorer`.

    Returns:
        The dict. A reward that failed or does not apply is NaN, and left out of `score`.

    Raises:
        ConfigError: If `reward_kwargs` is invalid, or the rollout has several turns whose messages
            are unknown.
        DataError: If `ground_truth` is neither a dict nor a JSON object.
    """
    info = extra_info or {}
    reference = as_reference(ground_truth)
    scores = _scores(json.dumps(without_arrays(reward_kwargs)))
    messages, turns = info.get(MESSAGES), info.get("num_turns")
    if messages is None and turns is not None and turns > ONE_RESPONSE:
        raise ConfigError(
            f"num_turns is {turns}, and verl's text of this rollout contains tool results, "
            "which cannot be separated from the model's text: check that gdpo's plugin is active "
            f"where the agent loop runs, or pass the messages in extra_info[{MESSAGES!r}]"
        )
    completion = solution_str if messages is None else messages
    return scores.of(completion, reference, info.get(NUM_TOKENS))


def as_reference(ground_truth: Any) -> dict[str, Any]:
    """Convert a ground truth from verl's data file to the reference that rewards read."""
    given = from_json(ground_truth) if isinstance(ground_truth, str) else ground_truth
    if not isinstance(given, Mapping):
        raise DataError(
            f"reward_model.ground_truth is {ground_truth!r:.80}, but gdpo's rewards read named "
            "fields: write a dict, or a JSON object as text"
        )
    return without_arrays(given)


def with_messages(compute_score: Any) -> Any:
    """Wrap verl's `AgentLoopWorker._compute_score` to pass the messages of a rollout.

    verl's reward managers decode all tokens, even tool tokens. Only the agent loop knows which
    tokens the model generated, and whether the prompt ends with `<think>`.
    """

    @functools.wraps(compute_score)
    async def computed(worker: Any, outputs: Sequence[Any], kwargs: Any) -> Any:
        last = outputs[-1]
        decode = functools.partial(worker.tokenizer.decode, skip_special_tokens=True)
        opened = left_open(decode(last.prompt_ids))
        if not is_ours(worker.config.get("reward")) or (not opened and all(last.response_mask)):
            return await compute_score(worker, outputs, kwargs)
        messages = messages_of(last.response_ids, spans_of(last.response_mask), decode)
        info = {**(kwargs.get("extra_info") or {}), MESSAGES: after_tag(messages, opened)}
        return await compute_score(worker, outputs, {**kwargs, "extra_info": info})

    return computed


def with_num_tokens(manager: type[Any]) -> type[Any]:
    """Return a verl reward manager class that passes `num_tokens` to the reward function."""

    class NumTokens(manager):
        """Adds the completion's token count, including the end token, to `extra_info`."""

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
    """Check that gdpo's `compute_score` returns all `keys`. Other functions are not checked."""
    scores = _our_scores(reward)
    if scores is not None:
        place = "algorithm.gdpo_reward_keys"
        what = f"{place}: compute_score, with these reward_kwargs, returns no"
        refuse_unknown(keys, scores.names, what)


def declared_by(reward: Any) -> dict[str, dict[str, Any]]:
    """Return the ranges and gates in verl's `reward` section. Empty: the function is not gdpo's."""
    scores = _our_scores(reward)
    return {} if scores is None else scores.declared


def is_ours(reward: Any) -> bool:
    """Return whether the `reward` section of verl's configuration selects `compute_score`."""
    function = (reward or {}).get("custom_reward_function") or {}
    return (function.get("path"), function.get("name")) == (PATH, compute_score.__name__)


def _our_scores(reward: Any) -> "_ConfiguredScorer | None":
    if not is_ours(reward):
        return None
    function = without_arrays(reward.get("custom_reward_function"))
    return _scores(json.dumps(function.get("reward_kwargs") or {}))


_AT_ONCE = 8
"""Maximum number of batches that a process scores at the same time."""


class _ConfiguredScorer:
    """Scores completions with the rewards of one configuration.

    verl calls it from many threads. A scorer handles only one call at a time, so the threads share
    a pool of scorers.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        weights = options.pop("weights", None)
        given: dict[str, Any] = {"workers": 1, **options}
        rewards = _rewards(given.pop("task", None), given.pop("rewards", None))
        self.names = tuple(reward.name for reward in rewards)
        if SCORE in self.names:
            raise ConfigError(f"the reward name {SCORE!r} is reserved by verl: rename the reward")
        self._of_tokens = next((r.name for r in rewards if r.of == "tokens"), None)
        """Name of the first reward that depends on the number of tokens, or None."""
        self._gates = read_gates(given.pop("gates", None))
        check_gates(self.names, self._gates, grouped=False)
        low, high = declared_ranges(rewards, self._gates)
        self.declared = describe_rewards(self.names, low, high, self._gates)
        """Ranges and gates, in the format of the rollout record."""
        self._scorers: SimpleQueue[Scorer] = SimpleQueue()
        for _ in range(_AT_ONCE):
            self._scorers.put(Scorer.from_options(rewards, given))
        self._weights = weights_by_name(self.names, weights)

    def of(
        self, completion: str | Messages, reference: Mapping[str, Any], num_tokens: int | None
    ) -> dict[str, float]:
        if self._of_tokens and num_tokens is None:
            raise ConfigError(
                f"reward {self._of_tokens!r} needs the number of tokens, which verl does not pass "
                "to a reward function: set reward.reward_manager.name=gdpo_tokens"
            )
        tokens = None if num_tokens is None else [int(num_tokens)]
        scorer = self._scorers.get()
        try:
            values = scorer.score([completion], [reference], num_tokens=tokens).values
        finally:
            self._scorers.put(scorer)
        (rewards,) = apply_gates(values, self.names, self._gates)
        score = float(np.nansum(rewards * self._weights))
        return {SCORE: score, **dict(zip(self.names, rewards.tolist(), strict=True))}


def _rewards(task: str | None, entries: Sequence[Any] | None) -> list[Reward]:
    of_task = {r.name: r for r in resolve_task(task).rewards} if task else {}
    if not entries:
        entries = list(of_task)
    if not entries:
        raise ConfigError(
            "reward_kwargs sets neither a task nor rewards: set one, for example task: gsm8k"
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


@functools.lru_cache
def _scores(options: str) -> _ConfiguredScorer:
    return _ConfiguredScorer(json.loads(options))
