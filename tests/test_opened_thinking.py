"""A chat template that ends the prompt with `<think>`: checks and training score the same text."""

import asyncio
import json
import shutil
from types import SimpleNamespace

import pytest

from gdpo.analysis import Rescorer
from gdpo.integrations.verl.scores import PATH, compute_score, with_messages
from gdpo.lab.evaluation.named import responder_of
from gdpo.lab.evaluation.responders import Sampling
from gdpo.lab.tasks import Problem, resolve_task
from gdpo.lab.training import check, train
from gdpo.lab.training.reward_checks import Level
from gdpo.rewards import Scorer
from gdpo.rewards.text import after_tag, completion_text, left_open
from gdpo.rollouts import read_rollouts
from gdpo.rollouts.readers import read_rollout_files

ENDS = {
    "": "",
    "<think>\n": "<think>\n",
    "<think>\n\n": "<think>\n\n",
    "<think>\n\n</think>\n\n": "",
    "<think> about it": "",
}
EACH_END = pytest.mark.parametrize("end", ENDS)
CALL = '<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
TALK = "<think> a </think>\n<response> b </response>"
REFERENCES = {
    "gsm8k": {"answer": "4"},
    "gsm8k_compatible": {"answer": "4"},
    "tool_calling": {"output": f"<think> a </think>\n{CALL}"},
    "tool_calling_compatible": {"output": TALK},
}
OWN = """
import re
from gdpo import Reward

def begins(completion, reference):
    return float(completion.startswith("<think>"))

raw = Reward("raw", begins, low=0, high=1)
opened = Reward("opened", begins, low=0, high=1, scope="opened")
"""


def opens(end):
    """Return 1 if this end of a prompt opens the tag, else 0."""
    return float(bool(left_open(end)))


@pytest.mark.parametrize(("end", "tag"), ENDS.items())
def test_a_tag_is_open_only_at_the_end_of_a_prompt(end, tag):
    assert left_open(f"Write <think>why</think>, never <think>.\n{end}") == tag


def test_only_a_reward_that_asks_for_the_tag_gets_it():
    said = after_tag("so</think>", "<think>\n")
    assert [completion_text(said, scope) for scope in ("last", "all", "opened")] == [
        *("so</think>", "so</think>"),
        "<think>\nso</think>",
    ]
    assert completion_text([{"content": "so", "opened": None}], "opened") == "so"
    assert completion_text([], "opened") == ""


@EACH_END
@pytest.mark.parametrize("name", REFERENCES)
def test_a_format_counts_the_tag_of_the_template_and_no_other(name, end):
    task, reference = resolve_task(name), REFERENCES[name]
    tag, whole = left_open(end), task.gold_completion(reference)
    rest = whole.removeprefix("<think>")
    with Scorer([task.reward("format")]) as scorer:
        texts = [after_tag(text, tag) for text in (whole, rest, f"so {whole}", f"so {rest}")]
        found = scorer.score(texts, [reference] * 4).values[:, 0].tolist()
    assert found == ([1, 1, 1, 1] if tag else [1, 0, 0, 0])


@pytest.fixture
def with_end(tiny_policy, tmp_path):
    """Copies the tiny policy, and lets its template end a prompt with an expression."""

    def copied(end):
        folder = shutil.copytree(tiny_policy, tmp_path / "m")
        template = (
            "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}{{ END }}{% endif %}"
        )
        (folder / "chat_template.jinja").write_text(template.replace("END", end))
        return folder

    return copied


@pytest.fixture
def own(own_rewards, tmp_path):
    (tmp_path / "own" / "own_rewards.py").write_text(OWN)
    return own_rewards


