"""Tests that every path to a reward passes the model's own text, and nothing that a tool returned.

Each path scores 1,000 drawn conversations. The messages of tools and users, and the arguments of
tool calls, contain TOOL, which the model never writes. Each reward returns 1 if it gets anything
but the text that the model wrote.
"""

import asyncio
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
from tests.integrations.nemo_rl.recorded import environment
from tests.refusals import config_error
from tests.rollouts.built import rollout
from tests.rollouts.readers import written

from gdpo.analysis import Rescorer
from gdpo.analysis.rescore import MIXED
from gdpo.integrations.verl import compute_score
from gdpo.integrations.verl.scores import PATH, with_messages
from gdpo.rewards import Reward, score
from gdpo.rewards.text import completion_text, from_file
from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import RolloutText, read_rollout_files
from gdpo.rollouts.readers.columns import texts_of
from gdpo.rollouts.readers.formats import FORMATS

COUNT = 1000
NAMES = ("last", "every", "turn")


def is_not_last(text, reference):
    return float(text != reference["last"])


def is_not_every(text, reference):
    return float(text != reference["every"])


def has_result(messages, reference):
    """Return 1 if the last message, which is scored, is not the model's."""
    return float("TOOL" in str(messages[-1].get("content")))


rewards = [
    Reward("last", is_not_last, 0, 1),
    Reward("every", is_not_every, 0, 1, scope="all"),
    Reward("turn", has_result, 0, 9, of="turn"),
]
last, every, turn = rewards
of_text = [last, every]
HERE = f"{__name__}:"


def drawn_content(draw, text):
    parts = [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]
    return draw.choice([text, text, parts, [{"type": "image"}, *parts]])


def drawn_message(draw, *, models):
    if not models:
        role = draw.choice(["tool", "tool", "user", "system"])
        return {"role": role, "content": drawn_content(draw, f"TOOL {draw.random()}")}
    said = drawn_content(draw, f"It is {draw.random()}.")
    content = draw.choice([said, said, "", " \n", [], None])
    calls = [{"function": {"name": "look", "arguments": {"at": "TOOL"}}}]
    return {"role": "assistant", "content": content, **draw.choice([{}, {"tool_calls": calls}])}


def drawn(seed=0):
    """Return conversations that begin and end with any role. The model has no two in a row."""
    draw, talks = random.Random(seed), []
    for _ in range(COUNT):
        talk = []
        for _ in range(draw.randint(1, 6)):
            models = draw.random() < 0.6 and not (talk and talk[-1]["role"] == "assistant")
            talk.append(drawn_message(draw, models=models))
        talks.append(talk)
    return talks


def text_of(content):
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def wanted(talk):
    """Return the model's texts, found without gdpo."""
    texts = [text_of(message["content"]) for message in talk if message["role"] == "assistant"]
    said = [text for text in texts if text.strip()]
    if not said and texts:
        said = [texts[-1]]
    return {"last": said[-1] if said else "", "every": "\n".join(said)}


def decode(ids, **_):
    return "".join(chr(i - 1) for i in ids if i)


def tokens(talk):
    """Return the ids and the mask of a conversation: one token a character, and an end token."""
    ids, mask = [], []
    for message in talk:
        own = [*(ord(c) + 1 for c in text_of(message["content"])), 0]
        ids += own
        mask += [int(message["role"] == "assistant")] * len(own)
    return ids, mask


def by_scorer(talks, folder):
    return score(rewards, talks, list(map(wanted, talks))).values


def by_trl(talks, completions):
    from gdpo.integrations.trl._rewards import as_reward_functions
    from gdpo.integrations.trl._turns import Located

    ids, masks = zip(*map(tokens, talks), strict=True)
    located = Located()
    located.decode = decode
    located.update(masks, ids)
    functions, scorer = as_reward_functions(rewards, located=located)
    called = {
        "completions": completions,
        "completion_ids": ids,
        "log_metric": lambda *_: None,
        "reference": list(map(wanted, talks)),
    }
    with scorer:
        columns = [function(**called) for function in functions]
    columns[2] = [None if each is None else sum(each) for each in columns[2]]
    return np.array(columns, float).T


