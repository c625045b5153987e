"""Binds an estimator to the options in a configuration.

A configuration stores options as plain data, keyed by reward name. They are converted to the
estimator's arguments and tested before a model is loaded.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from math import nan
from typing import Any

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_array_api_obj

from gdpo._naming import refuse_unknown
from gdpo._shapes import Real
from gdpo.advantages._stateful import DualAscent, RunningScale
from gdpo.advantages._trial import ToArray, made_up_batches, try_out
from gdpo.advantages._turns import TURN_ESTIMATORS, TurnAdvantages, TurnRewards
from gdpo.advantages._types import Advantages, Number, Rewards, Weights
from gdpo.advantages.arrays import broadcast_weights, number, positive
from gdpo.advantages.estimators import ESTIMATORS
from gdpo.advantages.estimators.gdpo import gdpo
from gdpo.advantages.registry import check_advantages, keyword_parameters, resolve_estimator
from gdpo.advantages.schedules import Schedules
from gdpo.advantages.stages import namespace
from gdpo.errors import ConfigError, GdpoError, boundary

Options = Mapping[str, Any]
"""Keyword options of an estimator in a configuration: numbers, lists in reward order, or mappings
keyed by reward name."""

_BY_BATCH = "token_counts"
"""Name of the option whose value is passed with each batch. In a configuration, the value `true`
enables this option."""

_TURNS = "turns"
"""Name of the option whose value, the number of turns of each rollout, is passed with each batch of
an estimator for turns."""

_DUALS = "multipliers"
"""Name of the option whose value `DualAscent` computes. A configuration sets the options of
`DualAscent` instead."""

_DUAL_OPTIONS = ("targets", "step_size", "start", "maximum")

_SCALE = "scale"
"""Name of the option of `gdpo` whose value `RunningScale` computes. A configuration sets
`scale_half_life` instead."""

_SCALE_OPTION = "scale_half_life"

_SCHEDULES = "schedules"
"""Name of the option of every estimator that changes weights by step."""


class AdvantageRule:
    """Stores an estimator with its options and any state.

    Args:
        name: A key in `ESTIMATORS` or, with `turns`, in `TURN_ESTIMATORS`, or `module:attribute`.
        names: Names of the rewards, in the order of the array.
        options: Options of the estimator. An option with one number per reward can be a mapping by
            name; other rewards get the default. `token_counts: true` weights batch normalization by
            tokens. `constrained_grpo` takes the options of `DualAscent`: `targets` (keyed by reward
            name), `step_size`, `start` and `maximum`. `gdpo` takes `scale_half_life`, the half-life
            of a `RunningScale` that replaces batch normalization. Every estimator takes
            `schedules`, which multiply the weights of the named rewards: `{from: 1.0, to: 0.2,
            steps: 200}`, or `{after: {reward: format, mean_at_least: 0.95}, value: 0.2}`.
        low: Declared lowest value of each reward, in its unit. NaN: not declared.
        high: Declared highest value, in the same form.
        weights: Weights of later calls. Your own estimator is tried with them on made-up batches,
            in their array library, or else in NumPy or another loaded one. None: equal weights.
        turns: Whether the caller has rewards for each turn, so that estimators for turns are
            allowed.

    Raises:
        ConfigError: If the estimator, an option or a reward name is unknown, a required option is
            missing or an option is rejected, or your own estimator fails, returns an invalid result
            or changes its arguments on every made-up batch.

    Examples:
        >>> rule = AdvantageRule("gdpo", ["format", "correct"], {"noise_floor": {"format": 0.1}})
        >>> rule(np.array([[[0.0, 0.0], [0.01, 1.0]]]), [1.0, 1.0]).round(4)
        array([[-0.7071,  0.7071]])
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        options: Options | None = None,
        *,
        low: Sequence[Number] | None = None,
        high: Sequence[Number] | None = None,
        weights: Weights | None = None,
        turns: bool = False,
    ) -> None:
        self.name, self._count = name, len(names)
        self.estimator = resolve_estimator(name, turns=turns)
        given, parameters = dict(options or {}), keyword_parameters(self.estimator)
        self.wants_turns = parameters.pop(_TURNS, None) is not None
        if self.estimator is gdpo:
            parameters[_SCALE_OPTION] = parameters.pop(_SCALE)
        duals = _DUAL_OPTIONS if _DUALS in parameters else ()
        allowed = [_SCHEDULES, *(key for key in parameters if key != _DUALS), *duals]
        refuse_unknown(given, allowed, f"estimator {name!r} has no option", is_setting=True)
        has_schedules, schedules = _SCHEDULES in given, given.pop(_SCHEDULES, None)
        self.wants_token_counts = given.pop(_BY_BATCH, False)
        if not isinstance(self.wants_token_counts, bool):
            raise ConfigError(
                f"options of estimator {name!r}: {_BY_BATCH} must be true or false, got "
                f"{self.wants_token_counts!r}. The counts themselves are passed with each batch"
            )
        self.duals = _dual_ascent(names, given) if _DUALS in parameters else None
        half_life = given.pop(_SCALE_OPTION, None) if self.estimator is gdpo else None
        self._options = {key: _by_name(key, value, names) for key, value in given.items()}
        self.scale: RunningScale | None = None
        if half_life is not None:
            positive(_SCALE_OPTION, half_life)
            self.scale = RunningScale(half_life, self._options.get("noise_floor"))
        self.weighting: Schedules | None = None
        for key, declared in (("low", low), ("high", high)):
            if key in parameters and declared is not None:
                self._options[key] = _completed(self._options.get(key), declared)
        self._refuse_missing(parameters, names)
        self._is_ours = self.estimator in (*ESTIMATORS.values(), *TURN_ESTIMATORS.values())
        self._to_array: ToArray = np.asarray
        self._to_array = self._try_out() if self._is_ours else self._try_own(low, high, weights)
        if has_schedules:
            self.weighting = Schedules(names, schedules, low=low, high=high)

    def __call__(
        self,
        rewards: Rewards | TurnRewards,
        weights: Weights,
        *,
        token_counts: Real[Any, "prompt sample"] | None = None,
        turns: Real[Any, "prompt sample"] | None = None,
    ) -> Advantages | TurnAdvantages:
        """Return the advantages of one batch, `[prompt, sample]`, or `[prompt, sample, turn]`.

        Args:
            rewards: Raw rewards, `[prompt, sample, reward]`, or `[prompt, sample, turn, reward]` if
                the estimator wants turns. NaN: the reward does not apply.
            weights: One weight per reward, or weights `[prompt, reward]`, NaN where the reward does
                not apply to the prompt. Schedules multiply them. The estimator gets weights of each
                prompt as `[prompt, 1, reward]`.
            token_counts: Number of tokens in each response, for this option.
            turns: Number of turns of each rollout, for an estimator for turns.

        Raises:
            DataError: If a reward is infinite.
            ConfigError: If token counts or turns are missing, or the result is invalid.
        """
        advantages = self._computed(rewards, weights, token_counts, turns)
        check_advantages(advantages, rewards, self.name)
        return advantages

    def _computed(self, rewards: Any, weights: Any, token_counts: Any, turns: Any) -> Any:
        options = dict(self._options)
        weights = self._weighted(weights)
        if not self.wants_turns:  # these estimators take weights [prompt, reward] as they are
            rewards, weights = broadcast_weights(rewards, weights)
        if self.wants_token_counts:
            if token_counts is None:
                raise ConfigError(
                    f"estimator {self.name!r} has token_counts: true, but this batch has no token "
                    "counts: pass token_counts=, or remove the option"
                )
            options[_BY_BATCH] = token_counts
        if self.wants_turns:
            if turns is None:
                raise ConfigError(
                    f"estimator {self.name!r} needs the number of turns of each rollout: pass "
                    "turns="
                )
            options[_TURNS] = turns
        if self.duals is not None:
            options[_DUALS] = self.duals.multipliers
        if self.scale is not None:
            options[_SCALE] = self.scale.including(rewards, weights)
        return self.estimator(rewards, weights, **options)

    def update(self, rewards: Rewards, weights: Weights) -> None:
        """Update the state, if any, with a batch that was trained on.

        Call this after computing the advantages of the batch.

        Args:
            rewards: Raw rewards, `[prompt, sample, reward]`. With turns, their totals.
            weights: Weights that this rule was called with.
        """
        rewards, in_force = broadcast_weights(rewards, self._weighted(weights))
        if self.weighting is not None:
            self.weighting.update(rewards)
        if self.duals is not None:
            self.duals.update(rewards)
        if self.scale is not None:
            self.scale.update(rewards, in_force)

    def state(self) -> dict[str, Any]:
        """Return the state in JSON types for `restore`. Empty: the rule has no state."""
        return {key: value for part in self._parts for key, value in part.state().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned.

        Raises:
            ConfigError: If the state belongs to another estimator or other constraints.
        """
        for part in self._parts if state else ():
            part.restore(state)

    def weights_in_force(self, weights: Weights) -> Any:
        r"""Return the weights of the next batch: a list, or an array `[prompt, reward]`.

        Schedules multiply weights, and $\lambda$ those of constraints.
        """
        given = self._weighted(weights)
        plain = given.tolist() if hasattr(given, "tolist") else list(given)
        now = np.asarray(plain, dtype=np.float64)
        if self.duals is not None:
            multipliers = np.asarray(self.duals.multipliers)
            now = now * np.where(np.isnan(multipliers), 1.0, multipliers)
        return now.tolist() if now.ndim == 1 else now

    def recorded_weights(self, weights: Weights) -> Any:
        """Return the weights for the record: a replay multiplies by those of constraints itself."""
        return weights if self.duals is not None else self.weights_in_force(weights)

    @property
    def factors(self) -> list[tuple[float, float]]:
        """Return the smallest and largest factor of each weight in a run."""
        return [(1.0, 1.0)] * self._count if self.weighting is None else self.weighting.bounds

    def check_prompt_weights(self) -> None:
        """Check, before a run, that the estimator takes weights for each prompt.

        Raises:
            ConfigError: If the same weights as a list and for each prompt give different
                advantages.
        """
        if self._is_ours:
            return
        rewards = self._to_array(np.random.default_rng(0).random((3, 4, self._count)))
        given = np.linspace(1.0, 2.0, self._count)
        weights, of_each = self._to_array(given), self._to_array(np.tile(given, (3, 1)))
        problem = ""
        try:
            with boundary(ConfigError):
                if np.allclose(*(self._of_one_turn(rewards, each) for each in (of_each, weights))):
                    return
        except ConfigError as error:
            problem = f" ({error})"
        raise ConfigError(
            f"estimator {self.name!r} does not take weights for each prompt{problem}: make it "
            "accept weights [prompt, 1, reward], as gdpo.testing.check_estimator tests with "
            "Claims(prompt_weights=True), or do not set a weights column"
        )

    def metrics(self, names: Sequence[str], weights: Sequence[Number]) -> dict[str, float]:
        """Return what changes during a run.

        These are `rewards/<name>/multiplier` for constraints, and the weight in force,
        `rewards/<name>/weight`, for rewards with a schedule.

        Args:
            names: Names of the rewards.
            weights: Weights that the rule is called with.
        """
        multipliers = [] if self.duals is None else zip(names, self.duals.multipliers, strict=True)
        found = {f"rewards/{name}/multiplier": m for name, m in multipliers if m == m}
        if self.weighting is not None:
            now = self.weights_in_force(weights)
            for name, weight, changes in zip(names, now, self.weighting.changing, strict=True):
                if changes:
                    found[f"rewards/{name}/weight"] = weight
        return found

    @property
    def _parts(self) -> list[DualAscent | RunningScale | Schedules]:
        """Return the parts that have a state."""
        return [part for part in (self.duals, self.scale, self.weighting) if part is not None]

    def _weighted(self, weights: Any) -> Any:
        if self.weighting is None:
            return weights
        given: Any = weights
        if not is_array_api_obj(weights):
            given = np.asarray(weights, dtype=np.float64)
        xp, place = namespace(given), device_of(given)
        return given * xp.asarray(self.weighting.factors, dtype=given.dtype, device=place)

    def _of_one_turn(self, rewards: Any, weights: Any) -> Any:
        ones = self._to_array(np.ones(rewards.shape[:2]))
        if self.wants_turns:
            return self(rewards[:, :, None, :], weights, token_counts=ones, turns=ones)
        return self(rewards, weights, token_counts=ones)

    def _refuse_missing(self, parameters: Mapping[str, Parameter], names: Sequence[str]) -> None:
        for key, parameter in parameters.items():
            if parameter.default is not Parameter.empty or key == _DUALS:
                continue
            if key == _BY_BATCH:
                if not self.wants_token_counts:
                    raise ConfigError(
                        f"estimator {self.name!r} needs the number of tokens of each response: set "
                        f"the option {_BY_BATCH}: true"
                    )
                continue
            values = self._options.get(key)
            lacking = list(names) if values is None else []
            if isinstance(values, list):
                pairs = zip(names, values, strict=False)
                lacking = [name for name, value in pairs if value != value]
            if lacking:
                raise ConfigError(
                    f"estimator {self.name!r} needs {key!r} for every reward, but has no value "
                    f"for {', '.join(lacking)}: declare the range (low and high of gdpo.Reward, "
                    f"reward_range of an environment), or set the option {key!r} to a mapping from "
                    "reward name to value"
                )

    def _try_out(self) -> ToArray:
        low, count = self._options.get("low"), self._count
        lowest = low if isinstance(low, list) and len(low) == count else 0.0
        try:
            self._of_one_turn(np.zeros((1, 2, count)) + lowest, np.ones(count))
        except (GdpoError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"options of estimator {self.name!r}: {error}") from error
        return self._to_array

    def _try_own(
        self, low: Sequence[Number] | None, high: Sequence[Number] | None, weights: Weights | None
    ) -> ToArray:
        unknown = [nan] * self._count
        batches = made_up_batches(
            low or unknown, high or unknown, weights=weights, turns=self.wants_turns
        )

        tried = copy.copy(self)
        with suppress(Exception):  # an object with a state starts the training without a trace
            tried.estimator = copy.deepcopy(self.estimator)
        return try_out(tried._computed, self.name, batches)


def _dual_ascent(names: Sequence[str], given: dict[str, Any]) -> DualAscent:
    options = {key: given.pop(key) for key in _DUAL_OPTIONS if key in given}
    targets = _by_name("targets", options.pop("targets", {}), names)
    if not isinstance(targets, list) or len(targets) != len(names):
        raise ConfigError(
            f"targets needs one number per reward ({', '.join(names)}): use a mapping from reward "
            "name to number"
        )
    checked = [number("targets", target) for target in targets]
    return DualAscent(checked, **options)


def _by_name(key: str, value: Any, names: Sequence[str]) -> Any:
    """Return a mapping by reward name as a list, with NaN or False for what is missing."""
    if isinstance(value, list):
        return [nan if item is None else item for item in value]
    if not isinstance(value, Mapping):
        return value
    values = {k: v for k, v in value.items() if v is not None}
    refuse_unknown(value, names, f"{key}: unknown reward")
    missing = False if any(isinstance(each, bool) for each in values.values()) else nan
    return [values.get(name, missing) for name in names]


def _completed(given: Any, declared: Sequence[Number]) -> Any:
    if given is None:
        return list(declared)
    if not isinstance(given, list) or len(given) != len(declared):
        return given  # the estimator reports what is wrong with it
    pairs = zip(given, declared, strict=True)
    return [known if value != value else value for value, known in pairs]
