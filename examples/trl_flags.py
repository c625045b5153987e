"""Compare the advantages of TRL and gdpo for each of TRL's flags, on one step of a tiny model."""

from pathlib import Path

from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, watch
from gdpo.rollouts import read_rollouts

letters = Tokenizer(models.WordLevel({t: i for i, t in enumerate("_$abcdefgh")}, unk_token="_"))
letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
letters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="_", eos_token="$")
shape = LlamaConfig(
    vocab_size=10,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=1,
)


def vowels(completions, **_):
    return [10.0 * sum(letter in "ae" for letter in text) for text in completions]


def starts_with_a(completions, **_):
    return [float(text.startswith("a")) for text in completions]


def brevity(completions, **_):
    return [-len(text) / 1000 for text in completions]


def advantages(trainer_class, config_class, folder, **flags):
    set_seed(0)
    config = config_class(
        output_dir="out",
        max_steps=1,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=12,
        reward_weights=[1.0, 0.5, 0.25],
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **flags,
    )
    trainer = trainer_class(
        LlamaForCausalLM(shape),
        [vowels, starts_with_a, brevity],
        config,
        train_dataset=Dataset.from_dict({"prompt": [*"abcdefgh"]}),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    if trainer_class is GRPOTrainer:
        watch(trainer, rollouts_dir=folder)
    trainer.train()
    file = Path(folder) / "step_000001.parquet"
    return [rollout.advantage for rollout in read_rollouts(file)]


PAIRS = {
    "grpo": {},
    "grpo_batch_std": {"scale_rewards": "batch"},
    "grpo_no_std": {"scale_rewards": "none"},
    "gdpo": {"multi_objective_aggregation": "normalize_then_sum"},
}
for estimator, flags in PAIRS.items():
    trl = advantages(GRPOTrainer, GRPOConfig, f"trl/{estimator}", **flags)
    ours = advantages(
        GDPOTrainer,
        GDPOConfig,
        f"ours/{estimator}",
        advantage=estimator,
        fast_generation=False,
        rollouts_dir=f"ours/{estimator}",
    )
    largest = max(abs(a) for a in ours)
    difference = max(abs(a - b) for a, b in zip(ours, trl, strict=True))
    print(f"{estimator:14} largest advantage {largest:5.2f}, largest difference {difference:.0e}")
