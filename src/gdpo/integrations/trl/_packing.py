"""Packed micro-batches: TRL's gradient, without the work that adds nothing to it.

TRL pads every rollout of a generation batch to its longest prompt and its longest completion, and
trains rollouts whose advantage is exactly 0. `PackedMicroBatches` takes the micro-batches of one
optimizer step, leaves out what cannot contribute, orders the rest by length and trims the padding
of each new micro-batch. Nothing crosses from one optimizer step into another.

What each loss type of TRL divides by stays that of the full batch:

| loss type | divided by | how it is kept |
|---|---|---|
| dapo, cispo, vespo | tokens of the generation batch | travels with the batch |
| grpo, sapo, dr_grpo, luspo | rows of TRL's micro-batch | advantages times rows now / rows then |
| bnpo | tokens of TRL's micro-batch | advantages times tokens now / tokens then |

A positive factor on an advantage is a factor on its loss in all of these: clipping compares ratios
of probabilities, and what else depends on the advantage depends on its sign alone.

- With a KL term (`beta`), every rollout contributes and none is left out.
- Micro-batches stay TRL's and are only trimmed where a term is averaged over whatever shares a
  micro-batch: bnpo with a KL term, the entropy bonus (`entropy_coef`, `use_adaptive_entropy`), the
  choice of high-entropy tokens (`top_entropy_quantile`), the load-balancing loss of experts.
- They stay untouched for multimodal models, under `torch_compile`, with NEFTune's noise, for vespo
  with vLLM's importance sampling (it sums over the padding, too), and for a loss that is not TRL's.
- Prompts are trimmed where positions are relative (rotary); absolute ones would shift, and so
  would the virtual tokens of prompt tuning, which stand before the padding.

With dropout the gradient is equal in distribution: other shapes draw other masks.

What TRL logs of the loss: `kl`, `entropy`, `clip_ratio/*_mean`, `cispo_clip_ratio` and
`vespo/phi_seq_mean` are means over the tokens (of what there is one of per rollout: the rollouts)
that are trained; what is left out is not counted. `clip_ratio/low_min` and `high_max` are extremes
within a micro-batch, averaged over micro-batches, as in TRL; rollouts in one now have like lengths.
"""

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch.nn.functional import pad
from trl.trainer.grpo_trainer import GRPOTrainer

MicroBatch = dict[str, Any]
"""Tensors with a row per rollout, by TRL's names, and a number for the whole batch."""


_PROMPT = ("prompt_ids", "prompt_mask")


_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)


_OF_THE_BATCH = ("num_items_in_batch",)


_FILLED_WITH = {"tool_mask": 1, "importance_sampling_ratio": 1}
"""What TRL puts where there is no token, if not 0."""


@dataclass(frozen=True)
class Row:
    """A rollout, as packing sees it.

    Args:
        prompt: Its prompt's tokens.
        completion: Tokens of its completion, up to the last one that counts.
        counted: Tokens that the loss counts.
        contributes: Whether anything of the loss depends on it.
    """

    prompt: int
    completion: int
    counted: int
    contributes: bool


def unknown_to_packing(batch: MicroBatch) -> list[str]:
    """What it holds that the functions here do not know how to cut."""
    return sorted(set(batch) - {*_PROMPT, *_COMPLETION, *_OF_THE_BATCH})


def join(batches: Sequence[MicroBatch]) -> MicroBatch:
    """One micro-batch of several that were cut from the same generation batch."""
    return {
        key: value if key in _OF_THE_BATCH else torch.cat([batch[key] for batch in batches])
        for key, value in batches[0].items()
        if value is not None
    }


