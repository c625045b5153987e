"""Packs micro-batches to avoid computation that does not contribute to TRL's gradient.

TRL pads every rollout to the longest prompt and completion of the generation batch, and also trains
on rollouts whose advantage is exactly 0. Within an optimizer step, a `Packer` leaves out rollouts
that cannot contribute, and fills as few micro-batches as possible with whole groups, which
`FlatRows` computes without padding. The first micro-batches of the step are then empty. Where rows
cannot be flat, it sorts rollouts by length, and trims the padding of each new micro-batch. Each
loss type keeps the normalizer of the full batch:

| loss type | normalizer | how it is preserved |
|---|---|---|
| dapo, cispo, vespo | tokens of the generation batch | TRL passes it with the batch |
| grpo, sapo, dr_grpo, luspo | rows of TRL's micro-batch | scale the loss by new / old rows |
| bnpo | tokens of TRL's micro-batch | scale the loss by new, and advantages by 1 / old tokens |

For bnpo, scaling an advantage by a positive factor scales the loss of the rollout by the same
factor. With a KL term (`beta`), no rollout is left out. Prompts are trimmed only if
positions are relative (rotary): absolute ones and virtual tokens of prompt tuning would shift. With
dropout, the gradient is the same only in distribution.

The logged means (`kl`, `entropy`, `clip_ratio/*_mean`, `cispo_clip_ratio`, `vespo/phi_seq_mean`)
are over the tokens (or rollouts) that are trained on. As in TRL, `clip_ratio/low_min` and
`high_max` are extremes within a micro-batch, averaged over micro-batches.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import (
    GRPOTrainer,
    computed_in,
    lacks,
    replaced,
    say,
    tried,
)
from gdpo.integrations.trl._flat import flat_rows_of, groups_of
from gdpo.integrations.trl._plan import (
    RolloutTokens,
    calls_needed,
    dealt,
    pieces_of,
    shortest,
    split,
)
from gdpo.integrations.trl._probe import Score, SpeedUp, lent, made_up_rows
from gdpo.integrations.trl.generation import growing_ropes, ropes

MicroBatch = dict[str, Any]
"""Maps TRL's names to tensors with one row per rollout, and to `num_items_in_batch`."""


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
_OF_THE_BATCH = {"num_items_in_batch"}

_FILLED_WITH = {"tool_mask": 1, "importance_sampling_ratio": 1}
"""Tensors that TRL pads with a value other than 0."""


def join(batches: Sequence[MicroBatch], *, padding: int = 0) -> MicroBatch:
    """Put the rows of several batches into one, with the widths of the widest.

    `padding` is the token that fills shorter prompts and completions.
    """
    filled = {**_FILLED_WITH, "prompt_ids": padding, "completion_ids": padding}
    joined = {key: value for key, value in batches[0].items() if value is not None}
    for key in joined.keys() - _OF_THE_BATCH:
        parts = [batch[key] for batch in batches]
        if parts[0].ndim == 2:
            width = max(part.shape[1] for part in parts)
            for i, part in enumerate(parts):
                missing = width - part.shape[1]
                sides = (missing, 0) if key in _PROMPT else (0, missing)
                parts[i] = pad(part, sides, value=filled.get(key, 0))
        joined[key] = torch.cat(parts)
    return joined


def micro_batch_of(ids: torch.Tensor, mask: torch.Tensor, keep: int) -> MicroBatch:
    """Return rows of which the last `keep` columns are completions."""
    start = ids.shape[1] - keep
    return {
        "prompt_ids": ids[:, :start],
        "prompt_mask": mask[:, :start],
        "completion_ids": ids[:, start:],
        "completion_mask": mask[:, start:],
    }


