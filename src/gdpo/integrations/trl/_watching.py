"""Watches TRL's own trainers: metrics, findings and the rollout record.

The two wrapped methods only read what TRL computed.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from gdpo.advantages import AdvantageRule
from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics.diagnosis import check_detail
from gdpo.errors import ConfigError, GdpoError
from gdpo.integrations._harmless import Harmless
from gdpo.integrations.trl._accounting import Accounting, check_accounting
from gdpo.integrations.trl._adapter import kept_random_states
from gdpo.integrations.trl._observing import KeptState, Observer, RolloutLog
from gdpo.integrations.trl._probe import rule_of
from gdpo.integrations.trl._rewards import numbered
from gdpo.integrations.trl._trainer import GDPOTrainer

logger = logging.getLogger(__name__)

_REWARDS, _ADVANTAGES = "_calculate_rewards", "_generate_and_score_completions"
"""TRL's methods that calculate the rewards of a batch, and its advantages."""

_READ = ("reward_func_names", "reward_weights", "args", "callback_handler", "accelerator", "state")
"""Attributes of TRL's trainers that a watch needs."""


def watch(
    trainer: Any,
    *,
    rollouts_dir: str | Path | None = None,
    diagnostics: str = "brief",
    estimators: Sequence[str] = (),
    effect_every: int | None = None,
) -> None:
    """Show what each reward does while TRL's `GRPOTrainer` or `RLOOTrainer` trains.

    Call it once before `trainer.train()`, in every process. The training is not affected:

        watch(trainer)

    The trainer then logs `rewards/<name>/zero_variance_groups`, `rewards/<name>/influence_share`
    (over the last 256 groups) and `diagnostics/warnings`. Each warning, for example that a reward
    is ignored, is logged once with its step and a remedy: after 128 groups at the earliest if it
    rests on sums over groups, otherwise after five steps in a row. A batch with an infinite reward
    is left out of these metrics. Any other error switches the watch off, and training continues.
    For a trainer that cannot be watched, is watched already, or is a `GDPOTrainer`, which logs all
    of this itself, the call only logs that. It also logs if steps were trained before it. If
    rewards share a name, later ones are numbered (`tags`, `tags_2`).

    Args:
        trainer: TRL's `GRPOTrainer` or `RLOOTrainer`, or a subclass, which may compute its own
            advantages.
        rollouts_dir: Folder for the rollout record, one parquet file per step, which `gdpo analyze`
            reads. Evaluations are written to its subfolder `eval`. When training begins, files of
            an earlier run in this folder are moved to `earlier-1` (or the next free number), unless
            the run is resumed. None: no record is written.
        diagnostics: `"full"` logs all metrics of the diagnosis.
        estimators: Names of estimators to compare with. For each name, the trainer logs
            `estimators/<name>/sign_flips`, the share of rollouts whose advantage would have the
            opposite sign, and `estimators/<name>/<reward>/influence_share`.
        effect_every: Log what changed each reward in 10 of every N steps, first in steps 11 to 20,
            as `account/<reward>/by/<cause>`, `account/<reward>/rest` and
            `account/<reward>/measured`. N is at least 10. It needs AdamW, one process, one
            optimizer step per generation batch, and one advantage per rollout. None: no account.

    Raises:
        ConfigError: If an argument after the trainer is invalid, or the folder is not writable.
    """
    if reason := _not_watched_because(trainer):
        logger.warning("watch(trainer) changes nothing, and training continues: %s", reason)
        return
    if trainer.state.global_step:
        logger.warning("watch missed the steps before it: call it before trainer.train()")
    check_detail(diagnostics, "diagnostics")
    names = numbered(trainer.reward_func_names)
    if isinstance(estimators, str):
        raise ConfigError(f"estimators={estimators!r}: pass a list of names: [{estimators!r}]")
    rules = [AdvantageRule(name, names) for name in estimators]
    log = RolloutLog(rollouts_dir, trainer) if rollouts_dir else None
    check_accounting(trainer.args, effect_every)
    accounting = Accounting(trainer, names, effect_every) if effect_every else None
    watched = _Watched(trainer, names, log, rules, accounting, detail=diagnostics)
    # Wrap the methods of this instance only, because other trainers may use the same class.
    vars(trainer).update(
        {
            _REWARDS: watched.rewards(getattr(trainer, _REWARDS)),
            _ADVANTAGES: watched.advantages(getattr(trainer, _ADVANTAGES)),
        }
    )
    trainer.add_callback(watched)
    if accounting is not None:
        trainer.add_callback(accounting)


def _not_watched_because(trainer: Any) -> str | None:
    if isinstance(trainer, GDPOTrainer):
        return (
            "GDPOTrainer logs what watch would log. Remove watch, and set rollouts_dir and "
            "diagnostics in its GDPOConfig"
        )
    # A property cannot be wrapped on the instance.
    methods = [getattr(type(trainer), name, None) for name in (_REWARDS, _ADVANTAGES)]
    if not all(map(callable, methods)) or not all(hasattr(trainer, name) for name in _READ):
        return (
            f"{type(trainer).__name__} does not calculate rewards with TRL's methods {_REWARDS} "
            f"and {_ADVANTAGES}, or lacks one of the attributes {', '.join(_READ)}. watch supports "
            "GRPOTrainer and RLOOTrainer"
        )
    if any(isinstance(each, _Watched) for each in trainer.callback_handler.callbacks):
        return "the trainer is already watched. Call watch once, with all arguments"
    return None