def by_trl_tools(talks, folder):
    return by_trl(talks, talks)


def by_trl_rollout_func(talks, folder):
    return by_trl(talks, [decode(tokens(talk)[0]) for talk in talks])


def by_trl_rollout_func_with_messages(talks, folder):
    whole = [[{"role": "assistant", "content": decode(tokens(talk)[0])}] for talk in talks]
    return by_trl(talks, whole)


OURS = {"custom_reward_function": {"path": PATH, "name": "compute_score"}}


def verls_compute_score(worker, outputs, kwargs):
    """Score a rollout as verl's agent loop and its reward managers do."""
    turns = {"num_turns": outputs[-1].num_turns}
    return asyncio.sleep(
        0,
        compute_score(
            solution_str=decode(outputs[-1].response_ids),
            ground_truth=kwargs["ground_truth"],
            extra_info={**kwargs["extra_info"], **turns},
            rewards=[HERE + name for name in NAMES],
        ),
    )


def by_verl(talks, folder):
    compute = with_messages(verls_compute_score)
    worker = SimpleNamespace(config={"reward": OURS}, tokenizer=SimpleNamespace(decode=decode))

    async def score(talk):
        ids, mask = tokens(talk)
        output = SimpleNamespace(
            prompt_ids=[64], response_ids=ids, response_mask=mask, num_turns=1 + len(talk)
        )
        row = {"ground_truth": wanted(talk), "extra_info": {"index": 1}}
        scores = await compute(worker, [output], kwargs=row)
        assert row["extra_info"] == {"index": 1}
        return [scores[name] for name in NAMES]

    async def score_all():
        return [await score(talk) for talk in talks]

    return np.array(asyncio.run(score_all()))


def by_nemo_rl(talks, folder):
    """Score as NeMo-RL does: only the last message is not of the prompt."""
    metadata = [{"ground_truth": wanted(talk[-1:])} for talk in talks]
    with pytest.MonkeyPatch.context() as patch:
        scorer = environment(patch, folder, {"rewards": HERE + "of_text"})
        return np.stack(list(scorer.step(talks, metadata).rewards.values()), -1)


def rescored(path):
    with Rescorer(HERE + "rewards") as rescorer:
        (table,) = read_rollout_files(path, rescore=rescorer)
    assert len(table) == COUNT
    return table.rewards


def by_record(talks, folder):
    rollouts = [
        rollout(
            *(1, i, 0, {"old": 0.0}),
            prompt=f"What is {i}?",
            completion=talk,
            extra={"reference": wanted(talk)},
        )
        for i, talk in enumerate(talks)
    ]
    write_rollouts(rollout_file(folder, 1), rollouts)
    return rescored(folder)


def records_of(talks, write):
    return [
        {"step": 1, "prompt": f"{i}?", "completion": write(talk), "reward": 1.0, "reference": truth}
        for i, (talk, truth) in enumerate(zip(talks, map(wanted, talks), strict=True))
    ]


def by_lines(talks, folder, write=list):
    return rescored(written.lines(folder / "a.jsonl", records_of(talks, write)))


def by_lines_with_json(talks, folder):
    return by_lines(talks, folder, write=json.dumps)


def by_parquet_with_json(talks, folder):
    records = records_of(talks, json.dumps)
    for record in records:
        record["reference"] = json.dumps(record["reference"])
    return rescored(written.parquet(folder / "a.parquet", records))


PATHS = [
    *(by_scorer, by_trl_tools, by_trl_rollout_func, by_trl_rollout_func_with_messages, by_verl),
    *(by_nemo_rl, by_record, by_lines, by_lines_with_json, by_parquet_with_json),
]