def loss_mask(batch: MicroBatch) -> torch.Tensor:
    """`[row, token]`: 1 for completion tokens that the model wrote."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def rows_of(batch: MicroBatch, *, zero_contributes: bool) -> list[Row]:
    """What packing asks of every rollout, fetched from the device at once.

    Args:
        batch: TRL's.
        zero_contributes: Whether a rollout does whose advantage is 0.
    """
    mask = loss_mask(batch)
    counted = mask.sum(1)
    contributes = torch.ones_like(counted, dtype=torch.bool)
    if not zero_contributes:
        contributes = (batch["advantages"].view(len(mask), -1) != 0).any(1) & (counted > 0)
    facts = torch.stack([batch["prompt_mask"].sum(1), last_places(mask), counted, contributes], 1)
    return [Row(prompt, length, n, bool(c)) for prompt, length, n, c in facts.tolist()]


def last_places(mask: torch.Tensor) -> torch.Tensor:
    """`[row, token] -> [row]`: how many tokens there are up to the last one in the mask."""
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return ((mask != 0) * places).amax(1)


def split(rows: Sequence[Row], count: int, parts: int) -> list[list[int]]:
    """Places of the rows to train, evenly in micro-batches of like length, the longest first.

    Rows that contribute come before those that do not, among which the shortest fill up.

    Args:
        rows: Of one optimizer step.
        count: How many to train, at least one per part.
        parts: How many micro-batches.
    """
    wanted = sorted(range(len(rows)), key=lambda i: (not rows[i].contributes, rows[i].completion))[
        :count
    ]
    by_length = sorted(wanted, key=lambda i: rows[i].completion, reverse=True)
    size, more = divmod(count, parts)
    # The short ones take what does not divide, so that no micro-batch outgrows TRL's.
    sizes = [size + (i >= parts - more) for i in range(parts)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [by_length[start:end] for start, end in itertools.pairwise(ends)]


def chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """The items in lists of a size, the last one with what is left."""
    return (list(items[i : i + size]) for i in range(0, len(items), size))


def take(
    batch: MicroBatch,
    places: Sequence[int],
    *,
    prompt: int | None = None,
    completion: int | None = None,
) -> MicroBatch:
    """Some rows of it.

    Args:
        batch: With all rows.
        places: Which rows.
        prompt: Tokens to leave of prompts, on the right. None: all.
        completion: Tokens to leave of completions, on the left. None: all.
    """
    index = torch.tensor(places, device=batch["completion_ids"].device)
    taken: MicroBatch = {}
    for key, value in batch.items():
        if key in _OF_THE_BATCH:
            taken[key] = value
        elif key in _PROMPT and prompt is not None:
            taken[key] = value[:, value.shape[1] - prompt :][index]
        else:
            taken[key] = (value if value.ndim == 1 else value[:, :completion])[index]
    return taken


def widened(batches: Sequence[MicroBatch], padding: int) -> list[MicroBatch]:
    """All of them padded as TRL pads, to the longest prompt and the longest completion.

    Args:
        batches: Cut from different generation batches.
        padding: The tokenizer's padding token.
    """
    filled = {**_FILLED_WITH, "prompt_ids": padding, "completion_ids": padding}
    widths = {
        key: max(batch[key].shape[1] for batch in batches)
        for key, value in batches[0].items()
        if value.ndim == 2
    }
    return [
        {
            key: _pad(value, widths[key], filled.get(key, 0), on_left=key in _PROMPT)
            if key in widths
            else value
            for key, value in batch.items()
        }
        for batch in batches
    ]


def _pad(value: torch.Tensor, width: int, filler: int, *, on_left: bool) -> torch.Tensor:
    missing = width - value.shape[1]
    return pad(value, (missing, 0) if on_left else (0, missing), value=filler)


logger = logging.getLogger(__name__)

_OF_THE_LOSS = ("get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask")
"""What TRL's loss calls; a subclass that has its own may see that advantages are scaled."""

_BY_ROWS = ("grpo", "dr_grpo", "luspo", "sapo")
_BY_TOKENS = ("bnpo",)
_BY_GENERATION_BATCH = ("dapo", "cispo", "vespo")

