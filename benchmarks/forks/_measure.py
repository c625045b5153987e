"""Measures policies on fresh samples: mean rewards, and the state that a fork starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.forks._fork import Trained, Weights
from benchmarks.forks._tasks import ForkedTask

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.looks import OF_INFLUENCE
from gdpo.integrations.trl.generation import complete


@dataclass(frozen=True, slots=True)
class Samples:
    """Stores fresh samples of one policy."""

    prompts: list[list[int]]
    """Token ids of the prompt of each rollout."""
    completions: list[list[int]]
    rewards: Any
    """`[prompt, sample, reward]`."""


class Fresh:
    """Draws fresh samples on problems that no run is trained on, always with the same seed."""

    def __init__(self, run: Trained, task: ForkedTask, samples: int, rows: int = 512) -> None:
        """Tokenize the problems of a task. `rows`: rollouts in one forward pass."""
        self.trainer, self.problems, self.samples = run.trainer, task.problems(), samples
        self.rows = rows
        self.tokenizer = run.trainer.processing_class
        ids, _, _ = run.trainer._tokenize_prompts([each.prompt for each in self.problems])
        self.prompts = [list(each) for each in ids for _ in range(samples)]
        self.names = [reward.name for reward in run.trainer.scorer.rewards]

    def draw(self, weights: Weights) -> Samples:
        """Return rollouts of the policy with these weights."""
        self._load(weights)
        completions: list[list[int]] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            for start in range(0, len(self.prompts), self.rows):
                completions += complete(self.prompts[start : start + self.rows], self.trainer)
        texts = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        references = [each.reference for each in self.problems for _ in range(self.samples)]
        lengths = [len(each) for each in completions]
        scores = self.trainer.scorer.score(texts, references, num_tokens=lengths)
        shape = (len(self.problems), self.samples, len(self.names))
        return Samples(self.prompts, completions, scores.values.reshape(shape))

    def log_probabilities(self, weights: Weights, samples: Samples) -> Any:
        """Return the log-probability of each completion under other weights, `[rollout]`."""
        self._load(weights)
        model, pad = self.trainer.model, self.tokenizer.pad_token_id
        found = np.empty(len(samples.completions))
        rows = list(zip(samples.prompts, samples.completions, strict=True))
        order = np.argsort([len(p) + len(c) for p, c in rows])
        for start in range(0, len(rows), self.rows):
            chosen = [rows[i] for i in order[start : start + self.rows]]
            ids, mask, scored = (each.to(model.device) for each in padded(chosen, pad))
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            picked = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
            total = (picked * scored[:, 1:]).sum(1, dtype=torch.float64)
            found[order[start : start + self.rows]] = total.cpu().numpy()
        return found

    def _load(self, weights: Weights) -> None:
        self.trainer.model.load_state_dict(weights)
        self.trainer.model.eval()


def padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[Any, Any, Any]:
    """Return ids, attention mask and scored tokens of prompts and completions, `[row, token]`."""
    width = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.full((len(rows), width), pad)
    mask, scored = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(rows):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        mask[row, :end] = 1
        scored[row, len(prompt) : end] = True
    return ids, mask, scored


def state(rewards: Any, names: Sequence[str], estimator: str, ranges: Mapping[str, Any]) -> Any:
    """Return what the instrument says about a state, from fresh samples with equal weights."""
    low, high = ({n: r[i] for n, r in ranges.items()} for i in (0, 1))
    diagnosis = diagnose(rewards, None, names, estimator=estimator, low=low, high=high)
    spread = rewards.std(axis=1, ddof=1)
    varies = spread > 1e-9
    found = {
        finding.rewards[0]: finding
        for finding in diagnosis.findings
        if finding.kind in OF_INFLUENCE
    }
    return {
        each.name: {
            "mean": float(rewards[..., k].mean()),
            "std": float(spread[varies[:, k], k].mean()) if varies[:, k].any() else 0.0,
            "varies": float(varies[:, k].mean()),
            "share": float(diagnosis.influence.shares[k]),
            "margin": float(diagnosis.influence.margins[k]),
            "finding": found[each.name].kind.value if each.name in found else "",
        }
        for k, each in enumerate(diagnosis.rewards)
    }


def effect(before: Any, after: Any) -> tuple[list[float], list[float]]:
    """Return the difference of the mean rewards and its standard error, paired by prompt."""
    apart = (before - after).mean(axis=1)
    errors = apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
    return apart.mean(axis=0).tolist(), errors.tolist()


def weighed(samples: Samples, logs: Any, others: Any) -> Any:
    """Return rewards whose mean is the policy's, by importance weights, `[prompt, sample, reward]`.

    The mean over the group is subtracted before it is weighed, which has no effect on the
    expectation and makes the variance small.
    """
    shape = samples.rewards.shape[:2]
    ratio = np.exp(others - logs).reshape(*shape, 1)
    mean = samples.rewards.mean(axis=1, keepdims=True)
    factor = shape[1] / (shape[1] - 1)  # the mean over the group contains the sample itself
    return mean + factor * (ratio - 1) * (samples.rewards - mean)