def loss_mask(batch: MicroBatch) -> torch.Tensor:
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def rows_of(batch: MicroBatch, *, zero_contributes: bool) -> list[RolloutTokens]:
    mask, groups = loss_mask(batch), groups_of(batch["prompt_ids"], batch["prompt_mask"])
    counted = mask.sum(1)
    contributes = torch.ones_like(counted, dtype=torch.bool)
    if not zero_contributes:
        contributes = (batch["advantages"].view(len(mask), -1) != 0).any(1) & (counted > 0)
    prompts, places = batch["prompt_mask"].sum(1), torch.arange(mask.shape[1], device=mask.device)
    lengths = ((mask != 0) * (places + 1)).amax(1)
    facts = torch.stack([prompts, lengths, counted, contributes, groups], 1).tolist()
    return [RolloutTokens(p, length, n, bool(c), group) for p, length, n, c, group in facts]


def take(
    batch: MicroBatch,
    places: Sequence[int],
    *,
    prompt: slice = slice(None),
    completion: slice = slice(None),
) -> MicroBatch:
    """Return the rows of a batch with the given indices, and those tokens of each."""
    index = torch.tensor(places, dtype=torch.long, device=batch["completion_ids"].device)
    taken = dict(batch)
    for key in taken.keys() - _OF_THE_BATCH:
        tokens = prompt if key in _PROMPT else completion
        taken[key] = batch[key][:, tokens][index] if batch[key].ndim == 2 else batch[key][index]
    return taken


_APART = ("cpu",)
"""Devices on which a call for each group takes no more time than one for several."""

_STAY = "pack_micro_batches: micro-batches remain TRL's"

_NO_GRADIENT = (
    "a trained parameter has no gradient after a step. If a skipped rollout uses it, TRL gives it "
    "a gradient of 0, which weight decay and momentum see: set pack_micro_batches=False. If "
    "nothing uses it, freeze it"
)

_OF_THE_LOSS = ("get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask")
"""Methods that TRL's loss calls. An override may depend on the scale of the advantages."""

_BY_ROWS = ("grpo", "dr_grpo", "luspo", "sapo")
_BY_TOKENS = ("bnpo",)
_BY_GENERATION_BATCH = ("dapo", "cispo", "vespo")

_SHARES = "shares"
_OF_TOKENS = ("kl", "entropy")
_OF_RATIOS = (
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
)
_OF_ROWS = ("vespo/phi_seq_mean",)