@pytest.mark.parametrize("path", PATHS)
def test_no_reward_of_1000_conversations_gets_anything_but_the_models_text(path, tmp_path):
    talks = drawn()
    found = path(talks, tmp_path)
    assert len(found) == COUNT
    np.testing.assert_array_equal(found[:, :2], 0)
    assert np.nansum(found) == 0


def test_the_conversations_have_what_could_be_mistaken():
    talks = drawn()
    spoken = [[m for m in talk if m["role"] == "assistant"] for talk in talks]
    assert sum(not own for own in spoken) > 50
    assert sum(len(own) > 1 for own in spoken) > 200
    assert sum("TOOL" in str(talk[-1]["content"]) for talk in talks) > 200
    silent = [talk for own, talk in zip(spoken, talks, strict=True) if own]
    assert sum(not wanted(talk)["last"] for talk in silent) > 20


def test_verls_text_of_several_messages_is_refused_if_the_messages_are_unknown():
    given = {"solution_str": "12", "ground_truth": {"last": "1", "every": "1"}}
    named = {"rewards": [HERE + "last"]}
    for info in (None, {}, {"num_turns": 2}, {"num_turns": None}):
        assert compute_score(**given, extra_info=info, **named)["last"] == 1
    with config_error("num_turns is 4"):
        compute_score(**given, extra_info={"num_turns": 4}, **named)


def test_verls_row_is_unchanged_for_one_response_and_for_other_reward_functions():
    seen = []

    async def score(worker, outputs, kwargs):
        seen.append(kwargs["extra_info"])

    one = SimpleNamespace(prompt_ids=[1], response_ids=[1, 2], response_mask=[1, 1])
    two = SimpleNamespace(prompt_ids=[1], response_ids=[1, 2], response_mask=[1, 0])
    other = {"custom_reward_function": {"path": "mine.py", "name": "compute_score"}}
    for config, output in (({"reward": OURS}, one), ({"reward": other}, two), ({}, two)):
        worker = SimpleNamespace(config=config, tokenizer=SimpleNamespace(decode=decode))
        asyncio.run(with_messages(score)(worker, [two, output], {"extra_info": None}))
    assert seen == [None] * 3


ROWS = {form.name: form.rows for form in FORMATS}
RECORDS = {
    "verl": ({"input": "p", "output": "12", "score": 1, "step": 1}, "num_turns", 4, 2),
    "slime": (
        {"rollout_id": 1, "group_index": 1, "reward": 1.0, "prompt": "p", "response": "12"},
        *("loss_mask", [1, 1, 0], [1, 1, 1]),
    ),
}


@pytest.mark.parametrize("form", RECORDS)
@pytest.mark.parametrize("mixed", [True, False])
def test_files_say_whether_a_text_contains_results_of_tools(form, mixed):
    record, name, value, other = RECORDS[form]
    (row,) = ROWS[form]({**record, name: value if mixed else other})
    assert texts_of([row], [0], checked=False)[0].mixed == row.mixed == mixed
    (row,) = ROWS[form](record)
    assert not row.mixed


def test_in_nemo_rls_texts_without_roles_every_second_one_is_the_models():
    record = {"idx": 0, "rewards": 1.0}
    for said in (["3"], ["I look.", "TOOL", "3"], ["I look.", "TOOL", "I read.", "TOOL", "3"]):
        after = [] if len(said) == 1 else ["TOOL"]
        (row,) = ROWS["nemo-rl"]({**record, "content": ["TOOL?", *said, *after]})
        (completion,) = from_file([row.completion])
        assert completion_text(completion, "all") == "\n".join(said[::2])
        assert row.prompt == ["TOOL?"]


@pytest.mark.parametrize("mixed", [True, False])
def test_a_text_that_contains_results_of_tools_is_not_rescored(mixed, tmp_path):
    with Rescorer(HERE + "rewards") as rescorer:
        found = rescorer([RolloutText("p", "12", {"last": "12", "every": "12"}, mixed=mixed)])
    assert found.problems == ({MIXED: [0]} if mixed else {})
    assert found.rewards["last"] == [None if mixed else 0.0]
