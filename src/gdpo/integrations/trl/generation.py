"""Provides a `rollout_func` for TRL that generates with transformers and skips padding.

A generation batch contains each prompt several times, and its rows end at different lengths. This
module encodes each prompt once, and removes rows from the batch when they have finished.
Transformers processes and samples the logits, and TRL tokenizes the prompts.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from trl.trainer.utils import pad

from gdpo.integrations.trl._adapter import (
    GRPOTrainer,
    end_token_ids,
    lacks,
    unwrapped_model,
)

ROW_BY_ROW = (DynamicLayer, DynamicSlidingWindowLayer)
"""Cache layers whose rows can be repeated and removed without affecting the other rows."""


COVERED_SETTINGS = frozenset(
    {
        "max_length",
        "max_new_tokens",
        "min_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "suppress_tokens",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    }
)
"""Fields of `GenerationConfig` that have the same effect as in `generate`. Each field is tested."""

_ORDINARY = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}
"""Default values of other fields. Many models set these fields explicitly."""

_BOOKKEEPING = ("transformers_version", "_from_model_config", "disable_compile", "compile_config")


def generated_by_other(trainer: Any) -> str | None:
    """Return why the trainer does not generate with `generate`, or None if it does."""
    if trainer.rollout_func is not None:
        return "the trainer has a rollout_func"
    if trainer.use_vllm:
        return "use_vllm is set"
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching is set"
    if trainer.tools or trainer.environment_factories is not None:
        return "completions call tools"
    trls: Any = GRPOTrainer
    if type(trainer)._generate_single_turn is not trls._generate_single_turn:
        return f"{type(trainer).__name__} overrides _generate_single_turn"
    return None


def not_covered(trainer: Any) -> str | None:
    """Return why this module cannot generate for a trainer, or None if it can."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed and FSDP need the same number of decoding steps on all processes"
    if trainer._is_vlm:
        return "prompts may contain images"
    if trainer.args.neftune_noise_alpha is not None:
        return "neftune_noise_alpha is set, and all rows of a prompt would share its noise"
    more = set(trainer._tokenizer.model_input_names) - {"input_ids", "attention_mask"}
    if more:
        return f"the tokenizer returns more than token ids: {', '.join(sorted(more))}"
    model = trainer.model
    if is_peft_model(model):
        if model.active_peft_config.is_prompt_learning:
            return "the adapter is a learned prompt, which changes the start of the cache"
        model = model.get_base_model()
    return model_not_covered(model) or _setting_not_covered(
        trainer.generation_config, model.generation_config
    )


def model_not_covered(model: Any) -> str | None:
    """Return why this module does not support a transformers model, or None if it does."""
    name, config = type(model).__name__, model.config
    if config.is_encoder_decoder:
        return f"{name} is an encoder-decoder"
    if config.get_text_config(decoder=True) is not config:
        return f"{name} is multimodal"
    transformers_own: Any = GenerationMixin
    if model.is_remote_code() or type(model).generate is not transformers_own.generate:
        return f"{name} has its own generation code"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} is split over several devices"
    return _cache_not_covered(model) or _dropout_not_covered(model)


def _cache_not_covered(model: Any) -> str | None:
    if not model._supports_default_dynamic_cache():
        return f"{type(model).__name__} creates its own kind of cache"
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in ROW_BY_ROW:
            return f"the cache of {type(model).__name__} has {type(layer).__name__} layers"
    return None


def _dropout_not_covered(model: Any) -> str | None:
    """Return which dropout is active, or None. With dropout, a prompt's rows would share masks."""
    for name, value in _dropouts(model):
        if isinstance(value, float) and value > 0:
            return (
                f"{name} is {value}, and TRL samples with dropout on. Set disable_dropout=True, "
                "or set dropout to 0 in the model's configuration"
            )
    return None


def _dropouts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each setting that can make a training forward pass random."""
    for key in ("dropout", "attention_dropout", "hidden_dropout"):  # some models read the config
        yield f"config.{key}", model.config.to_dict().get(key)
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            yield f"{name}.p", module.p
        for key, value in vars(module).items():
            if "drop" in key or "jitter" in key:
                yield f"{name}.{key}", value


def _setting_not_covered(chosen: Any, of_model: Any) -> str | None:
    """Return the first unsupported setting, or None. The model's settings serve as defaults."""
    settings: dict[str, Any] = of_model.to_dict()
    settings |= {k: v for k, v in chosen.to_dict().items() if v is not None}
    if settings.get("use_cache") is False:
        return "generation without a cache (use_cache=False)"
    for name, value in settings.items():
        known = name in COVERED_SETTINGS or name in _BOOKKEEPING
        if not known and value not in (None, False, _ORDINARY.get(name)):
            return f"the generation setting {name}={value!r}"
    return None


