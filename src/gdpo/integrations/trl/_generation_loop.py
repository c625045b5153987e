"""The decoding loop of `generate` without its waste.

`generate` prepares the inputs, the cache, the logits processors and the stopping criteria as ever
and calls this loop in the place of its own. What differs: a prompt is read once for all of its
rows, and rows that have ended leave the batch.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from gdpo.integrations.trl._generation_cache import RoomyLayer

LEAVE_TOGETHER = 0.1
"""Share of the rows that must have ended before they leave: what is left of the cache is copied."""


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
    """Sample (or choose greedily) rows from prompts that several rows may share.

    To be passed as `custom_generate` to `model.generate`, together with `prompt_of_row`. The other
    arguments are those that `generate` makes.

    Args:
        model: A decoder with a `DynamicCache`.
        input_ids: `[prompt, position]`, padded on the left.
        logits_processor: Applied to float32 logits, as in `generate`.
        stopping_criteria: Say which rows have ended.
        generation_config: Sampling or greedy, and the id that pads.
        prompt_of_row: `[row]`: the prompt that each row continues.
        **model_kwargs: Mask, positions and cache.

    Returns:
        `[row, position]`: prompts and completions, padded on the right, as `generate` returns them.
    """
    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    batch = _Batch(input_ids, model._update_model_kwargs_for_generation(outputs, model_kwargs))
    batch.open_rows(prompt_of_row, logits_processor, longest=stopping_criteria.max_length)
    logits = outputs.logits[:, -1][prompt_of_row].float()
    del outputs  # or its logits would live as long as the loop
    pad = generation_config._pad_token_tensor
    with model._optimize_model_for_decode():
        while True:
            scores = logits_processor(batch.ids, logits)
            batch.append(_choose(scores, sample=generation_config.do_sample), pad)
            batch.is_open &= ~stopping_criteria(batch.ids, None)
            left = int(batch.is_open.sum())
            if left == 0:
                return batch.sequences(pad)
            if len(batch.ids) - left >= LEAVE_TOGETHER * len(batch.ids):
                batch.leave(logits_processor)
            logits = batch.next_logits(model)


def _choose(scores: torch.Tensor, *, sample: bool) -> torch.Tensor:
    if not sample:
        return scores.argmax(dim=-1)
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1).squeeze(1)


class _Batch:
    """The rows of a forward pass with all that belongs to each, and the rows that have left."""

    def __init__(self, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        self.ids = ids
        self.is_open = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self._place = torch.arange(len(ids), device=ids.device)
        self._model_kwargs = model_kwargs
        self._left: list[tuple[torch.Tensor, torch.Tensor]] = []

    def open_rows(self, prompt_of_row: torch.Tensor, processors: Any, *, longest: int) -> None:
        """Continue from the prompts to their rows."""
        cache = self._model_kwargs["past_key_values"]
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer and layer.is_initialized:
                cache.layers[i] = RoomyLayer(layer, prompt_of_row, longest=longest)
            else:
                layer.batch_select_indices(prompt_of_row)
        self._select(prompt_of_row, processors)
        self._place = torch.arange(len(self.ids), device=self.ids.device)

    def append(self, tokens: torch.Tensor, pad: torch.Tensor) -> None:
        """One more token for each row; padding where the row has ended."""
        self.ids = torch.cat([self.ids, tokens.where(self.is_open, pad)[:, None]], dim=-1)

    def leave(self, processors: Any) -> None:
        """Take out the rows that have ended."""
        self._left.append((self._place[~self.is_open], self.ids[~self.is_open]))
        rows = self.is_open.nonzero().squeeze(1)
        self._model_kwargs["past_key_values"].batch_select_indices(rows)
        self._select(rows, processors)

    def next_logits(self, model: Any) -> torch.Tensor:
        """`[row, token]` in float32, of the position after the last."""
        inputs = model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=1, **self._model_kwargs
        )
        outputs = model(**inputs, return_dict=True)
        self._model_kwargs = model._update_model_kwargs_for_generation(outputs, self._model_kwargs)
        return outputs.logits[:, -1].float()

    def sequences(self, pad: torch.Tensor) -> torch.Tensor:
        """Every row in the order in which the rows were opened, padded on the right."""
        left = [*self._left, (self._place, self.ids)]
        rows = sum(len(ids) for _, ids in left)
        result = self.ids.new_full((rows, self.ids.shape[1]), int(pad))
        for place, ids in left:
            result[place, : ids.shape[1]] = ids
        return result

    def _select(self, rows: torch.Tensor, processors: Any) -> None:
        self.ids, self.is_open, self._place = self.ids[rows], self.is_open[rows], self._place[rows]
        for name, value in self._model_kwargs.items():
            if isinstance(value, torch.Tensor):  # mask and positions
                self._model_kwargs[name] = value[rows]
        for processor in processors:  # the repetition penalty knows how far each row is padded
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, torch.Tensor):
                processor.prompt_ignore_length = ignored[rows]
