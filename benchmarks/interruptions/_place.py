"""Prepares the run to interrupt: a random tiny policy, rows, a reward that can sleep, a recipe."""

import json
from pathlib import Path

STEPS = 12

SLEEPS_S = 40
"""Seconds per step once the file that SWITCH names exists: 8 samples of 5 s."""

_REWARD = """
import os, time
from gdpo import Reward

def remainder(completion, reference):
    if os.path.exists(os.environ["SWITCH"]):
        time.sleep(5)
    return len(completion) % 5 / 5

def vowels(completion, reference):
    return sum(c in "aeiou" for c in completion) / max(1, len(completion))

remainder = Reward("remainder", remainder, low=0, high=1)
vowels = Reward("vowels", vowels, low=0, high=1)
"""

_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def prepare(folder: Path) -> None:
    """Write all that the trials share."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "sleepy.py").write_text(_REWARD)
    rows = [{"question": f"{i} + {i}?", "answer": f"Twice {i}. #### {2 * i}"} for i in range(160)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _make_policy(folder / "policy")


def recipe(folder: Path, trial: Path, save_steps: int) -> Path:
    """The recipe of a trial, whose run lies in its folder."""
    path = trial / "recipe.yaml"
    path.write_text(f"""task: gsm8k
model: {folder / "policy"}
name: run
runs_dir: {trial}
data: {{source: {folder / "rows.jsonl"}}}
rewards: [{{name: "sleepy:remainder"}}, {{name: "sleepy:vowels"}}]
batch: {{prompts: 2, samples: 4, micro_batch: 4}}
trainer: {{max_completion_length: 24, max_steps: {STEPS}, save_steps: {save_steps}, seed: 1,
  learning_rate: 1.0e-3, lr_scheduler_type: constant, use_cpu: true, bf16: false,
  gradient_checkpointing: false}}
""")
    return path


def _make_policy(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(specials + alphabet)}, merges=[])
    )
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=letters,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=specials[1:],
        chat_template=_TEMPLATE,
        padding_side="left",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=len(specials + alphabet), **shape, **heads, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)