class Packer(SpeedUp):
    """Packs the micro-batches of a trainer.

    `begin` is called before every optimizer step, `packed` for each of its micro-batches.
    """

    instead = "pack_micro_batches: padding is not trimmed"

    def __init__(self, trainer: Any, *, regroups: bool) -> None:
        super().__init__(trainer)
        model = trainer.model
        adapters = getattr(model, "peft_config", {}).values()
        virtual_tokens = any(adapter.is_prompt_learning for adapter in adapters)
        self.regroups = regroups
        """Whether a rollout may move to another micro-batch of the optimizer step."""
        trims = not growing_ropes(model)
        self._trims = trims and _positions_are_relative(model) and not virtual_tokens, trims
        """Whether padding may be removed on the left, and on the right."""
        self.flat = flat_rows_of(trainer)
        self._left_of_window = 0
        self._packed: list[MicroBatch] = []

    def begin(self, micro_batches: int) -> None:
        self._left_of_window, self._packed = micro_batches, []

    def packed(self, inputs: MicroBatch) -> MicroBatch:
        if unknown := sorted(set(inputs) - {*_PROMPT, *_COMPLETION, *_OF_THE_BATCH}):
            self.say(f"they contain {', '.join(unknown)}", instead=_STAY)
            return inputs
        if not self._packed:
            buffered = self._trainer._buffered_inputs
            first = self._trainer._step % len(buffered)
            # Outside the Trainer's loop the window is unknown: pack each micro-batch separately.
            window = buffered[first : first + max(1, self._left_of_window)]
            self._packed = self.pack(window)
        self._left_of_window -= 1
        return self._packed.pop(0)

    def pack(self, window: Sequence[MicroBatch]) -> list[MicroBatch]:
        batch = join(window)
        rows = rows_of(batch, zero_contributes=self._trainer.beta != 0)
        size = len(rows) // len(window)
        if not self.regroups:
            return [
                self._trimmed(batch, rows, range(start, start + size))
                for start in range(0, len(rows), size)
            ]
        width = batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1]
        places = self._planned(rows, len(window), size * width)
        # TRL gathers metrics of every row, so each micro-batch needs equal sizes on all ranks.
        tokens = [sum(rows[i].counted for i in here) for here in places]
        facts = self._of_all_ranks([*map(len, places), *tokens]).view(-1, 2, len(window))
        sizes: list[int] = facts[:, 0].amax(0).tolist()
        sums = facts.sum(0).double()
        means = sums.mean(1, keepdim=True).clamp(min=1e-9)
        of_rows, of_tokens = sums / means
        blank = facts.new_tensor(sizes) * len(facts) / means[0] - of_rows
        shares = torch.stack([of_tokens, of_rows, blank], 1).tolist()
        if by_tokens := self._trainer.loss_type in _BY_TOKENS:
            advantages, then = batch["advantages"], loss_mask(batch).view(len(window), -1).sum(1)
            of_row = then.clamp(min=1).repeat_interleave(size)
            batch["advantages"] = advantages / of_row.view(-1, *advantages.shape[1:] and [1])
        empty = sizes.count(0)
        micro_batches = [take(batch, [])] * empty
        for i in range(empty, len(window)):
            count = len(places[i])
            filled = [*places[i], *[shortest(rows)] * (sizes[i] - count)]
            micro_batch = self._trimmed(batch, rows, filled)
            for key in set(_COMPLETION[1:]) & set(micro_batch):
                micro_batch[key][count:] = 0
            of_loss = max(1, tokens[i]) if by_tokens else 1
            if self._trainer.loss_type in _BY_ROWS:
                of_loss = sizes[i] / size
            more = (empty if i == empty else 0, micro_batch["advantages"])
            micro_batch[_SHARES] = (of_loss, *shares[i], *more)
            micro_batches.append(micro_batch)
        return micro_batches

    def look_for_gradients(self) -> None:
        """After the last backward pass of a step, say once if a parameter has no gradient.

        A module of one's own, such as an expert, may be called only for rollouts that are skipped.
        """
        trainer = self._trainer
        is_sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if self._left_of_window > 0 or is_sharded or _NO_GRADIENT in self._said:
            return
        # A hook may have updated a parameter, and removed its gradient.
        if any(
            p.requires_grad and p.grad is None and not p._post_accumulate_grad_hooks
            for p in trainer.model.parameters()
        ):
            say(trainer, _NO_GRADIENT)
            self._said.add(_NO_GRADIENT)

    def _planned(
        self, rows: Sequence[RolloutTokens], parts: int, budget: int
    ) -> Sequence[Sequence[int]]:
        """Return the places of the rows of each micro-batch, as many on each rank.

        The first micro-batches may be empty: only the last backward pass of a step is synchronized.
        """
        pieces = pieces_of(rows, budget)
        apart = self._trainer.accelerator.device.type in _APART
        calls = calls_needed(pieces, parts, 1 if apart else budget)
        wanted = max(parts, sum(row.contributes for row in rows))
        count, calls, is_off = self._of_all_ranks([wanted, calls, self.flat.is_off]).amax(0)
        if is_off:
            return split(rows, int(count), parts)
        places = [places for _, places in dealt(pieces, int(calls))]
        return [*([[]] * (parts - len(places))), *places]

    def score(self, score: Score, model: Any, *rows: Any, **options: Any) -> Any:
        """In a trial, score rows without their padding, which `packed` removes in the training."""
        batch, keep = micro_batch_of(*rows), rows[-1]
        facts = rows_of(batch, zero_contributes=True)
        batch = self._trimmed(batch, facts, range(len(facts)))
        ids, mask = (
            torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], 1)
            for what in ("ids", "mask")
        )
        width = batch["completion_ids"].shape[1]
        logps = score(model, ids, mask, width, **options)[0]
        return pad(logps, (0, keep - width)), None, None

    def _trimmed(
        self, batch: MicroBatch, rows: Sequence[RolloutTokens], places: Sequence[int]
    ) -> MicroBatch:
        lengths = [rows[i].prompt for i in places], [rows[i].completion for i in places]
        multiple = self._trainer.pad_to_multiple_of or 1
        # TRL takes a width of 1 for one value per rollout.
        prompt, completion = (
            -(-max(2, *each) // multiple) * multiple if trims and not self.is_off else None
            for each, trims in zip(lengths, self._trims, strict=True)
        )
        last = slice(prompt and -prompt, None)
        return take(batch, places, prompt=last, completion=slice(completion))

    def _of_all_ranks(self, numbers: Sequence[int]) -> torch.Tensor:
        """Gather numbers from all ranks: `[rank, number]`. Every process must call this method."""
        accelerator = self._trainer.accelerator
        return accelerator.gather(torch.tensor([list(numbers)], device=accelerator.device)).cpu()


def weighed(trainer: Any, inputs: MicroBatch, loss: Any) -> Any:
    """Return the share of the loss of a packed micro-batch, and scale its newest metrics.

    TRL logs the unweighted mean over micro-batches: the empty ones before this one count as 0. Rows
    without tokens have a weight of 1 in `vespo/phi_seq_mean`, and 0 elsewhere.

    Raises:
        ConfigError: If the advantages are not those with which the micro-batch was packed.
    """
    if _SHARES not in inputs:
        return loss
    of_loss, of_tokens, of_rows, of_blank, empty, advantages = inputs[_SHARES]
    if inputs["advantages"] is not advantages:
        raise ConfigError(
            f"{type(trainer).__name__} changes the advantages after gdpo has left out rollouts by "
            "them: change them in _generate_and_score_completions, or set pack_micro_batches=False"
        )
    of_ratios = of_tokens if trainer.importance_sampling_level == "token" else of_rows + of_blank
    metrics = trainer._metrics["train"]
    for names, share, more in (
        (_OF_TOKENS, of_tokens, 0),
        (_OF_RATIOS, of_ratios, 0),
        (_OF_ROWS, of_rows + of_blank, -of_blank),
    ):
        for name in names:
            if name in metrics:
                metrics[name][-1] = metrics[name][-1] * share + more
                metrics[name] += [0.0] * empty
    return loss * of_loss


def packer_of(trainer: Any) -> Packer | None:
    """Return the packer of a trainer's micro-batches, or None if no change is allowed or wanted.

    If none is allowed, the reason is logged.
    """
    if not trainer.args.pack_micro_batches:
        return None
    packer: Packer | None = None

    def reason() -> str | None:
        nonlocal packer
        if untouched := _untouched_because(trainer):
            return untouched
        if shared := _only_trimmed_because(trainer):
            say(trainer, f"pack_micro_batches: micro-batches are only trimmed, because {shared}")
        packer = Packer(trainer, regroups=not shared)
        return _changed_loss(trainer, packer)

    if found := tried(reason):
        say(trainer, f"{_STAY}, because {found}")
        return None
    return packer


def _changed_loss(trainer: Any, packer: Packer) -> str | None:
    window = _made_up_window(trainer)

    def log_probabilities(_: Any, ids: torch.Tensor, __: Any, keep: int, **___: Any) -> Any:
        logps = -(1.0 + ids[:, -keep:] % 5) / 4
        return logps, -logps, torch.zeros((), device=ids.device)

    with lent(trainer):
        metrics = copy.deepcopy(trainer._metrics)
        trainer._get_per_token_logps_and_entropies = log_probabilities
        trainer._metrics, trainer.current_gradient_accumulation_steps = metrics, len(window)
        theirs, ours = (
            float(
                sum(trainer._compute_loss(None, each).detach().double() for each in micro_batches)
            )
            for micro_batches in (window, packer.pack(window))
        )
    if math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-5):
        return None
    return f"TRL's loss for a made-up batch changes from {theirs:.6g} to {ours:.6g} when packed"


