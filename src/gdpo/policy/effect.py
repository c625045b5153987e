r"""Measures the effect of each reward on each reward, from batches of rollouts of one policy.

For each batch of rollouts, with $s_i$ the gradient of the log-probability of rollout $i$, there are

- $a_j$, the mean of $c_{ji} s_i$: the gradient of the expected value of reward $j$;
- $g$, the mean of $A_i s_i$: the gradient of the step;
- $d_k$, the mean of $D_{ki} s_i$: what reward $k$ adds to it;
- $U_k = \mathrm{Step}(g) - \mathrm{Step}(g - d_k)$: what reward $k$ adds to the step;
- $U = \mathrm{Step}(g)$: the step. Each gradient is clipped by its own norm.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gdpo._shapes import Float
from gdpo.diagnostics import diagnose
from gdpo.diagnostics.effect import Coefficients, Effect, effect_of, sentences
from gdpo.policy.gradients import RolloutPass
from gdpo.policy.steps import OptimizerStep, clip_of

Progress = Callable[[int, int], None]
"""Receives the number of finished batches, and the number of all batches."""


class Batch(NamedTuple):
    """Stores the rollouts of a batch, in the order of prompts.

    Attributes:
        input_ids: Tokens [rollout, token], padded on either side.
        attention_mask: 1 at tokens, 0 at padding.
        scored: True at each token of the completion that the loss counts.
        rewards: Raw rewards [prompt, sample, reward]. NaN: missing.
    """

    input_ids: Tensor
    attention_mask: Tensor
    scored: Tensor
    rewards: Float[np.ndarray, "prompt sample reward"]

    @staticmethod
    def of_trl(output: Mapping[str, Tensor], rewards: Any) -> "Batch":
        """Return the rollouts that TRL generated, without the tokens of tools in `scored`.

        Args:
            output: TRL's ids and masks of prompts and completions.
            rewards: Raw rewards [prompt, sample, reward].
        """
        prompt, said = output["prompt_mask"], output["completion_mask"]
        pairs = (
            (output["prompt_ids"], output["completion_ids"]),
            (prompt, said),
            (prompt < 0, said * output.get("tool_mask", 1) > 0),
        )
        ids, mask, scored = (torch.cat(each, dim=1) for each in pairs)
        return Batch(ids, mask, scored, np.asarray(rewards, np.float64))

    def passes(self, model: Any, rows: int, temperature: float = 1.0) -> Iterator[RolloutPass]:
        """Yield a pass for each micro-batch of this many rollouts, on the model's device."""
        device = next(model.parameters()).device
        for here in zip(*(each.to(device).split(rows) for each in self[:3]), strict=True):
            yield RolloutPass(model, *here, temperature=temperature)


class MeasuredEffect(NamedTuple):
    """Stores the effects of the rewards of a policy, with what they rest on.

    Attributes:
        effect: The effects.
        shares: Influence share of each reward in the same rollouts.
        sentences: What the effects show.
        notes: What was measured and assumed, as phrases to print.
    """

    effect: Effect
    shares: Float[np.ndarray, " reward"]
    sentences: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Policy:
    """Measures the effects of rewards on a policy, without changing it or its optimizer.

    Attributes:
        model: The policy.
        names: Names of the rewards.
        weights: Weight of each reward.
        estimator: Estimator of the run, as in `gdpo.advantages.ESTIMATORS`.
        notes: What is measured, as phrases to print.
        step: Step of the optimizer. None: the gradient, divided by its usual size, so that only
            ratios of effects have a meaning.
        max_norm: Norm to which the trainer clips the gradient.
        rows: Number of rollouts in a pass.
        temperature: Temperature of sampling, which divides the logits.
    """

    model: torch.nn.Module
    names: Sequence[str]
    weights: Float[np.ndarray, " reward"]
    estimator: Any
    notes: Sequence[str]
    step: OptimizerStep | None = None
    max_norm: float = np.inf
    rows: int = 16
    temperature: float = 1.0

    def measured(self, batches: Sequence[Batch], progress: Progress) -> MeasuredEffect:
        """Return the effects from at least three batches, whose groups all have the same size."""
        made = [Coefficients.of(each.rewards, self.weights, self.estimator) for each in batches]
        # The batch in which most rollouts move the policy, which the first one may not do at all.
        pairs = zip(batches, made, strict=True)
        usual = max(pairs, key=lambda each: np.count_nonzero(each[1].advantages))
        step = self.step or self._plain(*usual)
        vectors = Vectors(self.model, rewards=len(self.names), batches=len(batches))
        for done, (batch, each) in enumerate(zip(batches, made, strict=True), 1):
            # TRL's loss "dapo" divides the sum over tokens by their number.
            tokens = max(float(batch.scored.sum()), 1.0) / len(batch.scored)
            vectors.add(
                batch.passes(self.model, self.rows, self.temperature),
                gradient=each.gradient,
                presence=each.presence / tokens,
                advantages=each.advantages / tokens,
                step=step,
                max_norm=self.max_norm,
            )
            progress(done, len(batches))
        rewards = np.concatenate([each.rewards for each in batches])
        found = diagnose(rewards, self.weights, self.names, estimator=self.estimator)
        std = np.array([each.varying_std or 0.0 for each in found.rewards])
        relative, shares = self.step is None, found.influence.shares
        effect = effect_of(
            vectors.products(), std, self.names, groups=len(rewards), relative=relative
        )
        notes = [*self.notes, step.not_exact, "" if vectors.exact else "from sketched gradients"]
        said = list(sentences(effect, shares, self.weights))
        return MeasuredEffect(effect, shares, said, [each for each in notes if each])

    def _plain(self, batch: Batch, made: Coefficients) -> OptimizerStep:
        """Return a step that divides the gradient by its size in the passes of a batch."""
        squares, left = {}, made.advantages[None]
        for each in batch.passes(self.model, self.rows, self.temperature):
            here, left = np.split(left, [each.rollouts], 1)
            for name, (gradient,) in each.weighted(here):
                squares[name] = squares.get(name, 0) + gradient**2
        return OptimizerStep.plain(squares)