ROOM = 32
"""Number of positions to add when the preallocated tensors are full."""


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that stores keys and values in preallocated tensors.

    The layer supports the operations of a decoding loop: positions can be appended and rows
    selected. The layer cannot be cropped or reset.

    Args:
        layer: The layer that contains the prompts. This layer is emptied to free its memory.
        rows: Indices of the rows of `layer` to copy, in order. An index may occur several times.
        longest: Maximum number of positions.
    """

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, *, longest: int) -> None:
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None, "the layer contains no prompts"
        assert values is not None
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._longest = longest
        self._length = keys.shape[-2]
        layer.keys = layer.values = None
        self._all_keys = self._with_room(keys[rows])
        self._all_values = self._with_room(values[rows])
        self._show()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  signature of transformers' caches
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append positions, and return the keys and values of all positions."""
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._length > self._all_keys.shape[-2]:
            self._all_keys = self._with_room(self._all_keys)
            self._all_values = self._with_room(self._all_values)
        self._all_keys[..., start : self._length, :] = key_states
        self._all_values[..., start : self._length, :] = value_states
        return self._show()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the rows with these indices, in this order."""
        self._all_keys = self._all_keys[indices]
        self._all_values = self._all_values[indices]
        self._show()

    def _with_room(self, states: torch.Tensor) -> torch.Tensor:
        size = max(self._length, min(self._length + ROOM, self._longest))
        larger = states.new_empty((*states.shape[:-2], size, states.shape[-1]))
        larger[..., : states.shape[-2], :] = states
        return larger

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = self._all_keys[..., : self._length, :]
        self.values = self._all_values[..., : self._length, :]
        return self.keys, self.values


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

    Pass this function as `custom_generate` to `model.generate`, together with `prompt_of_row`.
    `generate` passes the other arguments.

    Args:
        model: A decoder with a `DynamicCache`.
        input_ids: Prompts `[prompt, position]`, padded on the left.
        logits_processor: Processor for the float32 logits, as in `generate`.
        stopping_criteria: Function that returns which rows have finished.
        generation_config: Selects sampling or greedy decoding, and the padding id.
        prompt_of_row: Prompt index of each row, `[row]`.
        **model_kwargs: Attention mask, positions and cache.

    Returns:
        Prompts with completions `[row, position]`, padded on the right as in `generate`.
    """
    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    batch = _Batch(input_ids, model._update_model_kwargs_for_generation(outputs, model_kwargs))
    batch.open_rows(prompt_of_row, logits_processor, longest=stopping_criteria.max_length)
    logits = outputs.logits[:, -1][prompt_of_row].float()
    del outputs  # frees the logits, which would otherwise stay in memory during the loop
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
    """Stores the rows of a forward pass with their state, and the rows that were removed."""

    def __init__(self, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        self.ids = ids
        self.is_open = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self._place = torch.arange(len(ids), device=ids.device)
        self._model_kwargs = model_kwargs
        self._left: list[tuple[torch.Tensor, torch.Tensor]] = []

    def open_rows(self, prompt_of_row: torch.Tensor, processors: Any, *, longest: int) -> None:
        """Repeat each prompt for each of its rows."""
        cache = self._model_kwargs["past_key_values"]
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer and layer.is_initialized:
                cache.layers[i] = RoomyLayer(layer, prompt_of_row, longest=longest)
            else:
                layer.batch_select_indices(prompt_of_row)
        self._select(prompt_of_row, processors)
        self._place = torch.arange(len(self.ids), device=self.ids.device)

    def append(self, tokens: torch.Tensor, pad: torch.Tensor) -> None:
        """Append one token to each row, or padding if the row has finished."""
        self.ids = torch.cat([self.ids, tokens.where(self.is_open, pad)[:, None]], dim=-1)

    def leave(self, processors: Any) -> None:
        """Remove the finished rows."""
        self._left.append((self._place[~self.is_open], self.ids[~self.is_open]))
        rows = self.is_open.nonzero().squeeze(1)
        self._model_kwargs["past_key_values"].batch_select_indices(rows)
        self._select(rows, processors)

    def next_logits(self, model: Any) -> torch.Tensor:
        """Return the float32 logits `[row, token]` of the next position."""
        inputs = model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=1, **self._model_kwargs
        )
        outputs = model(**inputs, return_dict=True)
        self._model_kwargs = model._update_model_kwargs_for_generation(outputs, self._model_kwargs)
        return outputs.logits[:, -1].float()

    def sequences(self, pad: torch.Tensor) -> torch.Tensor:
        """Return every row, in the original order, padded on the right."""
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
        for processor in processors:  # the repetition penalty stores the padding of each row
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, torch.Tensor):
                processor.prompt_ignore_length = ignored[rows]


