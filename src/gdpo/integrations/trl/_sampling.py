"""Samples completions with transformers' own parts: prompts are read once, finished rows removed.

`generation.py` imports it when a trainer is created, and TRL generates if that fails.
"""

import copy
import inspect
from typing import Any

import torch
from transformers import LogitsProcessor
from transformers.cache_utils import Cache, DynamicLayer
from trl.models.utils import unwrap_model_for_generation

from gdpo.integrations.trl._adapter import agree, kept_random_states
from gdpo.integrations.trl._caches import RoomyLayer


def unwrapped_model(trainer: Any) -> Any:
    """Return a context with the model as TRL uses it to generate.

    It is unwrapped, without gradient checkpointing.
    """
    options: dict[str, Any] = {}
    if "gradient_checkpointing_kwargs" in inspect.signature(unwrap_model_for_generation).parameters:
        options["gradient_checkpointing_kwargs"] = trainer.args.gradient_checkpointing_kwargs
    return unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **options)


LEAVE_TOGETHER = 0.1
"""Share of rows that must have finished before finished rows are removed. Removal copies the
cache."""


def sample_rows(
    model: Any,
    input_ids: torch.Tensor,
    *,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    prompt_of_row: torch.Tensor,
    **model_kwargs: Any,
) -> torch.Tensor:
    """Generate rows by sampling or by greedy decoding. Several rows may share a prompt.

    Pass this function as `custom_generate` to `model.generate`, together with the prompt index of
    each row. Prompts are padded on the left. The result, `[row, position]`, is padded on the right
    as in `generate`.
    """
    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
    batch = _DecodingBatch(input_ids, model_kwargs, logits_processor)
    batch.select(prompt_of_row)
    batch.place = torch.arange(len(batch.ids), device=batch.ids.device)
    pad = generation_config._pad_token_tensor
    sequences = pad.repeat(len(batch.ids), stopping_criteria.max_length)
    sequences[:, : input_ids.shape[1]] = batch.ids
    logits = outputs.logits[:, -1][prompt_of_row].float()
    del outputs  # frees the logits, which would otherwise stay in memory during the loop
    with model._optimize_model_for_decode():
        while True:
            scores = logits_processor(batch.ids, logits)
            if generation_config.do_sample:
                tokens = torch.multinomial(scores.softmax(dim=-1), num_samples=1).squeeze(1)
            else:
                tokens = scores.argmax(dim=-1)
            tokens = tokens.where(batch.is_open, pad)
            sequences[batch.place, batch.ids.shape[1]] = tokens
            batch.ids = torch.cat([batch.ids, tokens[:, None]], dim=-1)
            batch.is_open &= ~stopping_criteria(batch.ids, None)
            left = int(batch.is_open.sum())
            if left == 0:
                return sequences[:, : batch.ids.shape[1]]
            if len(batch.ids) - left >= LEAVE_TOGETHER * len(batch.ids):
                batch.select(batch.is_open.nonzero().squeeze(1))
            logits = batch.next_logits(model)


class _DecodingBatch:
    def __init__(self, ids: torch.Tensor, model_kwargs: dict[str, Any], processors: Any) -> None:
        self.ids = ids
        self.is_open = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self.place = torch.arange(len(ids), device=ids.device)
        self._model_kwargs, self._processors = model_kwargs, processors
        layers = self._cache().layers
        for i, layer in enumerate(layers):
            if type(layer) is DynamicLayer and layer.is_initialized:
                layers[i] = RoomyLayer(layer)

    def _cache(self) -> Any:
        # transformers calls it past_key_values up to 5.23, and cache since.
        return next(value for value in self._model_kwargs.values() if isinstance(value, Cache))

    def next_logits(self, model: Any) -> torch.Tensor:
        inputs = model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=1, **self._model_kwargs
        )
        outputs = model(**inputs, return_dict=True)
        self._model_kwargs = model._update_model_kwargs_for_generation(outputs, self._model_kwargs)
        return outputs.logits[:, -1].float()

    def select(self, rows: torch.Tensor) -> None:
        """Keep rows, each as often as it is given."""
        self._cache().batch_select_indices(rows)
        self.ids, self.is_open, self.place = self.ids[rows], self.is_open[rows], self.place[rows]
        for name, value in self._model_kwargs.items():
            if isinstance(value, torch.Tensor):  # mask and positions
                self._model_kwargs[name] = value[rows]
        for processor in self._processors:  # the repetition penalty stores the padding of each row
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, torch.Tensor):
                processor.prompt_ignore_length = ignored[rows]


class _ForcedTokens(LogitsProcessor):
    """Records the scores of every step, and admits one token for each row, `[step, row]`."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.of_steps: list[torch.Tensor] = []
        self._tokens = tokens

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        tokens = self._tokens[len(self.of_steps), -len(scores) :]  # rows leave from the front
        self.of_steps.append(scores)
        return torch.full_like(scores, -torch.inf).scatter(1, tokens[:, None], 0.0)


def difference_from_generate(
    model: Any, generation_config: Any, *, dtype: torch.dtype | None = None, training: bool = False
) -> str | None:
    """Return how the scores of `sample_rows` differ from those of `generate`, or None.

    Both read two made-up prompts, of which each has two rows, and are made to choose the same
    tokens. `dtype` is the precision of the computation. None: that of the model. `training` sets
    the mode of the model during the comparison.
    """
    ends = generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    first, second = [i for i in range(len(ends) + 2) if i not in ends][:2]
    end, device = ends[0] or 0, model.device
    prompts = [[first, second, second] * 14, [second, second, first] * 14]
    ids = torch.tensor(prompts, device=device)
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    tokens = torch.tensor([[second] * 4, [end, *[second] * 3], [first] * 4], device=device)
    rows = torch.tensor([0, 1, 0, 1], device=device)
    config = copy.deepcopy(generation_config)
    config.max_new_tokens, config.min_new_tokens = len(tokens), None

    def scores(ids: torch.Tensor, mask: torch.Tensor, **how: Any) -> list[torch.Tensor]:
        seen = _ForcedTokens(tokens)
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=[seen],
            **how,
        )
        return seen.of_steps

    before = model.training
    model.train(training)
    try:
        with kept_random_states():
            theirs = scores(ids[rows], mask[rows])
            ours = scores(ids, mask, custom_generate=sample_rows, prompt_of_row=rows)
    finally:
        model.train(before)
    for step, (own, of_generate) in enumerate(zip(ours, theirs, strict=True)):
        if not agree(own, of_generate[-len(own) :], dtype or model.dtype):
            return f"in a trial, the scores of token {step + 1} differ from those of `generate`"
    return None