def _made_up_window(trainer: Any) -> list[MicroBatch]:
    batch = micro_batch_of(*made_up_rows(trainer, 8, prompt=6, completion=6))
    completions, tokens = batch["completion_ids"], batch["completion_mask"]
    advantages = [1.0, 0.0, -0.5, 2.0, 0.0, -0.2, 0.0, 1.5]
    batch |= {
        "advantages": torch.tensor(advantages, device=tokens.device),
        "old_per_token_logps": -(1.0 + completions % 3) / 4,
        "ref_per_token_logps": -(1.0 + completions % 4) / 4,
    }
    if trainer.use_vllm:
        batch["importance_sampling_ratio"] = torch.full_like(batch["old_per_token_logps"], 0.5)
    from trl.trainer.utils import split_tensor_dict

    return split_tensor_dict({**batch, "num_items_in_batch": tokens.sum()}, 2)


def _untouched_because(trainer: Any) -> str | None:
    if reason := lacks("pack_micro_batches"):
        return reason
    # Only `packed` reads these: if TRL has renamed one, its absence is the reason now.
    for read_later in ("_step", "_buffered_inputs"):
        getattr(trainer, read_later)
    parts = ("_compute_loss", "compute_loss", *_OF_THE_LOSS)
    if replaced(trainer, parts) or replaced(GRPOTrainer, parts):
        return f"{type(trainer).__name__} overrides TRL's loss"
    if trainer.loss_type not in (*_BY_ROWS, *_BY_TOKENS, *_BY_GENERATION_BATCH):
        return f"the normalizer of loss_type={trainer.loss_type!r} is not known"
    if trainer._is_vlm:
        return "the model is multimodal"
    if trainer.args.neftune_noise_alpha is not None:
        return "the noise of neftune_noise_alpha depends on the micro-batch's width"
    if trainer.args.torch_compile:
        return "torch_compile would recompile the model for every new shape"
    return _ratios_because(trainer)


