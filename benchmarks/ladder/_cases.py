"""Draws the rollouts on which both sides take their step, and writes them to a folder.

A folder holds the tiny model with its tokenizer (`model`), the rows as each side reads them
(`rows.jsonl`, `rows.parquet`) and the rollouts (`rollouts.pt`). Both sides read nothing else.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gdpo.lab.tasks.gsm8k import COMPATIBLE

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Sizes:
    """Numbers of prompts, samples and tokens. They are small, and the ratios are the published."""

    prompts: int
    samples: int
    updates: int
    """Optimizer updates per batch."""
    micro_batches: int
    """Forward passes per update."""
    max_prompt: int = 176
    max_completion: int = 224

    @property
    def per_update(self):
        return self.prompts * self.samples // self.updates


TOOL_CALLING = Sizes(prompts=16, samples=4, updates=4, micro_batches=4)
DEMO = Sizes(prompts=8, samples=16, updates=1, micro_batches=1, max_prompt=512, max_completion=8)
GSM8K = Sizes(prompts=4, samples=16, updates=1, micro_batches=4, max_prompt=1008)


def write_model(folder, seed):
    """Write a tiny random Qwen2 model, and a byte-level tokenizer with Qwen's turns."""
    alphabet = [PAD, START, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    config = Qwen2Config(
        vocab_size=len(alphabet),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model, frozen = Qwen2ForCausalLM(config), np.random.RandomState(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # the same numbers with every torch
            drawn = torch.from_numpy(frozen.normal(0.0, 0.1, parameter.shape))
            parameter.copy_(drawn + name.endswith("norm.weight"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def thinking(rng):
    """Return words whose total length is log-normal."""
    size = max(3, round(rng.lognormvariate(3.3, 0.7)))
    return "".join(rng.choice("abcdefghij klmno pqrst ") for _ in range(size)).strip() or "a"


def tool_prompt(question, _gold):
    return [{"role": "system", "content": "Call."}, {"role": "user", "content": question}]


def maths_prompt(question, gold):
    return COMPATIBLE.read_row({"question": question, "answer": f"#### {gold}"}).prompt


def tool_gold(rng):
    calls = [
        {"name": rng.choice(["add", "find"]), "parameters": {"x": rng.randint(1, 9), "y": 1}}
        for _ in range(rng.choice([1, 1, 2]))
    ]
    block = "\n".join(map(json.dumps, calls))
    kind = rng.choice(["call", "call", "call", "both", "talk"])
    call, talk = f"\n<tool_call>\n{block}\n</tool_call>", "\n<response> done </response>"
    return "<think> look </think>" + {"call": call, "both": call + talk, "talk": talk}[kind]


def tool_response(rng, gold):
    """Return a response whose two rewards differ from those of others, or between the variants."""
    body = gold.partition("</think>\n")[2]
    thought = thinking(rng)
    changed = [
        body,
        body,
        body.replace('"y": 1', '"y": 2'),
        body.replace('"y": 1', '"y": true'),  # Python's 1 == True
        body.replace('"add"', '"sub"').replace('"find"', '"sub"'),
        body.replace(', "y": 1', ""),
        body.replace('{"name"', '{\n"name"'),  # several lines
        body.replace("\n", " "),
        body.replace("</tool_call>", "").replace("</response>", ""),
        body + " bye",
        "<response> no </response>",
        "",
    ]
    text = rng.choice(changed)
    think = rng.choice([thought] * 4 + [f"{thought} <tool_call>"])
    return rng.choice([f"<think>{think}</think>\n{text}"] * 6 + [f"{think} {text}", ""])


def maths_gold(rng):
    return str(rng.choice([rng.randint(10, 99), rng.randint(1000, 9999), -rng.randint(1, 9)]))


def maths_response(rng, gold):
    number = f"{int(gold):,}"
    thought = thinking(rng)
    answer = rng.choice(
        [gold, gold, number, f"${gold}", f"{gold}.0", f"{gold} x", "7", "12", "", "x"]
    )
    enclosed = f"<answer>{answer}</answer>"
    return rng.choice(
        [f"<think>{thought}</think>\n{enclosed}"] * 5
        + [f"<think>{thought}</think>{enclosed}", enclosed, f"{thought} {answer}", gold, ""]
        + [f"<think>{thought}<answer></think>\n{enclosed}"]
    )


def draw_group(rng, number, gold, response, samples):
    """Return the responses to a prompt. Four kinds of groups have less signal than others."""
    texts = [response(rng, gold) for _ in range(samples)]
    if number % 8 == 3:  # the same response
        texts = [gold] * samples
    elif number % 8 == 5:  # different responses, and all rewards are equal
        texts = [f"{thinking(rng)} {thinking(rng)}?" for _ in range(samples)]
    elif number % 8 == 6:  # only the format varies
        texts = [gold if i % 2 else f"{gold}\n!" for i in range(samples)]
    return texts


def write_cases(folder, task, sizes, *, batches=1, spare=0, seed=0):
    """Draw and write all inputs, and return the rollouts.

    `spare` rows stand for those that follow in the dataset: they replace rows that are left out.
    """
    folder = Path(folder)
    tokenizer = write_model(folder / "model", seed)
    rng = random.Random(seed)
    gold_of, response, asked_of = {
        "tool_calling": (tool_gold, tool_response, tool_prompt),
        "gsm8k": (maths_gold, maths_response, maths_prompt),
    }[task]
    rows = []
    for i in range(sizes.prompts * batches + spare):
        gold = gold_of(rng)
        overflows = i % 8 == 2 and i < sizes.prompts * batches
        asked = f"question {i}: {thinking(rng)[:75]}" + " more" * (
            sizes.max_prompt // 5 * overflows
        )
        messages = asked_of(asked, gold)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert overflows or len(ids) <= sizes.max_prompt, len(ids)
        texts = draw_group(rng, i, gold, response, sizes.samples)
        completions = [finished(tokenizer, text, sizes.max_completion) for text in texts]
        row = {"messages": messages, "gold": gold, "prompt_ids": ids, "completion_ids": completions}
        rows.append({**row, "overflows": overflows})
    torch.save(rows, folder / "rollouts.pt")
    return rows


def finished(tokenizer, text, most):
    """Return the tokens of a response with its end, or the first `most` tokens without an end."""
    ids = tokenizer(text)["input_ids"]
    return [*ids, tokenizer.eos_token_id] if len(ids) < most else ids[:most]
