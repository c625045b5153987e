"""Sends made-up data through a trainer, to see what comes out of it.

`advantages_of` sends a batch through TRL's own code. TRL generates, scores and gathers as usual,
but the completions have one token, the rewards are made up, and no log-probability is computed.
Metrics, logs, token counts and random states stay as they were. Every process must take part.

`Trial` compares the speed-ups of the log-probabilities with TRL's code.
"""

import copy
import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.func import functional_call

from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import (
    TESTED,
    agree,
    computed_in,
    end_token_ids,
    epsilon,
    is_training,
    kept_random_states,
    replaced,
    say,
    tokenizer_of,
    tried,
)
from gdpo.integrations.trl.generation import dropouts

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


Score: TypeAlias = Callable[..., Any]
"""TRL's method `_get_per_token_logps_and_entropies`, or one with its arguments.

They are a model and rows: ids and mask `[rollout, token]`, and how many of the last columns
are completions.
"""


class SpeedUp:
    """Scores rollouts in less time than the code that it replaces, which `score` gets first."""

    instead: str
    """What happens without it, for the log."""
    is_off = False
    """Whether it is not used, for example because a trial found a difference."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._said = set[str]()

    def say(self, reason: str, *, instead: str = "") -> None:
        """Log once, in the main process, why TRL's code runs. `instead` replaces the attribute."""
        if reason not in self._said:
            say(self._trainer, f"{instead or self.instead}, because {reason}")
        self._said.add(reason)


