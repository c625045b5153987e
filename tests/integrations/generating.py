"""Provides small models in float64, and both ways to generate with them."""

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gdpo.integrations.trl._sampling import sample_rows

TOKENS = 40
ENDS = [0, 7, 11, 19, 23]
LONGEST = 24

SHAPE = {
    "vocab_size": TOKENS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,  # wide, so that completions vary
    "bos_token_id": None,
    "eos_token_id": ENDS,
    "pad_token_id": 0,
}
GPT2 = {
    "vocab_size": TOKENS,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": ENDS,
    "pad_token_id": 0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=4)),
    # Shorter than prompts and completions.
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6)),
}


def model_of(kind, seed=0):
    """Return a model in float64, so that rounding does not change tokens."""
    torch.manual_seed(seed)
    model = MODELS[kind]().double().eval()
    model.generation_config.eos_token_id = ENDS
    model.generation_config.pad_token_id = 0
    return model


def ragged(prompts, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(1, TOKENS, length).tolist() for length in draw.integers(1, 13, prompts)]


def left_padded(rows):
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def config_of(**changed):
    greedy = {"max_new_tokens": LONGEST, "do_sample": False, "eos_token_id": ENDS}
    return GenerationConfig(**{**greedy, "pad_token_id": 0, "disable_compile": True, **changed})


def by_generate(model, prompts, prompt_of_row, **changed):
    ids, mask = left_padded([prompts[i] for i in prompt_of_row])
    return model.generate(ids, attention_mask=mask, generation_config=config_of(**changed))


def by_loop(model, prompts, prompt_of_row, **changed):
    ids, mask = left_padded(prompts)
    return model.generate(
        ids,
        attention_mask=mask,
        generation_config=config_of(**changed),
        custom_generate=sample_rows,
        prompt_of_row=torch.tensor(prompt_of_row),
    )


class FirstToken(LogitsProcessor):
    """Makes each row start with its own token, so that rows of equal prompts differ."""

    def __init__(self, start, number_of_tokens):
        self.start = start
        self.tokens = [i for i in range(1, number_of_tokens) if i not in ENDS]

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > self.start:
            return scores
        forced = torch.full_like(scores, -torch.inf)
        for i in range(len(input_ids)):
            forced[i, self.tokens[i % len(self.tokens)]] = 0
        return forced


class Watcher(LogitsProcessor):
    """Records the scores of each row by its first token, and makes sampling greedy."""

    def __init__(self, start, seen):
        self.start = start
        self.seen = seen

    def __call__(self, input_ids, scores):
        for row, ids in enumerate(input_ids):
            name = int(ids[self.start]) if len(ids) > self.start else f"row {row}"
            self.seen.setdefault((name, len(ids)), scores[row].clone())
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(1, scores.argmax(dim=-1, keepdim=True), 0.0)


def parting(model, *, watch=None):
    """Return the model with `FirstToken`, and optionally with a `Watcher`."""

    class Parting(type(model)):
        def _get_logits_processor(self, **kwargs):
            processors = super()._get_logits_processor(**kwargs)
            start = kwargs["input_ids_seq_length"]
            processors.insert(0, FirstToken(start, self.config.vocab_size))
            if watch is not None:
                processors.append(Watcher(start, watch))
            return processors

    model.__class__ = Parting
    return model


def lengths(sequences, start, ends=ENDS):
    ended = torch.isin(sequences[:, start:], torch.tensor(ends))
    first = ended.int().argmax(dim=1) + 1
    return first.where(ended.any(dim=1), sequences.shape[1] - start).tolist()
