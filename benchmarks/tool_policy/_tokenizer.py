"""Trains the tokenizer: byte-level BPE on the warm-start texts."""

from collections.abc import Sequence
from typing import Any

from benchmarks.tool_policy._texts import Example

PAD, END = "<|pad|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tags that become one token each, as in the tokenizers of tool-calling models."""
_GLUE = ('{"name": "', '", "parameters": {"')
"""Parts of every call that become one token each, which shortens responses by a fifth."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_PIECES = r" ?[A-Za-z]+|[0-9.]+|[^A-Za-z0-9]+?(?= [A-Za-z])|[^A-Za-z0-9]+"
"""Pattern of words, numbers and the characters between them. No token spans two matches."""


def build_tokenizer(examples: Sequence[Example], size: int) -> Any:
    """Return a byte-level BPE tokenizer with a chat template, trained on the examples.

    Args:
        examples: Prompts and responses to train on.
        size: Maximum vocabulary size, not counting the tags.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, *_ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    prompts = [message["content"] for each in examples for message in each.prompt]
    bpe.train_from_iterator([*prompts, *(each.answer for each in examples)], trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (*_TAGS, *_GLUE)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
