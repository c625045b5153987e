"""Rollout files become batches of tokens, or one message that says why not."""

import shutil

import numpy as np
import pytest
from tests.engines.policy import byte_tokenizer
from tests.refusals import data_error
from tests.rollouts.built import rollout
from tests.rollouts.readers import written
from tokenizers.processors import TemplateProcessing

from gdpo.policy.effect import Policy
from gdpo.policy.files import measure_files
from gdpo.rollouts import write_rollouts

CHAT = [{"role": "user", "content": "ab"}]


@pytest.fixture
def model(tiny_policy, tmp_path):
    """A model whose tokenizer begins texts with a token, pads on the right, and has no padding."""
    folder = shutil.copytree(tiny_policy, tmp_path / "model")
    tokenizer = byte_tokenizer()
    begins = tokenizer.convert_tokens_to_ids("<|system|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A", special_tokens=[("<|system|>", begins)]
    )
    tokenizer.pad_token, tokenizer.padding_side = None, "right"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def batches(monkeypatch):
    """The batches of a measurement."""
    seen, measure = [], Policy.measured

    def kept(policy, batches, progress):
        seen[:] = batches
        return measure(policy, batches, progress)

    monkeypatch.setattr(Policy, "measured", kept)
    return seen


def rows(steps=3, samples=2, prompts=("cd", CHAT), **others):
    """Yield rollouts whose completions and rewards differ."""
    for step in range(1, steps + 1):
        for group, prompt in enumerate(prompts):
            for sample in range(samples):
                rewards = {"a": float(sample), "b": float(sample == step % samples)}
                facts = {"step": step, "group": f"{step} {group}", "rewards": rewards}
                yield {**facts, "prompt": prompt, "completion": "xyz"[: sample + 1], **others}


def measured(model, folder, records, **options):
    written.lines(folder / "rollouts" / "all.jsonl", records)
    settings = {"step": None, "groups": 1, "estimator": "grpo"} | options
    columns = {"step": "step", "group": "group"}
    return measure_files(model, [folder / "rollouts"], lambda *_: None, columns=columns, **settings)


def text_of(batch):
    """Return the text of each rollout, with its completion."""
    decode = byte_tokenizer().decode
    return [
        (decode(ids[mask.bool()]), decode(ids[scored]))
        for ids, mask, scored in zip(*batch[:3], strict=True)
    ]


def test_a_text_is_tokenized_as_it_is_and_a_chat_by_its_template(model, batches, tmp_path):
    measured(model, tmp_path, rows())
    chat = "<|user|>ab<|end|><|assistant|>"
    assert sorted(text_of(batches[0])) == [
        ("<|system|>cdx<|end|>", "x<|end|>"),
        ("<|system|>cdxy<|end|>", "xy<|end|>"),
        (f"{chat}x<|end|>", "x<|end|>"),
        (f"{chat}xy<|end|>", "xy<|end|>"),
    ]


def test_a_rollout_that_is_missing_has_no_effect(model, batches, tmp_path):
    written = list(rows(samples=3))
    found = measured(model, tmp_path, written[:5] + written[6:])
    assert [int(np.isnan(batch.rewards).sum()) for batch in batches] == [2, 0, 0]
    assert np.isfinite(found.effect.matrix).all()


def test_only_steps_of_the_last_run_with_one_group_size_count(model, batches, tmp_path):
    folder = tmp_path / "rollouts"
    for name, samples in (("first", 2), ("second", 3)):
        written.lines(folder / name / "all.jsonl", rows(samples=samples))
    measured(model, tmp_path, [], groups=100)
    assert [len(batch.rewards[0]) for batch in batches] == [3, 3, 3]


@pytest.mark.parametrize(
    "others",
    [
        {"prompt": None},
        {"completion": None},
        {"completion": [{"role": "assistant", "content": each} for each in "ab"]},
    ],
)
def test_what_is_no_prompt_with_one_message_is_refused(model, tmp_path, others):
    with data_error(r"all.jsonl, row \d: the effect needs a prompt with one message"):
        measured(model, tmp_path, rows(**others))


def test_a_text_with_tool_results_is_refused(model, saved):
    """verl writes the results of tools into the text."""
    facts = {"gts": "", "score": 0.0, "num_turns": 4}
    of_verl = [
        {"input": row["prompt"], "output": row["completion"], "step": row["step"], **facts}
        | row["rewards"]
        for row in rows(prompts=("cd", "ef"))
    ]
    file = saved("all.jsonl", of_verl)
    with data_error("the effect needs a prompt with one message"):
        measure_files(model, [file], lambda *_: None, None, 1, estimator="grpo")


def test_weights_per_prompt_are_refused(model, tmp_path):
    for step in (1, 2, 3):
        rollouts = [
            rollout(step, group, sample, {"a": float(sample)}, weights={"a": 1.0 + group})
            for group in range(2)
            for sample in range(2)
        ]
        write_rollouts(tmp_path / "rollouts" / f"step_{step:06d}.parquet", rollouts)
    with data_error("one weight per reward"):
        measure_files(model, [tmp_path / "rollouts"], lambda *_: None, None, 1, estimator="grpo")


def test_step_0_has_too_few_steps_before_it(model, tmp_path):
    with data_error("the effect needs 3 steps"):
        measured(model, tmp_path, rows(), step=0)