class Trial:
    """Uses speed-ups for rollouts as long as those with which each was compared with TRL's code.

    The training itself sets the conditions: the prepared model with its adapters and mode, gradient
    checkpointing, precision, and the shape of its batches. Each speed-up calls the next.
    """

    def __init__(self, trainer: Any, trls: Score, packer: Any, head: Any) -> None:
        self._trainer, self._trls, self._flat = trainer, trls, packer and packer.flat
        self._speed_ups = [each for each in (head, self._flat, packer) if each is not None]
        self._tried = self._fast = trls
        for each in self._speed_ups:
            self._tried = partial(each.score, self._tried)
            if each is not packer:  # the training packs whole micro-batches
                self._fast = self._tried
        is_sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        self._longest = defaultdict[Any, float](lambda: math.inf if is_sharded else 0.0)
        """The largest number of tokens in a rollout that is covered, for each model."""

    def score(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Return what TRL's method returns for these arguments."""
        trainer, learns = self._trainer, torch.is_grad_enabled()
        own, width = trainer.accelerator.unwrap_model(model), input_ids.shape[1]
        # A reference of another kind or precision says nothing about the policy's speed-ups.
        alike = type(own) is type(trainer.model) and own.dtype == trainer.model.dtype
        is_flat = self._flat and is_training(trainer) and alike
        if is_flat and not learns and own is not trainer.model:
            self.run(width - logits_to_keep, logits_to_keep, own)  # of the reference
        # A resumed run must have tried what the whole run has, so `_generate` tries it.
        is_flat = is_flat and not self._flat.is_off and not replaced(trainer, ("_generate",))
        if not is_training(trainer) or width > self._longest[own] or not (learns or is_flat):
            return self._trls(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **options
            )
        parts = (each.split(batch_size or len(each)) for each in (input_ids, attention_mask))
        found = [
            self._fast(model, *part, logits_to_keep, **options) for part in zip(*parts, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        columns = zip(*found, strict=True)
        return tuple(None if each[0] is None else torch.cat(each) for each in columns)

    def run(self, prompt: int, completion: int, model: Any = None) -> None:
        """Switch off each speed-up that differs in made-up rollouts of this many tokens.

        Nothing happens if rollouts of this length are covered. `model`: None is the policy.
        """
        model = model or self._trainer.model
        used = [each for each in self._speed_ups if not each.is_off]
        if not used or prompt + completion <= self._longest[model]:
            return
        self._longest[model] = prompt + completion
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters()):
            _switch_off(used, lambda: "a hook of a parameter would see other gradients")
            return
        rows = model, *made_up_rows(self._trainer, 4, prompt=prompt, completion=completion)
        with_stand_ins(model, lambda: self._compare(rows, used))

    def _compare(self, rows: Any, used: Sequence[SpeedUp]) -> None:
        trainer = self._trainer
        learns = rows[0] is trainer.model  # whoever calls `_generate` without gradients
        with _on_trial(rows[0]), torch.set_grad_enabled(learns):
            try:
                expected = self._scored(rows, self._trls, trainer.args.per_device_train_batch_size)
            except Exception as error:  # noqa: BLE001  TRL's own head may need what a CPU lacks
                failed = f"speed-ups are not compared with TRL's code, which failed: {error!r}"
                say(trainer, failed)
                return
            _switch_off(used, partial(self._difference, rows, expected))

    def _difference(self, rows: Any, expected: tuple[torch.Tensor, torch.Tensor]) -> str | None:
        (model, ids, *_), (logps, gradient) = rows, expected
        dtype = computed_in(self._trainer)
        # The last row has no padding. The others are trimmed.
        ours, our_gradient = self._scored(rows, self._tried, [len(ids) - 1, 1])
        # 1e-3 in float32, 10 % in bfloat16. SmolLM2-135M's gradient differs by 2e-4 and 1.8 %:
        # TRL's own differs from the one in float64 by 5e-4.
        allowed = min(3 * epsilon(dtype, logps) ** 0.5, 0.1) * float(gradient.norm())
        if agree(ours, logps, dtype) and float((our_gradient - gradient).norm()) <= allowed:
            return None
        return (
            f"log-probabilities or gradients differ from TRL's in a trial with {ids.shape[1]} "
            f"tokens (gradient checkpointing: {model.is_gradient_checkpointing})"
        )

    def _scored(
        self, rows: Any, score: Score, sizes: int | list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of rows, and the gradient of the first parameters, if any.

        `sizes`: numbers of rows to compute at a time. TRL's code may need a lot of memory for each.
        """
        (model, ids, mask, keep), found = rows, list[torch.Tensor]()
        model.zero_grad()
        weights = torch.linspace(1, 2, len(ids) * keep, device=ids.device).view(len(ids), keep)
        for part in zip(ids.split(sizes), mask.split(sizes), weights.split(sizes), strict=True):
            logps = score(model, *part[:2], keep)[0] * part[1][:, -keep:]
            if torch.is_grad_enabled():
                (logps * part[2]).sum().backward()
            found.append(logps.detach())
        embedding = model.get_input_embeddings().weight
        trained = [p.grad for p in model.parameters() if p.grad is not None and p is not embedding]
        parts = [each.double().flatten() for each in trained[:12] or found]
        return torch.cat(found), torch.cat(parts)


def _switch_off(used: Sequence[SpeedUp], difference: Callable[[], str | None]) -> None:
    """Switch off the speed-ups that alone make a difference."""
    if not tried(difference):
        return
    for each in used:
        each.is_off = True
    for each in used:
        each.is_off = False
        if reason := tried(difference):
            each.is_off = True
            each.say(reason)


def made_up_rows(
    trainer: Any, count: int, *, prompt: int, completion: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return ids, mask and completion tokens of rows with various padding.

    The first three rows are padded on both sides. The first two share a prompt. The fourth has no
    padding.
    """
    device = trainer.accelerator.device
    row = torch.arange(count, device=device)[:, None]
    place = torch.arange(prompt + completion, device=device)
    start = torch.where(row % 4 < 2, (prompt + 14) // 16, prompt // 2)
    end = prompt + completion - (row + 1) % 5 * (completion // 6)
    mask = ((start <= place) & (place < end) | (row == 3)).long()
    half = trainer.model.config.get_text_config().vocab_size // 2
    factor = 7 + torch.where(place < prompt, row // 2, row)
    ids = half + (place + 3) ** 2 * factor % half
    return ids.where(mask != 0, tokenizer_of(trainer).pad_token_id), mask, completion


_OPENED = 0.1
"""The value of parameters in a trial that are 0 in the training."""


class _Calling(torch.nn.Module):
    """Lets `functional_call` exchange the parameters of a model while a function runs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], None]) -> None:
        function()


def with_stand_ins(model: Any, function: Callable[[], None]) -> None:
    """Call a function while other tensors stand in for the trained parameters of a model.

    The parameters get no gradients, which hooks and other processes would see. Where they are 0,
    the stand-ins are not: a closed gate would hide what the training opens.
    """
    stand_ins = {
        f"model.{name}": (p.detach() if p.any() else torch.full_like(p, _OPENED)).requires_grad_()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    functional_call(_Calling(model), stand_ins, (function,))


@contextmanager
def _on_trial(model: Any) -> Generator[None]:
    """Restore random states at the end. Until then, there is no dropout."""
    before = [(own, key, own[key]) for _, own, key in dropouts(model)]
    try:
        for own, key, _ in before:
            own[key] = 0.0
        with kept_random_states():
            yield
    finally:
        for own, key, value in before:
            own[key] = value