class _Other:
    def __init__(self, rule: AdvantageRule) -> None:
        self.name = rule.name
        self.watch = Watch()
        self._rule = rule

    def metrics(
        self, rewards: torch.Tensor, advantages: torch.Tensor, weights: Mapping[str, float]
    ) -> dict[str, float]:
        with kept_random_states():  # of an estimator that draws random numbers
            theirs = self._rule(rewards, torch.tensor(list(weights.values())).to(rewards))
        self._rule.update(rewards, list(weights.values()))
        diagnosis = self.watch.update(
            diagnose(rewards, weights, list(weights), estimator=self.name, advantages=theirs)
        )
        flips = (advantages.double() * theirs.double() < 0).double().mean().item()
        shares = {f"{r.name}/influence_share": r.influence_share for r in diagnosis.rewards}
        metrics = {"sign_flips": flips, **shares}
        return {f"estimators/{self.name}/{k}": v for k, v in metrics.items() if v is not None}


class _Watched(TrainerCallback):
    def __init__(
        self,
        trainer: Any,
        names: Sequence[str],
        log: RolloutLog | None,
        rules: Sequence[AdvantageRule],
        accounting: Accounting | None,
        *,
        detail: str,
    ) -> None:
        self._trainer, self._names = trainer, names
        self._log, self._accounting = log, accounting
        self._observer = Observer(trainer, rule_of(trainer), detail)
        self._others = [_Other(rule) for rule in rules]
        others = {f"gdpo.Watch.{other.name}": other.watch for other in self._others}
        self._kept = KeptState({"gdpo.Watch": self._observer.watch, **others})
        self._scored: list[torch.Tensor] = []
        self._harmless = Harmless(
            "watch is switched off because of an error, and training continues"
        )

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._harmless(self._kept.on_train_begin, *args, **kwargs)
        if self._log is not None:
            self._harmless(self._log.on_train_begin, *args, **kwargs)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._harmless(self._kept.on_step_end, *args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._observer.on_train_end(*args, **kwargs)

    def rewards(self, calculate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(calculate)
        def calculated(*args: Any, **kwargs: Any) -> torch.Tensor:
            rewards = calculate(*args, **kwargs)
            self._harmless(self._keep, rewards, *args, **kwargs)
            return rewards

        return calculated

    def advantages(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(generate)
        def generated(*args: Any, **kwargs: Any) -> Any:
            self._scored.clear()
            output = generate(*args, **kwargs)
            # Every process takes part in gathering, even if its own watch is switched off.
            gathered = self._harmless.attempt(self._gathered, output)
            self._harmless(self._observe, gathered, output)
            return output

        return generated

    def _gathered(self, output: Any) -> tuple[torch.Tensor, Sequence[Mapping[str, Any]]]:
        advantages = self._trainer.accelerator.gather(output["advantages"].detach()).cpu()
        return advantages, self._log.gathered() if self._log is not None else []

    def _keep(
        self,
        rewards: torch.Tensor,
        inputs: Any,
        prompts: Any,
        completions: Any,
        completion_ids_list: Any,
    ) -> None:
        self._scored.append(rewards.detach().clone().cpu())
        if self._log is not None:
            one_turn = [[len(ids)] for ids in completion_ids_list]
            self._log.collect(inputs, prompts, completions, completion_ids_list, one_turn)

    def _observe(
        self, gathered: tuple[torch.Tensor, Sequence[Mapping[str, Any]]], output: Any
    ) -> None:
        (advantages, facts), trainer, times = gathered, self._trainer, len(self._scored)
        if times != 1:
            raise ConfigError(
                f"{type(trainer).__name__} called {_REWARDS} {times} times for one batch, so its "
                "rewards and advantages cannot be matched"
            )
        training = trainer.model.training
        samples = trainer.num_generations if training else trainer.num_generations_eval
        rewards = self._scored[0].view(-1, samples, self._scored[0].shape[-1])
        advantages = advantages.view(rewards.shape[:2])
        names = self._names
        weights = dict(zip(names, trainer.reward_weights.tolist(), strict=True))
        if self._log is not None:
            if trainer.accelerator.is_main_process and len(facts) != advantages.numel():
                raise GdpoError(
                    "the rollouts of another process are missing, because its watch is switched "
                    "off: see its warning"
                )
            given, trained = list(weights.values()), [True] * len(rewards)
            self._log.write(facts, names, rewards, advantages, given, trained=trained)
        diagnosis = self._observer.diagnosis(rewards, weights, names, advantages)
        metrics = self._observer.metrics(diagnosis)
        if training:
            if self._accounting is not None:
                self._accounting.take(output, rewards, trainer.reward_weights, advantages)
            for other in self._others:
                metrics |= other.metrics(rewards, advantages, weights)
        for key, value in metrics.items():
            trainer._metrics["train" if training else "eval"][key].append(value)