_SHIFT_INVARIANT = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles do not depend on the length of the batch."""

_SHARES = "shares_of_metrics"
_OF_TOKENS = ("kl", "entropy")
_OF_RATIOS = (
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
)
_OF_ROWS = ("vespo/phi_seq_mean",)


@dataclass(frozen=True)
class Packing:
    """What may be done to micro-batches without changing their gradient.

    Args:
        regroups: Whether a rollout may change its micro-batch within an optimizer step.
        zero_contributes: Whether a rollout does whose advantage is 0.
        trims_prompts: Whether padding on the left may go.
        multiple: Sequences are padded to a multiple of this.
    """

    regroups: bool
    zero_contributes: bool
    trims_prompts: bool
    multiple: int

    def width(self, lengths: Iterable[int], padded: int) -> int:
        """Tokens to leave of sequences with these lengths."""
        return min(padded, -(-max(1, *lengths) // self.multiple) * self.multiple)

    def prompt_width(self, lengths: Iterable[int], padded: int) -> int:
        """Tokens to leave of prompts with these lengths."""
        return self.width(lengths, padded) if self.trims_prompts else padded


class PackedMicroBatches(GRPOTrainer):
    """TRL's GRPO, on packed micro-batches where its configuration says `pack_micro_batches`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Any = self.args
        self._packing = packing_of(self) if config.pack_micro_batches else None
        self._left_of_window = 0
        self._packed: list[MicroBatch] = []

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Called once at the start of every optimizer step, for all micro-batches that it has."""
        samples = super().get_batch_samples(*args, **kwargs)
        self._left_of_window = len(samples[0])
        self._packed = []
        return samples

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        if self._packing is None or not self._training():
            return inputs
        if unknown := unknown_to_packing(inputs):
            self._packing = None
            _say(self, f"micro-batches stay TRL's, because they hold {', '.join(unknown)}")
            return inputs
        if not self._packed:
            buffered: Any = self._buffered_inputs
            first = self._step % len(buffered)
            # Without the Trainer's own loop no window is known: each micro-batch is one.
            window = buffered[first : first + max(1, self._left_of_window)]
            self._packed = self._pack(window, self._packing)
        self._left_of_window -= 1
        return self._packed.pop(0)

    def _pack(self, window: Sequence[MicroBatch], packing: Packing) -> list[MicroBatch]:
        batch = join(window)
        rows = rows_of(batch, zero_contributes=packing.zero_contributes)
        size = len(rows) // len(window)
        if not packing.regroups:
            return [_trimmed(batch, rows, here, packing) for here in chunks(range(len(rows)), size)]
        wanted = max(len(window), sum(row.contributes for row in rows))
        # Ranks gather metrics of every row: a micro-batch has as many of them on each.
        count = int(self._of_all_ranks([wanted]).max())
        places = split(rows, count, len(window))
        micro_batches = [_trimmed(batch, rows, here, packing) for here in places]
        for micro_batch, here, shares in zip(
            micro_batches, places, self._shares(rows, places), strict=True
        ):
            advantages = micro_batch["advantages"]
            factor = _factor(self.loss_type, rows, here, size).to(advantages)
            micro_batch["advantages"] = advantages * factor.view(-1, *advantages.shape[1:] and [1])
            micro_batch[_SHARES] = shares
        return micro_batches

    def _shares(
        self, rows: Sequence[Row], places: Sequence[Sequence[int]]
    ) -> list[tuple[float, float]]:
        """Of each micro-batch in all tokens and in all rollouts; 1 on average."""
        tokens = self._of_all_ranks([_counted(rows, here) for here in places]).sum(0)
        of_tokens = tokens / tokens.double().mean().clamp(min=1)
        of_rows = torch.tensor([len(here) for here in places]).double()
        return list(zip(of_tokens.tolist(), (of_rows / of_rows.mean()).tolist(), strict=True))

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        if _SHARES in inputs:
            of_tokens, of_rows = inputs[_SHARES]
            per_token = self.importance_sampling_level == "token"
            self._weigh_newest(_OF_TOKENS, of_tokens)
            self._weigh_newest(_OF_RATIOS, of_tokens if per_token else of_rows)
            self._weigh_newest(_OF_ROWS, of_rows)
        return loss

    def _weigh_newest(self, names: Iterable[str], share: float) -> None:
        """TRL logs the mean over micro-batches of what it appends for each of them."""
        metrics = self._metrics["train"]
        for name in names:
            if name in metrics:
                metrics[name][-1] *= share

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """In chunks of like length where it is asked of a whole generation batch."""
        score = functools.partial(super()._get_per_token_logps_and_entropies, model)
        has_more = any(option is not None for option in options.values())
        if self._packing is None or batch_size is None or has_more or not self._training():
            return score(input_ids, attention_mask, logits_to_keep, batch_size, **options)
        start = input_ids.shape[1] - logits_to_keep
        prompts = attention_mask[:, :start].sum(1).tolist()
        lengths = last_places(attention_mask[:, start:]).tolist()
        logps = torch.zeros(input_ids[:, start:].shape, device=input_ids.device)
        for here in chunks(sorted(range(len(lengths)), key=lengths.__getitem__), batch_size):
            prompt = self._packing.prompt_width([prompts[i] for i in here], start)
            width = self._packing.width([lengths[i] for i in here], logits_to_keep)
            index = torch.tensor(here, device=input_ids.device)
            kept = slice(start - prompt, start + width)
            chunk = score(input_ids[:, kept][index], attention_mask[:, kept][index], width)[0]
            logps[index, :width] = chunk.to(logps)
        return logps, None, None

    def _of_all_ranks(self, numbers: Sequence[int]) -> torch.Tensor:
        """`[rank, number]`. Every process must call it."""
        here = torch.tensor([list(numbers)])
        if self.accelerator.num_processes == 1:
            return here
        gathered: Any = self.accelerator.gather(here.to(self.accelerator.device))
        return gathered.cpu()

    def _training(self) -> bool:
        return bool(self.model and self.model.training)


def packing_of(trainer: GRPOTrainer) -> Packing | None:
    """What may be done to the micro-batches of a trainer; None: nothing.

    Where it is not everything, the log says once why.
    """
    if reason := _untouched_because(trainer):
        _say(trainer, f"micro-batches stay TRL's, because {reason}")
        return None
    if reason := _only_trimmed_because(trainer):
        _say(trainer, f"micro-batches are only trimmed, because {reason}")
    model: Any = trainer.model
    return Packing(
        regroups=not reason,
        zero_contributes=trainer.beta != 0,
        trims_prompts=_positions_are_relative(model) and not _has_virtual_tokens(model),
        multiple=int(trainer.pad_to_multiple_of or 1),
    )


def _say(trainer: GRPOTrainer, message: str) -> None:
    if trainer.accelerator.is_main_process:
        logger.warning("pack_micro_batches: %s", message)


def _untouched_because(trainer: GRPOTrainer) -> str | None:
    own = type(trainer)._compute_loss is not PackedMicroBatches._compute_loss  # pyright: ignore[reportPrivateUsage]
    parts = ("compute_loss", *_OF_THE_LOSS)
    own = own or any(getattr(type(trainer), n) is not getattr(GRPOTrainer, n) for n in parts)
    if own:
        return f"{type(trainer).__name__} has a loss of its own"
    if trainer.loss_type not in (*_BY_ROWS, *_BY_TOKENS, *_BY_GENERATION_BATCH):
        return f"the normalizer of loss_type={trainer.loss_type!r} is not known"
    if trainer._is_vlm:  # pyright: ignore[reportPrivateUsage]
        return "the model is multimodal"
    if trainer.args.neftune_noise_alpha is not None:
        return "the noise of neftune_noise_alpha depends on the width of a micro-batch"
    if trainer.args.torch_compile:
        return "torch_compile would compile the model again for every new shape"
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    if trainer.loss_type == "vespo" and corrected:
        return "vespo sums vLLM's importance sampling ratio over the padding, too"
    return None


def _only_trimmed_because(trainer: GRPOTrainer) -> str | None:
    if trainer.loss_type in _BY_TOKENS and trainer.beta != 0:
        return f"loss_type={trainer.loss_type!r} averages the KL term over a micro-batch's tokens"
    if trainer._entropy_bonus_enabled:  # pyright: ignore[reportPrivateUsage]
        return "the entropy bonus is averaged over a micro-batch's tokens"
    if trainer.top_entropy_quantile < 1:
        return "top_entropy_quantile chooses among a micro-batch's tokens"
    if trainer.aux_loss_enabled:
        return "the experts' loads are balanced within a micro-batch"
    return None


def _positions_are_relative(model: Any) -> bool:
    """Whether a sequence scores the same after padding on its left is gone.

    TRL passes no positions, so that models count them from the start of the padding.
    """
    config = model.config.get_text_config()
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if kind]
    layers = set(getattr(config, "layer_types", None) or ())
    return (
        bool(kinds)
        and all(kind.get("rope_type") in _SHIFT_INVARIANT for kind in kinds)
        and not any("llama_4_scaling_beta" in kind for kind in kinds)
        and layers <= {"full_attention", "sliding_attention"}
        and not getattr(model, "_is_stateful", False)
    )


def _has_virtual_tokens(model: Any) -> bool:
    """Whether PEFT has put tokens of its own before the padding."""
    adapters = model.peft_config.values() if is_peft_model(model) else ()
    return any(adapter.is_prompt_learning for adapter in adapters)


def _trimmed(
    batch: MicroBatch, rows: Sequence[Row], places: Sequence[int], packing: Packing
) -> MicroBatch:
    prompt, completion = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
    return take(
        batch,
        places,
        prompt=packing.prompt_width([rows[i].prompt for i in places], prompt),
        completion=packing.width([rows[i].completion for i in places], completion),
    )


def _factor(loss_type: str, rows: Sequence[Row], places: Sequence[int], size: int) -> torch.Tensor:
    """What TRL divides by in this micro-batch over what it divided by in its own, by row.

    Args:
        loss_type: TRL's.
        rows: Of the whole window, in TRL's order.
        places: Of this micro-batch.
        size: Rows of each of TRL's micro-batches.
    """
    if loss_type in _BY_ROWS:
        return torch.full([len(places)], len(places) / size)
    if loss_type in _BY_TOKENS:
        then = [_counted(rows, here) for here in chunks(range(len(rows)), size)]
        now = _counted(rows, places)
        return torch.tensor([max(1, now) / max(1, then[i // size]) for i in places])
    return torch.ones(len(places))


def _counted(rows: Sequence[Row], places: Iterable[int]) -> int:
    return sum(rows[i].counted for i in places)
