"""Adds up what each reward changed in a window of training steps, from the run's own batches.

The change of reward j over the steps t of a window is the sum of <a_j, step_t>, with a_j the
gradient of its expected value. A part of a step is the part of AdamW's first moment that one reward
put in since the start of the window, with the second moment of the run. The parts, and the momentum
from before the window, add up to the whole step.

No batch may meet what it put into the momentum itself. *later 1*: a_j is from the groups of the
next batch. *source left out*: from the batches t - 2 to t + 2, each without what it put in.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from benchmarks.effect._keep import LENGTH, NEAR, Flat, Kept, loaded
from benchmarks.effect._vectors import Gradients, scale

from gdpo.advantages import ESTIMATORS
from gdpo.diagnostics.effect import Coefficients

LATER, LEFT_OUT = "later 1", "source left out"

LENGTHS = (LENGTH // 2, LENGTH)


class Window:
    """Computes the account of the steps from a point on."""

    def __init__(
        self, kept: Kept, point: int, gradients: Gradients, settings: Mapping[str, Any]
    ) -> None:
        self.kept, self.point, self.gradients, self.settings = kept, point, gradients, settings
        self.coefficients, self.pushes, self.apart = {}, {}, {"advantages": 0.0, "step": 0.0}
        self.near = range(point - NEAR, point + LENGTH + NEAR)
        for step in self.near:
            self._read(step)

    def _read(self, step: int) -> None:
        """Keep what each reward put into the gradient of a step, and the gradient, clipped."""
        batch = self.kept.batches[step]
        estimator = ESTIMATORS[self.settings["estimator"]]
        made = Coefficients.of(batch.rewards, self.settings["weights"], estimator)
        self.coefficients[step] = made
        self._note("advantages", np.abs(made.advantages - batch.advantages).max())
        self._note("advantages", made.rest)
        loaded(self.gradients.model, self.kept.weights[step])
        rows = np.concatenate((made.parts, made.advantages[None]))
        push = self.gradients.of(batch.prompts, batch.completions, rows)
        push /= sum(map(len, batch.completions))
        norm = float(push[-1].norm())
        self.pushes[step] = push * min(1.0, self.settings["longest"] / (norm + 1e-6))

    def _note(self, what: str, error: float) -> None:
        self.apart[what] = max(self.apart[what], float(error))

    def record(self) -> dict[str, Any]:
        """Return the account of each length, by each way, with errors over groups."""
        steps = range(self.point, self.point + LENGTH)
        whole, carried = self._steps()
        met = {way: {batch: [] for batch in self.near} for way in (LATER, LEFT_OUT)}
        for batch in self.near:
            seen = self._groups(batch)  # large, so only one batch is kept at a time
            for step in steps:
                rows = torch.cat((whole[step], carried[step][None]))
                if step + 1 == batch:
                    met[LATER][batch].append((step, self._products(seen, rows)))
                if abs(step - batch) <= NEAR:
                    met[LEFT_OUT][batch].append((step, self._left_out(step, batch, rows, seen)))
        found: dict[str, Any] = {
            way: {length: self._added(each, length) for length in LENGTHS}
            for way, each in met.items()
        }
        return {**found, "apart": self.apart}

    def _steps(self) -> tuple[dict[int, Any], dict[int, Flat]]:
        """Return the parts of each step and the step, `[K + 1, p]`, and the old momentum's."""
        b1, _ = self.kept.group["betas"]
        first = torch.zeros_like(self.pushes[self.point])
        old = -self.kept.first[self.point]
        whole, carried = {}, {}
        for step in range(self.point, self.point + LENGTH):
            first, old = b1 * first + (1 - b1) * self.pushes[step], b1 * old
            by, moved = self._scale(step), self.kept.weights[step + 1] - self.kept.weights[step]
            carried[step] = old * by
            again = first[-1] * by + carried[step]
            self._note("step", float((again - moved).norm() / moved.norm()))
            whole[step] = torch.cat((first[:-1] * by, moved[None]))
        return whole, carried

    def _scale(self, step: int) -> Flat:
        return scale(self.kept.second[step + 1], step + 1, self.kept.group)

    def _groups(self, batch: int) -> Any:
        """Return the gradient of each reward in every group of a batch, `[group, K, p]`."""
        of, made = self.kept.batches[batch], self.coefficients[batch]
        groups, samples, _ = of.rewards.shape
        loaded(self.gradients.model, self.kept.weights[batch])
        found = []
        for group in range(groups):
            part = slice(group * samples, (group + 1) * samples)
            toward = made.gradient[:, part] / samples
            found.append(self.gradients.of(of.prompts[part], of.completions[part], toward))
        return torch.stack(found)

    @staticmethod
    def _products(toward: Any, rows: Any) -> Any:
        """Return `[group, reward, row]`."""
        return (toward @ rows.T).double().numpy()

    def _left_out(self, step: int, batch: int, rows: Flat, seen: Any) -> Any:
        """Return the products of a step with a batch near it, without the batch's own part."""
        (b1, _), count = self.kept.group["betas"], len(rows) - 2
        by = self._scale(step)
        near = range(step - NEAR, step + NEAR + 1)
        product = self._products(seen, rows) / len(near)
        for source in range(max(step - NEAR, self.point - NEAR), step + 1):
            put = (1 - b1) * b1 ** (step - source) * self.pushes[source] * by
            if source < self.point:  # a part of the momentum from before the window
                put = torch.cat((torch.zeros_like(put[:count]), put[count:], put[count:]))
            else:
                put = torch.cat((put, torch.zeros_like(put[:1])))
            other = 0.0 if source == batch else 1 / (len(near) - 1)
            product += (other - 1 / len(near)) * self._products(seen, put)
        return product

    def _added(self, met: Mapping[int, Any], length: int) -> dict[str, Any]:
        """Return the sums over the steps of a window, `[reward, K + 2]`, and their errors.

        The groups of a batch are independent, so the variance is that of their sums.
        """
        value, variance = 0.0, 0.0
        for products in met.values():
            inside = [product for step, product in products if step < self.point + length]
            if inside:
                total = np.sum(inside, axis=0)
                value = value + total.mean(0)
                variance = variance + total.var(0, ddof=1) / len(total)
        return {"value": np.asarray(value).tolist(), "error": np.sqrt(variance).tolist()}
