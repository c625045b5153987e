"""Makes tiny policies with random weights, rows for them, and gradients by autograd."""

from types import SimpleNamespace

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY, WIDTH = 11, 8
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
LENGTHS = [(2, 3), (1, 5), (3, 0), (2, 1)]
"""Tokens of the prompt and of the completion of each rollout."""
TEMPERATURE = 0.7


class Noisy(torch.nn.Module):
    """Owns a parameter, and drops inputs in training."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.unused = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return torch.nn.functional.dropout(x * self.weight**2, training=self.training)


class Odd(LlamaForCausalLM):
    """Uses its parameters in all ways that need care, and has no head."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Parameter(torch.tensor([1.5]))
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.noisy, self.shared = Noisy(), torch.nn.Embedding(9, WIDTH)
        self.as_many = torch.nn.Embedding(len(LENGTHS), WIDTH)
        del self.lm_head
        for name in ("twice", "flat", "named", "overwritten", "half_used"):
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, input_ids, attention_mask):
        x = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
        self.half_used(x)
        with torch.no_grad():
            self.half_used(x)
        x = x + torch.nn.functional.linear(self.twice(x), self.twice.weight)
        x = x + self.flat(x.flatten(0, 1)).reshape(x.shape) + self.named(input=x)
        x = x + self.overwritten(x).mul_(2).tanh() + self.half_used(self.noisy(x)).tanh()
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        every = torch.arange(9, device=x.device)[None]
        x = x + self.shared(every)[0, places] + self.as_many(every[0, : len(LENGTHS)])[places // 2]
        x = torch.nn.functional.linear(x, self.model.embed_tokens.weight)
        return SimpleNamespace(logits=x.tanh() * self.scale)


def adapted(model):
    from peft import LoraConfig, get_peft_model

    linear = ["q_proj", "down_proj"]
    made = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.5, target_modules=linear))
    randomize(made)
    return made


def randomize(model):
    """Give every parameter, also norms and biases, a value of its own."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)


BY_AUTOGRAD = {
    "odd": {
        *("scale", "model.embed_tokens.weight", "twice.weight", "flat.weight", "named.weight"),
        *("shared.weight", "as_many.weight"),
    }
}
MAKERS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=WIDTH, n_layer=2, n_head=2)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES)),
    "lora": lambda: adapted(LlamaForCausalLM(LlamaConfig(**SIZES))),
    "odd": lambda: Odd(LlamaConfig(**SIZES)),
}


def policy(name, dtype=None):
    torch.manual_seed(0)
    model = MAKERS[name]()
    randomize(model)
    # In float64, the mask of gemma2's attention overflows at padding.
    return model.to(dtype or {"gemma2": torch.float32}.get(name, torch.float64)).train()


def rows(side="right", lengths=LENGTHS):
    """Return ids, mask and scored tokens; the same tokens for every side."""
    generator = torch.Generator().manual_seed(1)
    width = max(map(sum, lengths)) + 1
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask, scored = ids.clone(), ids.bool()
    for row, (prompt, completion) in enumerate(lengths):
        tokens = torch.randint(1, VOCABULARY, (prompt + completion,), generator=generator)
        first = {"right": 0, "left": width - len(tokens), "both": 1}[side]
        ids[row, first : first + len(tokens)] = tokens
        mask[row, first : first + len(tokens)] = 1
        scored[row, first + prompt : first + len(tokens)] = True
    return ids, mask, scored


def by_autograd(model):
    """Return the gradient of each rollout's log-probability: each row alone, without padding."""
    ids, mask, scored = rows()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = {name: [] for name in trained}
    training = model.training
    model.eval()
    for row in range(len(ids)):
        length = int(mask[row].sum())
        one = ids[row : row + 1, :length]
        logits = model(input_ids=one, attention_mask=torch.ones_like(one)).logits[0, :-1]
        each = (logits / TEMPERATURE).log_softmax(-1).gather(-1, one[0, 1:, None])[:, 0]
        total = each[scored[row, 1:length]].sum()
        grads = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
        for (name, parameter), grad in zip(trained.items(), grads, strict=True):
            found[name].append(torch.zeros_like(parameter) if grad is None else grad)
    model.train(training)
    return {name: torch.stack(each).detach() for name, each in found.items()}