@EACH_END
def test_the_check_scores_reference_answers_under_the_template(load, own, with_end, end):
    model = with_end(json.dumps(end))
    rewards = f"rewards=[{{name: '{own}:raw'}}, {{name: '{own}:opened'}}, {{name: format}}]"
    found = check(load(f"model={model}", rewards))
    lines = {
        name: f
        for f in found
        for name in ("raw", "opened", "format")
        if f"reward {name} " in f.text
    }
    tag = left_open(end)
    assert [name for name, f in lines.items() if f.level is Level.NOTE] == ["raw"] * bool(tag)
    assert ("scope='opened'" in lines["raw"].text and repr(tag) in lines["raw"].text) == bool(tag)
    assert any(f"{model} opens <think>" in f.text for f in found) == bool(tag)


def test_a_setting_of_the_template_is_that_of_the_training(load, with_end):
    switch = "'<think>' if thinks else ''"
    model = with_end(switch)
    for thinks in ("true", "false"):
        kwargs = f"trainer.chat_template_kwargs={{thinks: {thinks}}}"
        found = check(load(f"model={model}", kwargs))
        assert any("opens <think>" in f.text for f in found) == (thinks == "true")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["<think>\n", "<think>\n\n</think>\n"])
def test_training_and_rescoring_give_a_reward_the_tag(load, own, with_end, end):
    model = with_end(json.dumps(end))
    rewards = f"rewards=[{{name: '{own}:raw'}}, {{name: '{own}:opened'}}]"
    run = train(load(f"model={model}", rewards)).run
    files = sorted(run.rollouts.rglob("*.parquet"))
    rollouts = [each for file in files for each in read_rollouts(file)]
    assert {each.rewards["opened"] for each in rollouts} == {opens(end)}
    assert {each.rewards["raw"] for each in rollouts} == {0.0}
    assert {each.completion[0].get("opened") for each in rollouts} == {None}
    with Rescorer(f"{own}:opened") as rescorer:
        tables = list(read_rollout_files(run.rollouts, rescore=rescorer))
    assert {value for table in tables for (value,) in table.rewards} == {opens(end)}


@EACH_END
def test_a_prompt_that_is_recorded_as_text_is_rescored_with_its_end(tmp_path, saved, end):
    texts = ["two</think>\n<answer>4</answer>", "<think>two</think>\n<answer>4</answer>"]
    record = {"input": f"2+2?{end}", "gts": "4", "score": 0.5, "step": 1}
    rows = [{**record, "output": text, "uid": f"p_1_{i}_0"} for i, text in enumerate(texts)]
    saved("1.jsonl", rows)
    with Rescorer("gsm8k") as rescorer:
        (table,) = read_rollout_files(tmp_path, rescore=rescorer)
    assert table.rewards[:, 2].tolist() == [opens(end), 1]


@EACH_END
def test_verl_gives_a_reward_the_tag(end):
    async def score(worker, outputs, kwargs):
        text = bytes(outputs[-1].response_ids).decode()
        return compute_score(
            solution_str=text,
            ground_truth={"answer": "4"},
            extra_info=kwargs["extra_info"],
            task="gsm8k",
        )

    function = {"custom_reward_function": {"path": PATH, "name": "compute_score"}}
    tokenizer = SimpleNamespace(decode=lambda ids, **_: bytes(ids).decode())
    worker = SimpleNamespace(config={"reward": function}, tokenizer=tokenizer)
    said = b"two</think>\n<answer>4</answer>"
    output = SimpleNamespace(
        prompt_ids=f"2+2?{end}".encode(), response_ids=said, response_mask=[1] * len(said)
    )
    scores = asyncio.run(with_messages(score)(worker, [output], {"extra_info": None}))
    assert scores["format"] == opens(end)
    assert scores["correctness"] == 1


def test_a_responder_knows_what_the_template_opens(with_end):
    model = with_end("'<think>\n' if messages[0]['content'] == 'a' else ''")
    answering = responder_of(str(model), Sampling(max_tokens=2), server=None, at_once=4)(None)
    asked = [Problem([{"role": "user", "content": text}], {}) for text in ("a", "bcd")]
    answered = answering.respond(asked, 0, 1)
    assert [one.opened for (one,) in answered] == ["<think>\n", ""]