def _ratios_because(trainer: Any) -> str | None:
    """Return why the ratios of new to old probabilities would change, or None."""
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    if trainer.loss_type == "vespo" and corrected:
        return "vespo also sums vLLM's importance sampling ratio over the padding"
    of_rollouts = trainer.importance_sampling_level == "sequence" or trainer.loss_type == "vespo"
    batches = trainer.args.steps_per_generation * trainer.num_iterations
    stored = corrected or trainer.args.gradient_accumulation_steps % batches
    if of_rollouts and stored and computed_in(trainer) in (torch.bfloat16, torch.float16):
        # TRL's ratio is exactly 1 before the first step. In other shapes, it would be clipped.
        return "the ratio of a rollout adds up the rounding errors of half precision"
    return None


def _only_trimmed_because(trainer: Any) -> str | None:
    if trainer.loss_type in _BY_TOKENS and trainer.beta != 0:
        return f"loss_type={trainer.loss_type!r} averages the KL term over a micro-batch's tokens"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus is averaged over a micro-batch's tokens"
    if trainer.top_entropy_quantile < 1:
        return "top_entropy_quantile selects among a micro-batch's tokens"
    if trainer.aux_loss_enabled:
        return "the expert load is balanced within a micro-batch"
    return None


def _positions_are_relative(model: Any) -> bool:
    """Return whether the model's output is unchanged when padding on the left is removed.

    TRL passes no position ids, so models count positions from the start of the padding.
    """
    config = model.config.get_text_config()
    kinds = ropes(model)
    layers = set(getattr(config, "layer_types", None) or ())
    return (
        bool(kinds)
        and all(kinds)  # layers without rotary embeddings may have other positions
        and not any("llama_4_scaling_beta" in kind for kind in kinds)
        and layers <= {"full_attention", "sliding_attention"}
        and not getattr(model, "_is_stateful", False)
    )