logger = logging.getLogger(__name__)

RolloutFunction: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
"""TRL's `rollout_func`: `(prompts, trainer) -> {"prompt_ids", "completion_ids", "logprobs"}`."""


def fast_rollouts(trainer: Any, *, wanted: bool | None = None) -> RolloutFunction | None:
    """Return the `rollout_func` for this trainer, or None if TRL must generate.

    Set the attribute after TRL has created the trainer:
    `trainer.rollout_func = fast_rollouts(trainer)`.

    Completions have the same distribution as TRL's, because transformers processes and samples the
    same logits with TRL's generation configuration. Greedy completions have the same tokens. For
    the same seed, sampled completions differ from TRL's, because no random numbers are drawn for
    finished rows.

    TRL itself generates in these cases:

    - vLLM, continuous batching, a user's own `rollout_func`, tools, environments;
    - DeepSpeed and FSDP;
    - encoder-decoders, multimodal models, models on several devices, models whose cache is not for
      full or sliding-window attention, models with their own generation code, prompt-learning
      adapters;
    - nonzero dropout (TRL keeps dropout active during sampling);
    - generation settings such as beams, contrastive search, `max_time`, `stop_strings`,
      `use_cache=False` or a static cache.

    Args:
        trainer: A `GRPOTrainer` or a subclass.
        wanted: Where to use the function. None: only on the CPU, where it is faster. True: on every
            device. False: never.

    Returns:
        The function, or None. If the function should be used but does not support the trainer, the
        main process logs the reason as a warning.
    """
    on_cpu = trainer.accelerator.device.type == "cpu"
    if wanted is False or (wanted is None and not on_cpu):
        return None
    reason = lacks("fast_generation", trainer)
    if reason is None:
        other = generated_by_other(trainer)
        if other is not None and wanted is None:
            return None  # no warning, because the user has chosen a different way to generate
        reason = other or not_covered(trainer)
    if reason is None:
        return rollouts
    if trainer.accelerator.is_main_process:
        logger.warning("fast_generation does not apply, so TRL generates: %s", reason)
    return None


def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Generate a completion for each prompt of a generation batch.

    Args:
        prompts: Texts or conversations, with one entry per completion.
        trainer: A trainer that `fast_rollouts` supports.

    Returns:
        A dict with `prompt_ids` and `completion_ids`, each with one list of token ids per prompt.
        The entry `logprobs` is None, so the trainer computes the log-probabilities.
    """
    prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": complete(prompt_ids, trainer),
        "logprobs": None,
    }


def complete(prompt_ids: Sequence[Sequence[int]], trainer: Any) -> list[list[int]]:
    """Return the token ids of each prompt's completion, including the end token.

    Args:
        prompt_ids: Token ids of this process's prompts. Identical prompts are encoded once.
        trainer: The trainer, whose model, generation configuration and padding are used. As in
            TRL's own generation, the model is unwrapped and gradient checkpointing is off.
    """
    places = {ids: i for i, ids in enumerate(dict.fromkeys(map(tuple, prompt_ids)))}
    device = trainer.accelerator.device
    prompts = [torch.tensor(ids) for ids in places]
    input_ids = _left_padded(prompts, trainer._tokenizer.pad_token_id, trainer)
    attention_mask = _left_padded([torch.ones_like(ids) for ids in prompts], 0, trainer)
    with unwrapped_model(trainer) as model:
        sequences = model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=trainer.generation_config,
            custom_generate=sample_rows,
            prompt_of_row=torch.tensor([places[tuple(ids)] for ids in prompt_ids], device=device),
        )
    completions = sequences[:, input_ids.shape[1] :]
    return [_until_end(ids, set(end_token_ids(trainer))) for ids in completions.tolist()]


def _left_padded(rows: list[torch.Tensor], value: int, trainer: Any) -> torch.Tensor:
    return pad(
        rows,
        padding_value=value,
        padding_side="left",
        pad_to_multiple_of=trainer.pad_to_multiple_of,
    )


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)
