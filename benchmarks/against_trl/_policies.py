"""Random models, and generation with given completion lengths."""

import statistics

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

BYTES = 256
END, FIRST = 0, 10


def small_llama(vocabulary):
    """Return a random Llama model with 4 layers of width 256."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=1024,
            eos_token_id=END,
            pad_token_id=END,
            bos_token_id=None,
            tie_word_embeddings=True,
        )
    )


def qwen_1_5b(vocabulary):
    """Return a random model with the shape of Qwen2.5-1.5B."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            eos_token_id=END,
            pad_token_id=END,
            bos_token_id=None,
            tie_word_embeddings=True,
        )
    )


def byte_tokenizer():
    alphabet = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return fast(model, "<|end|>")


def numbered_tokenizer(size):
    """Return a tokenizer that writes token i as `<i>`."""
    vocabulary = {f"<{i}>": i for i in range(size)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<1>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(model, f"<{END}>")


def fast(model, end):
    return PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token=end, pad_token=end, padding_side="left"
    )


def log_normal(mean, longest, rows=64):
    """Return quantiles of a log-normal distribution with this mean and maximum, shuffled."""
    normal = [statistics.NormalDist().inv_cdf((i + 0.5) / rows) for i in range(rows)]
    spreads = np.linspace(0.05, 2, 400)
    shapes = np.exp(np.outer(spreads, normal))
    best = np.abs(shapes.max(axis=1) / shapes.mean(axis=1) - longest / mean).argmin()
    lengths = np.maximum(np.round(shapes[best] * longest / shapes[best].max()), 2).astype(int)
    return np.random.default_rng(0).permutation(lengths).tolist()


class GivenLengths(LogitsProcessor):
    """Makes row i of a batch end at a given length.

    Row i starts with a token that identifies it, so that its length does not depend on its position
    in the batch.
    """

    def __init__(self, start, lengths):
        self.start = start
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids, scores):
        step = input_ids.shape[1] - self.start
        rows = torch.arange(len(input_ids))
        if step == 0:
            scores[:] = -torch.inf
            scores[rows, FIRST + rows] = 0.0
            return scores
        ends = self.lengths[input_ids[:, self.start] - FIRST] <= step + 1
        scores[:, END] = -torch.inf
        scores[ends] = -torch.inf
        scores[ends, END] = 0.0
        return scores


def with_given_lengths(model, lengths):
    """Return the model with `GivenLengths` in its `generate`, which TRL and gdpo both call."""

    class WithGivenLengths(type(model)):
        def _get_logits_processor(self, **kwargs):
            processors = super()._get_logits_processor(**kwargs)
            processors.append(GivenLengths(kwargs["input_ids_seq_length"], lengths))
            return processors

    model.__class__ = WithGivenLengths
    model.generation_config.eos_token_id = END
    return model
