"""Takes one or several steps with the code of `trl-GDPO`, which is imported from a checkout.

    python -m benchmarks.ladder.trl_gdpo UPSTREAM FOLDER BATCHES LEARNING_RATE [bfloat16]

Run unchanged: the whole `GRPOTrainer` of the fork of TRL 0.18 (prompts, truncation, masks, rewards,
advantages, loss with KL, micro-batches) under the installed transformers, and the reward functions
and the system prompt of `open_r1/gsm8k.py`. Not run: vLLM (recorded tokens take the place of
`generate`), DeepSpeed, flash attention.
"""

import contextlib
import importlib.util
import io
import sys
from unittest.mock import patch

import torch
from benchmarks.ladder._cases import GSM8K
from benchmarks.ladder._recording import Step, flat, recorded
from benchmarks.ladder._stubs import stand_in


def import_from(upstream, rows):
    """Return the fork's `trl` and the module with the published rewards."""
    import datasets

    sys.path.insert(0, f"{upstream}/trl-GDPO/trl-0.18.0-gdpo")
    import trl
    from trl import import_utils

    for name, value in vars(import_utils).items():  # transformers 5 returns (bool, version)
        if name.endswith("_available") and isinstance(value, tuple):
            setattr(import_utils, name, value[0])
    stand_in("open_r1")
    data = datasets.Dataset.from_list(
        [
            {"question": row["messages"][-1]["content"], "answer": f"#### {row['gold']}"}
            for row in rows
        ]
    )
    file = f"{upstream}/trl-GDPO/open-r1/src/open_r1/gsm8k.py"
    spec = importlib.util.spec_from_file_location("published_gsm8k", file)
    published = importlib.util.module_from_spec(spec)
    with patch("datasets.load_dataset", lambda *_: {"train": data}):
        spec.loader.exec_module(published)
    assert trl.__version__.startswith("0.18"), trl.__version__
    return trl, published


def settings(trl, folder, sizes, batches, learning_rate):
    """Return the settings of gdpo_gsm8k/config.yaml, with the batch of this ladder."""
    per_device = sizes.per_update // sizes.micro_batches
    return trl.GRPOConfig(
        f"{folder}/published",
        apply_gdpo=True,
        use_cpu=True,
        bf16=False,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,  # `warmup_ratio` before transformers 5
        seed=42,
        gradient_accumulation_steps=sizes.micro_batches,
        per_device_train_batch_size=per_device,
        num_generations=sizes.samples,
        max_prompt_length=sizes.max_prompt,
        max_completion_length=sizes.max_completion,
        max_steps=batches,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def take_steps(upstream, folder, batches, learning_rate, dtype, sizes=GSM8K):
    rows = torch.load(f"{folder}/rollouts.pt", weights_only=True)
    trl, published = import_from(upstream, rows[: sizes.prompts * batches])
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer import grpo_trainer

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=dtype)
    step, batch = Step(), iter(range(batches))

    def generate(prompt_ids, **_):
        start = next(batch) * sizes.prompts
        chosen = rows[start : start + sizes.prompts]
        ids = [torch.tensor(ids) for row in chosen for ids in row["completion_ids"]]
        completions = torch.nn.utils.rnn.pad_sequence(ids, True, tokenizer.pad_token_id)
        return torch.cat([prompt_ids, completions], dim=1)

    model.generate = generate
    model.warnings_issued = {}  # an attribute of every model before transformers 5
    shuffled, plan = grpo_trainer.shuffle_tensor_dict, []

    def shuffle(batch):
        step.advantages.append(batch["advantages"].clone())
        found = shuffled({**batch, "places": torch.arange(len(batch["advantages"]))})
        plan.append([part.tolist() for part in found.pop("places").chunk(sizes.micro_batches)])
        return found

    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=[
            published.correctness_reward_func,
            published.int_reward_func,
            published.format_reward_func,
        ],
        args=settings(trl, folder, sizes, batches, learning_rate),
        train_dataset=published.dataset,
        processing_class=tokenizer,
    )
    printed = contextlib.redirect_stdout(io.StringIO())
    with printed, recorded(step), patch.object(grpo_trainer, "shuffle_tensor_dict", shuffle):
        trainer.train()
    step.parameters = flat(model.parameters())
    step.more["plan"] = plan
    torch.save(vars(step), f"{folder}/theirs.pt")


if __name__ == "__main__":
    upstream, folder, batches, learning_rate, *half = sys.argv[1:]
    dtype = torch.bfloat16 if half else torch.float32
    take_steps(upstream, folder, int(batches), float(learning_rate), dtype)
