"""Creates the policy, a tiny Llama with its tokenizer, and caches the policy per user.

Nothing is downloaded. A short supervised phase on careless responses (`_texts`) produces the policy
from which training on rewards starts.
"""

import hashlib
import json
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from benchmarks.tool_policy import _tokenizer
from benchmarks.tool_policy._texts import Carelessness, Example, Texts
from benchmarks.tool_policy._tokenizer import build_tokenizer

from gdpo._files import cached

Tokens: TypeAlias = list[int]

_IGNORED = -100
"""Label for tokens that the loss ignores."""

_SORTED_BATCHES = 10
"""Number of batches whose texts are sorted by length together. Sorting reduces padding, and the
order of the batches stays random."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Stores the settings of the policy."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    inner_width: int = 256
    """Width of the feed-forward blocks."""
    initial_spread: float = 0.06
    """Standard deviation of the initial weights. With transformers' default of 0.02, such a narrow
    model takes twice as long to learn to copy from its prompt."""
    vocabulary: int = 640
    """Maximum vocabulary size. The vocabulary is smaller if there are no more pairs to merge."""
    context: int = 256
    """Maximum sequence length in tokens."""
    steps: int = 500
    """Number of steps of the supervised phase."""
    batch: int = 24
    """Number of texts per supervised step."""
    learning_rate: float = 6e-3
    """Peak learning rate of the supervised phase."""
    texts: Texts = field(default_factory=Carelessness)
    """Training texts of the supervised phase."""
    seed: int = 0

    @property
    def key(self) -> str:
        """Digest (12 hex digits) of settings, code and library versions."""
        facts = {
            "settings": asdict(self),
            "code": [Path(file).read_text("utf-8") for file in (*_SOURCES, *self.texts.sources)],
            "libraries": {name: version(name) for name in _LIBRARIES},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


_SOURCES = (__file__, _tokenizer.__file__)
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class _Text:
    """Stores one supervised text as tokens."""

    prompt: Tokens
    answer: Tokens

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


def make_policy(settings: PolicySettings) -> Path:
    """Return the policy's folder, for `from_pretrained`. Train the policy if it is not cached.

    A policy is cached only when it is complete, so an interruption leaves no files.
    """
    return cached(f"tool-policy-{settings.key}", lambda folder: _build(folder, settings))


def _build(folder: Path, settings: PolicySettings) -> None:
    rng = np.random.default_rng(settings.seed)
    examples = settings.texts.draw(rng, settings.steps * settings.batch)
    tokenizer = build_tokenizer(examples, settings.vocabulary)
    with _one_thread_seeded(settings.seed):
        model = build_model(tokenizer, settings)
        texts = _tokenized(tokenizer, examples)
        _supervise(model, _batches(texts, settings.batch, rng), settings)
    tokenizer.save_pretrained(folder)
    with no_progress_bars():
        model.save_pretrained(folder)


def build_model(tokenizer: Any, settings: PolicySettings) -> Any:
    """Return a Llama with random weights from torch's global generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.width,
            intermediate_size=settings.inner_width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=settings.context,
            initializer_range=settings.initial_spread,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def _tokenized(tokenizer: Any, examples: Sequence[Example]) -> list[_Text]:
    prompts = [
        tokenizer.apply_chat_template(each.prompt, tokenize=False, add_generation_prompt=True)
        for each in examples
    ]
    answers = [each.answer for each in examples]
    ids: list[list[Tokens]] = [tokenizer(list(texts))["input_ids"] for texts in (prompts, answers)]
    end: int = tokenizer.eos_token_id
    return [_Text(prompt, [*answer, end]) for prompt, answer in zip(*ids, strict=True)]


def _batches(
    texts: Sequence[_Text], size: int, rng: np.random.Generator
) -> Generator[Sequence[_Text]]:
    """Yield batches of texts of similar length, in random order."""
    window = size * _SORTED_BATCHES
    for start in range(0, len(texts), window):
        nearby = sorted(texts[start : start + window], key=lambda text: text.length)
        for i in rng.permutation(range(0, len(nearby), size)):
            yield nearby[i : i + size]


def _supervise(model: Any, batches: Iterable[Sequence[_Text]], settings: PolicySettings) -> None:
    """Train on the responses, using AdamW with warm-up and cosine decay."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _rate(step, settings.steps)
    )
    model.train()
    for batch in batches:
        model(**_padded(batch, model.config.pad_token_id)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _rate(step: int, steps: int) -> float:
    """Return the learning-rate factor: 20 steps of warm-up, then a cosine down to 0.05."""
    return min(1.0, (step + 1) / 20) * max(0.05, 0.5 * (1 + math.cos(math.pi * step / steps)))


def _padded(batch: Sequence[_Text], pad: int) -> dict[str, Any]:
    """Return prompts and responses as tensors, padded on the right. Only responses have labels."""
    import torch

    longest = max(text.length for text in batch)
    inputs = np.full((len(batch), longest), pad)
    labels = np.full((len(batch), longest), _IGNORED)
    mask = np.zeros((len(batch), longest), dtype=np.int64)
    for i, text in enumerate(batch):
        start, end = len(text.prompt), text.length
        inputs[i, :end] = text.prompt + text.answer
        labels[i, start:end] = text.answer
        mask[i, :end] = 1
    return {
        "input_ids": torch.from_numpy(inputs),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


@contextmanager
def _one_thread_seeded(seed: int) -> Generator[None]:
    """Use a separate random state, and one torch thread for the same rounding everywhere."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_progress_bars() -> Generator[None]:
    """Turn off the progress bars of transformers, which are not useful for such a small model."""
    from transformers.utils import logging as hf

    drawn = hf.is_progress_bar_enabled()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            hf.enable_progress_bar()