class Vectors:
    r"""Collects the vectors of batches and returns their products.

    The vectors are kept as they are if those of all batches fit in `memory`. Otherwise each is kept
    as a count sketch: every entry is added, with a random sign, to one of `size` numbers. Over
    seeds, the mean of a product of sketches is the product, and its standard deviation is at most
    about $\sqrt 2 |a| |U| / \sqrt{\mathtt{size}}$.

    Memory: the kept vectors and, while a batch is added, K + 1 gradients in float32, 2 K + 1 sums
    of the parameter in work, and a `RolloutPass`. What is kept lies on the CPU.

    Attributes:
        exact: Whether the vectors are kept as they are.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        rewards: int,
        batches: int,
        memory: float = 1e9,
        size: int = 4096,
        seed: int = 0,
    ) -> None:
        """Choose how the vectors are kept.

        Args:
            model: The policy. Its parameters with `requires_grad` make up a vector.
            rewards: Number of rewards, K.
            batches: Number of batches that will be added.
            memory: Bytes that the vectors of all batches may take.
            size: Numbers in a sketch.
            seed: Seed of the sketches.
        """
        self._starts, total = {}, 0
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._starts[name] = total
                total += parameter.numel()
        self.exact = 8 * batches * (2 * rewards + 1) * total <= memory
        self._size, self._seed, self._rows = total if self.exact else size, seed, []

    def add(
        self,
        passes: Iterable[RolloutPass],
        *,
        gradient: np.ndarray,
        presence: np.ndarray,
        advantages: np.ndarray,
        step: OptimizerStep,
        max_norm: float,
    ) -> None:
        """Add a batch of rollouts.

        Args:
            passes: A pass for each micro-batch. A generator lets only one exist at a time.
            gradient: Coefficients $c$ [reward, rollout], for the rollouts of all passes in order.
            presence: Coefficients $D$ [reward, rollout]. For the size of the trainer's gradients,
                these and the advantages are divided by what its loss divides the sum over the
                tokens of a mean rollout by.
            advantages: Coefficients $A$ [rollout].
            step: The step of the optimizer.
            max_norm: The norm to which gradients are clipped.
        """
        count = len(presence) + 1
        numbers = np.concatenate([advantages - presence, [advantages], gradient]) / len(advantages)
        row = torch.zeros(len(numbers), self._size, dtype=torch.float64)
        sums = {}
        for each in passes:
            part, numbers = np.split(numbers, [each.rollouts], 1)
            for name, found in each.weighted(part):
                sums[name] = sums.get(name, 0) + found[:count]
                self._put(row[count:], name, found[count:])
        assert not numbers.size, "the passes have the rollouts of the coefficients"
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in sums.values()]).norm(dim=0)
        for name in list(sums):
            change = step.of(name, sums.pop(name), clip_of(norms, max_norm))
            change[:-1] = change[-1] - change[:-1]
            self._put(row[:count], name, change)
        self._rows.append(row)

    def products(self) -> np.ndarray:
        """Return the products of $a_j$ of batch f with $U_1$ to $U_K$ and $U$ of batch b.

        Memory: the kept vectors once more.

        Returns:
            Float64 array [batch f, reward j, batch b, K + 1].
        """
        # The first K + 1 of 2 K + 1 rows are steps.
        return torch.einsum("bks,fjs->fjbk", *torch.stack(self._rows).chunk(2, 1)).numpy()

    def _put(self, rows: Tensor, name: str, values: Tensor) -> None:
        """Add a parameter's part of some vectors to their rows."""
        values = values.flatten(1).to(rows)
        if self.exact:
            rows[:, self._starts[name] :][:, : values.shape[1]] += values
        else:
            source = torch.Generator().manual_seed(hash((self._seed, *name.encode())))
            places = torch.randint(2 * self._size, values.shape[1:], generator=source)
            rows.index_add_(1, places // 2, values * (places % 2 * 2 - 1))
