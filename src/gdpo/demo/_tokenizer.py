"""The demo's tokenizer: byte-level BPE, trained on the task's own texts."""

from collections.abc import Sequence
from typing import Any

from gdpo.demo._texts import Example

PAD, END = "<|pad|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""One token each, as in the tokenizers of models that are made for tools."""
_GLUE = ('{"name": "', '", "parameters": {"')
"""One token each, because every call has them: answers get a fifth shorter, so the demo faster."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_PIECES = r" ?[A-Za-z]+|[0-9.]+|[^A-Za-z0-9]+?(?= [A-Za-z])|[^A-Za-z0-9]+"
"""Words, numbers, and what stands between them: a token is never longer than one of these."""


def build_tokenizer(examples: Sequence[Example], size: int) -> Any:
    """A byte-level BPE tokenizer, trained on these texts, with a chat template.

    Args:
        examples: Their prompts and answers are trained on.
        size: The most tokens, the fixed ones left out.
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
