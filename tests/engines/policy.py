"""Makes the policy that engines train: a Llama with 0.3 M random weights and a byte tokenizer."""

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


SPECIALS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
"""Fields of a policy with a tenth of the weights."""


def make_policy(folder: Path, **changed) -> Path:
    """Write the policy and its tokenizer into a folder, for `from_pretrained`.

    Args:
        folder: The folder.
        changed: Fields of the policy's configuration that differ.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    config = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,  # vLLM's kernels for CPUs need heads of at least 32
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "initializer_range": 0.06,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config | changed)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer(specials=SPECIALS, chat_template=CHAT_TEMPLATE):
    """Return a tokenizer of bytes. The first of its special tokens ends and pads a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    bytes_only = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=specials[0],
        pad_token=specials[0],
        additional_special_tokens=list(specials[1:]),
        chat_template=chat_template,
        padding_side="left",
    )
