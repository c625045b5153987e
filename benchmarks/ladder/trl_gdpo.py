"""Takes one or several steps with the code of `trl-GDPO`, which is imported from a checkout.

    python -m benchmarks.ladder.trl_gdpo UPSTREAM FOLDER BATCHES LEARNING_RATE [bfloat16|demo]

Run unchanged: the whole `GRPOTrainer` of the fork of TRL 0.18 (prompts, truncation, masks, rewards,
advantages, loss with KL, micro-batches) under the installed transformers, and the reward functions
and the system prompt of `open_r1/gsm8k.py`. Not run: vLLM (recorded tokens take the place of
`generate`), DeepSpeed, flash attention. With `demo`, the settings and the rewards are those of the
project of `gdpo init`.
"""

import contextlib
import importlib.util
import io
import sys
from unittest.mock import patch

import torch
from benchmarks.ladder._cases import DEMO, GSM8K
from benchmarks.ladder._recording import Step, flat, recorded
from benchmarks.ladder._stubs import stand_in

DEMO_SETTINGS = {"lr_scheduler_type": "constant", "warmup_steps": 0, "seed": 1, "beta": 0.0}
"""Settings of the demo's recipe.yaml, and TRL's default for the KL term."""


def import_from(upstream):
    """Return the fork's `trl`."""
    sys.path.insert(0, f"{upstream}/trl-GDPO/trl-0.18.0-gdpo")
    import trl
    from trl import import_utils

    for name, value in vars(import_utils).items():  # transformers 5 returns (bool, version)
        if name.endswith("_available") and isinstance(value, tuple):
            setattr(import_utils, name, value[0])
    stand_in("open_r1")
    assert trl.__version__.startswith("0.18"), trl.__version__
    return trl


def gsm8k(upstream, rows):
    """Return the published dataset, made of these rows, and the published rewards."""
    import datasets

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
    rewards = ("correctness_reward_func", "int_reward_func", "format_reward_func")
    return published.dataset, [getattr(published, name) for name in rewards]


def demo(folder, rows):
    """Return the dataset, and the rewards of the project as functions for TRL."""
    import datasets

    sys.path.insert(0, f"{folder}/project")
    from my_rewards import score_brevity
    from my_task import score_correctness

    def correctness(completions, gold, **_):
        pairs = zip(completions, gold, strict=True)
        return [score_correctness(text[0]["content"], {"answer": answer}) for text, answer in pairs]

    def brevity(completions, **_):
        return [score_brevity(text[0]["content"], {}) for text in completions]

    data = [{"prompt": row["messages"], "gold": row["gold"]} for row in rows]
    return datasets.Dataset.from_list(data), [correctness, brevity]


def settings(trl, folder, sizes, batches, **changes):
    """Return the settings of gdpo_gsm8k/config.yaml, with the batch of this ladder."""
    per_device = sizes.per_update // sizes.micro_batches
    own = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,  # `warmup_ratio` before transformers 5
        "seed": 42,
    }
    return trl.GRPOConfig(
        f"{folder}/published",
        apply_gdpo=True,
        use_cpu=True,
        bf16=False,
        **{**own, **changes},
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


def take_steps(upstream, folder, batches, learning_rate, kind):
    rows, trl = torch.load(f"{folder}/rollouts.pt", weights_only=True), import_from(upstream)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    sizes = DEMO if kind == "demo" else GSM8K
    used = rows[: sizes.prompts * batches]
    dataset, rewards = demo(folder, used) if kind == "demo" else gsm8k(upstream, used)
    changes = {"learning_rate": learning_rate, **(DEMO_SETTINGS if kind == "demo" else {})}
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
        reward_funcs=rewards,
        args=settings(trl, folder, sizes, batches, **changes),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    printed = contextlib.redirect_stdout(io.StringIO())
    with printed, recorded(step), patch.object(grpo_trainer, "shuffle_tensor_dict", shuffle):
        trainer.train()
    step.parameters = flat(model.parameters())
    step.more["plan"] = plan
    torch.save(vars(step), f"{folder}/theirs.pt")


if __name__ == "__main__":
    upstream, folder, batches, learning_rate, *kind = sys.argv[1:]
    take_steps(upstream, folder, int(batches), float(learning_rate), "".join(kind))
