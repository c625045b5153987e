# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Switch a TRL script to GDPO
#
# In this tutorial, you train the same policy twice with TRL: first with GRPO, then with GDPO. You
# need the `train` extra. The training takes a minute, without a GPU or network. The model is a
# transformer with two layers and random weights. It generates letters.
#
# ## A policy and two rewards
#
# `vowels` gives 10 for each letter `a` or `e` (0 to 120). `starts_with_a` is 0 or 1. A completion
# can get the maximum of both.

# %%
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

LETTERS = "abcdefgh."
VOCABULARY = {token: place for place, token in enumerate(["<pad>", "<end>", *LETTERS])}

words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
words.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def policy():
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def vowels(completions, **_):
    return [10.0 * sum(letter in "ae" for letter in text) for text in completions]


def starts_with_a(completions, **_):
    return [float(text.startswith("a")) for text in completions]


prompts = Dataset.from_list([{"prompt": first + second} for first in LETTERS for second in LETTERS])
settings = {
    "output_dir": "out",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 12,
    "learning_rate": 3e-3,
    "max_steps": 60,
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 0,
}

# %% [markdown]
# ## Before: TRL's trainer

# %%
# %%capture
from trl import GRPOConfig, GRPOTrainer

before = GRPOTrainer(
    model=policy(),
    reward_funcs=[vowels, starts_with_a],
    args=GRPOConfig(**settings),
    train_dataset=prompts,
    processing_class=tokenizer,
)
before.train()

# %% [markdown]
# ## After: change one import
#
# ```diff
# -from trl import GRPOConfig, GRPOTrainer
# +from gdpo.integrations.trl import GDPOConfig as GRPOConfig, GDPOTrainer as GRPOTrainer
# ```
#
# The reward functions stay unchanged. Weights can be set by name.

# %%
# %%capture
from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

after = GDPOTrainer(
    model=policy(),
    reward_funcs=[vowels, starts_with_a],
    args=GDPOConfig(
        advantage="gdpo",
        reward_weights={"vowels": 1.0, "starts_with_a": 1.0},
        rollouts_dir="out/rollouts",
        **settings,
    ),
    train_dataset=prompts,
    processing_class=tokenizer,
)
after.train()

# %% [markdown]
# ## What changed
#
# The output shows the step at which the mean of five steps first reached a threshold. Both runs
# learn `vowels` at about the same step. Within a group, the standard deviation of `starts_with_a`
# is at most 0.5, and that of `vowels` is about 15. GRPO adds the rewards, so it learns
# `starts_with_a` later.


# %%
def curve(trainer, reward):
    key = f"rewards/{reward}/mean"
    return [entry[key] for entry in trainer.state.log_history if key in entry]


for reward, threshold in (("vowels", 96), ("starts_with_a", 0.8)):
    for name, trainer in (("GRPO", before), ("GDPO", after)):
        means = curve(trainer, reward)
        windows = [sum(means[i : i + 5]) / 5 for i in range(len(means) - 4)]
        step = next((i + 5 for i, mean in enumerate(windows) if mean >= threshold), None)
        print(f"{reward:14} {name}: {threshold} reached at step {step}, last mean {means[-1]:.2f}")

# %% [markdown]
# This is the result of one seed. [Compare two estimators](compare_estimators.py) uses several seeds.
#
# `GDPOTrainer` also logs metrics for each reward, such as the share of zero-variance groups and the
# influence share. It saved the rollouts of each step, which `gdpo analyze` reads:

# %% language="bash"
# gdpo analyze out/rollouts --output none

# %% [markdown]
# ## What to read next
#
# - [Use GDPO in a TRL script](../how-to/trl.md): options, metrics and limits.
# - [From TRL's flags](../how-to/from_trl_flags.md): how gdpo's estimators differ from TRL's own GDPO.
