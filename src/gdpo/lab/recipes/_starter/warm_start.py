"""Makes the models that recipe.yaml trains, one per seed.

`python warm_start.py 5` makes the models for seeds 1 to 5. A model is a Llama with 86,000 random
parameters and one token per character. It is trained for a few seconds on careless answers: 75 %
are right, and 2 % are brief. To train a real model, set it in recipe.yaml and delete this file.
"""

import json
import random
import string
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

RIGHT, BRIEF = 0.75, 0.02  # shares of the answers
STEPS, BATCH, LEARNING_RATE = 150, 32, 5e-3

END, UNKNOWN = "<|end|>", "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHARACTERS = sorted(string.digits + string.ascii_lowercase + " .,:?=+-*/()\n")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Any:
    """Return a tokenizer. Only the end token is special, so a reward sees all other tokens."""
    tokens = [END, *ROLES, UNKNOWN, *CHARACTERS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Any) -> Any:
    """Return a Llama with random parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.06,  # such a narrow model learns faster with 0.06 than with 0.02
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def careless(answer: str) -> str:
    """Return "it is 1" or "it is 0", rarely without the words. The number is often right."""
    number = answer if random.random() < RIGHT else str(1 - int(answer))
    return number if random.random() < BRIEF else f"it is {number}"


def train(model: Any, tokenizer: Any, problems: list[dict[str, str]]) -> None:
    """Train on careless answers to random problems. Only the answers count in the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    for _ in range(STEPS):
        drawn = random.choices(problems, k=BATCH)
        chats = [[{"role": "user", "content": each["question"]}] for each in drawn]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        prompts = tokenizer(texts, padding=True, return_tensors="pt")
        texts = [careless(each["answer"]) + END for each in drawn]
        answers = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        both = {key: torch.cat([prompts[key], answers[key]], dim=1) for key in answers}
        ignored = torch.full_like(prompts["input_ids"], -100)
        targets = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, -100)
        model(**both, labels=torch.cat([ignored, targets], dim=1)).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def main(seeds: int) -> None:
    """Write the models for seeds 1 to `seeds`."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # so that every machine rounds in the same order
    problems = list(map(json.loads, Path("problems.jsonl").read_text("utf-8").splitlines()))
    tokenizer = make_tokenizer()
    for seed in range(1, seeds + 1):
        random.seed(seed)
        torch.manual_seed(seed)
        model = make_model(tokenizer)
        train(model, tokenizer, problems)
        for each in (model, tokenizer):
            each.save_pretrained(f"tiny_models/{seed}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
