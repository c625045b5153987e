"""Sends one made-up batch through TRL's own code, to see which advantages come out of it.

TRL generates, scores and gathers as usual, but the completions have one token, the rewards are made
up, and no log-probability is computed. Metrics, logs, token counts and random states stay as they
were. Every process must take part.
"""

import copy
import logging
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import TESTED, end_token_ids, kept_random_states, replaced

logger = logging.getLogger(__name__)

NAMES = ("reward_a", "reward_b", "reward_c")
"""The names of the made-up rewards."""

WEIGHTS = (1.0, 0.5, 2.0)
GROUPS, SAMPLES = 4, 4
"""The number of groups of each process, and of completions in a group."""

_SCALES = (1000.0, 300.0, 7000.0)
"""The units of the rewards. Compared with them, TRL's 1e-4 in standard deviations is small."""

_CLOSE = 1e-3
"""The largest difference at which advantages count as equal, over the largest advantage."""

_CANDIDATES = (
    *("grpo", "grpo_no_std", "grpo_batch_std", "grpo_batch_norm", "rloo"),
    *("gdpo", "gdpo_leave_one_out", "mo_grpo", "per_reward_batch_std"),
)
"""The estimators that `rule_of` knows."""

CALLED = ("_generate_and_score_completions", "_calculate_rewards", "_generate")
"""The methods of TRL that a made-up batch goes through."""

_KEPT = ("_metrics", "_logs", "_pending_metrics", "_pending_extra_logs")
"""TRL's containers that a batch changes in place."""


def rule_of(trainer: Any) -> str | None:
    """Return the name of the estimator that TRL's own trainer uses, or None if it has no name.

    The methods of the trainer's class are called, not replacements on the instance. A subclass that
    overrides one of them may do more than compute, so it is not called: None.
    """
    try:
        if replaced(type(trainer), CALLED):
            return None
        score = partial(type(trainer)._generate_and_score_completions, trainer)
        found = advantages_of(trainer, score)
    except Exception:  # noqa: BLE001  whatever fails: the rule is not known, and training goes on
        return None
    differences = {name: _difference(found, name, trainer) for name in _CANDIDATES}
    nearest = min(differences, key=differences.__getitem__)
    return nearest if differences[nearest] < _CLOSE else None


def check_batch(trainer: Any, score: Callable[[Any], Mapping[str, Any]]) -> None:
    """Raise a ConfigError unless the advantages that `score` puts into TRL's batch come out of it.

    If the check itself fails, the reason is only logged.
    """
    try:
        found = advantages_of(trainer, score)
    except Exception as error:  # noqa: BLE001  TRL's code may need more than a made-up batch has
        logger.warning(
            "the check that TRL %s trains on gdpo's advantages failed (%s: %s)",
            version("trl"),
            type(error).__name__,
            error,
        )
        return
    difference = _difference(found, "gdpo", trainer)
    if not difference < _CLOSE:  # also NaN
        raise ConfigError(
            f"TRL {version('trl')} does not train on gdpo's advantages: in a made-up batch, they "
            f"differ by {difference:.2g} of the largest advantage. Install a version of TRL that "
            f"gdpo is tested with: {TESTED}"
        )


def advantages_of(trainer: Any, score: Callable[[Any], Mapping[str, Any]]) -> Any:
    with lent(trainer):
        vars(trainer).update(_stubs(trainer))
        rows = [{"prompt": str(i)} for i in range(GROUPS) for _ in range(SAMPLES)]
        advantages = score(rows).get("advantages")
        return np.empty(0) if advantages is None else advantages.double().cpu().numpy()


@contextmanager
def lent(trainer: Any) -> Generator[None]:
    """Restore the trainer's attributes, the mode of its model and the random states at the end."""
    attributes, training = dict(vars(trainer)), trainer.model.training
    numbers = random.getstate(), np.random.get_state()  # noqa: NPY002  the state that others use
    try:
        with kept_random_states():
            trainer.model.training = True
            yield
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        trainer.model.training = training
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])  # noqa: NPY002


def _stubs(trainer: Any) -> dict[str, Any]:
    own = vars(trainer)
    silent = copy.copy(trainer.args)
    silent.report_to = []
    start = trainer.accelerator.process_index * GROUPS * SAMPLES
    rewards = _made_up(trainer).reshape(-1, len(NAMES))[start:]
    token = end_token_ids(trainer)[0]

    def reward(column: int) -> Callable[..., list[float]]:
        return lambda completions, **_: rewards[: len(completions), column].tolist()

    def rollouts(prompts: Any, *_: Any) -> dict[str, Any]:
        tokens = [[token] for _ in prompts]
        return {"prompt_ids": tokens, "completion_ids": tokens, "logprobs": None}

    def log_probabilities(
        _: Any, ids: torch.Tensor, __: Any, keep: int, *___: Any, **____: Any
    ) -> Any:
        return torch.zeros(len(ids), keep, device=ids.device), None, None

    return {
        **{name: copy.deepcopy(own[name]) for name in _KEPT if name in own},
        "args": silent,
        "state": copy.copy(trainer.state),
        "reward_funcs": [reward(column) for column in range(len(NAMES))],
        "reward_func_names": list(NAMES),
        "reward_processing_classes": [None] * len(NAMES),
        "reward_weights": torch.tensor(WEIGHTS),
        "num_generations": SAMPLES,
        "tools": [],
        "environment_factories": None,
        "environments": None,
        "use_vllm": False,
        "beta": 0.0,
        "reward_clip_range": None,
        "rollout_func": rollouts,
        # Trainers without rollout_func:
        "_tokenize_prompts": lambda prompts: ([[token] for _ in prompts], None, {}),
        "_generate_single_turn": lambda prompt_ids, *_: [[token] for _ in prompt_ids],
        "_get_per_token_logps_and_entropies": log_probabilities,
        "_calculate_rewards": partial(type(trainer)._calculate_rewards, trainer),
    }


def _made_up(trainer: Any) -> Any:
    """Return the rewards `[prompt, sample, reward]` of all processes, the same in each."""
    groups = GROUPS * trainer.accelerator.num_processes
    values = np.random.default_rng(0).integers(0, 9, (groups, SAMPLES, len(NAMES)))
    return values * np.array(_SCALES)


def _difference(found: Any, estimator: str, trainer: Any) -> float:
    with lent(trainer):  # type checks draw random numbers in tests
        flat = ESTIMATORS[estimator](_made_up(trainer), np.array(WEIGHTS)).reshape(-1)
    start = trainer.accelerator.process_index * GROUPS * SAMPLES
    local = flat[start : start + GROUPS * SAMPLES]
    if found.shape != local.shape:
        return float("inf")
    return float(np.abs(found - local).max() / np.abs(flat).max())
