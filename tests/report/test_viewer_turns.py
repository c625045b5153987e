"""The viewer shows the rewards and advantages of each turn, at its text if the text is known."""

import json
from dataclasses import replace
from math import nan

import pytest
from tests.report.hostile import CHATS, TEXTS
from tests.report.runs import experiment_of, trained
from tests.report.test_rollouts_page import data, page_of
from tests.rollouts.built import rollout

from gdpo.analysis.sample import _VALUES
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.report import write_report
from gdpo.rollouts import Turn, read_rollouts, rollout_file, write_rollouts


def turns_of(count, names=("right", "brief")):
    """Turn t has the rewards t and none, the advantage t / 3, and t + 5 tokens."""
    return tuple(
        Turn(dict(zip(names, (float(t), None), strict=True)), t / 3, t + 5) for t in range(count)
    )


def chat(count):
    """A completion of so many messages of the assistant, with tools and users between them."""
    talk = []
    for t in range(count):
        talk.append({"role": "assistant", "content": f"say {t}"})
        talk.append({"role": "tool", "content": f"found {t}"})
        talk.append({"role": "user", "content": f"well {t}"})
    return talk[:-2]


def recorded(folder, samples, names=("right", "brief"), step=1):
    """A step with one group, whose samples are (completion, turns)."""
    rollouts = [
        rollout(
            *(step, 0, sample, dict(zip(names, (float(sample), 0.5), strict=True))),
            completion=completion,
            advantage=sample - 0.5,
            turns=turns,
        )
        for sample, (completion, turns) in enumerate(samples)
    ]
    write_rollouts(rollout_file(folder, step), rollouts)
    return folder


def shown(tmp_path):
    """Return the groups on the page of the run."""
    page = page_of(tmp_path / "run", tmp_path / "page.html", replayed=["recorded"])
    return data(page)["rollouts"]["groups"]


@pytest.fixture
def group_of(tmp_path):
    """Record a group of samples, and return what the page shows of it."""

    def group(samples):
        recorded(tmp_path / "run", samples)
        (found,) = shown(tmp_path)
        return found

    return group


def test_a_turn_is_at_the_message_of_the_assistant_that_it_is(group_of):
    group = group_of([(chat(2), turns_of(2)), (chat(1), turns_of(1)), (chat(2), None)])
    assert group["turn_rewards"] == ["right", "brief"]
    first, second, without = group["samples"]
    assert [message[1] for message in first["completion"]] == [
        "say 0",
        "found 0",
        "well 0",
        "say 1",
    ]
    assert first["turns"] == [[1, 0, 5, 0, None], None, None, [2, 0.3333, 6, 1, None]]
    assert second["turns"] == [[1, 0, 5, 0, None]]
    assert "unplaced_turns" not in first
    assert not {"turns", "unplaced_turns"} & set(without)


def test_the_turns_of_a_long_chat_are_at_the_messages_that_are_shown(group_of):
    sample = group_of([(chat(20), turns_of(20))] * 2)["samples"][0]
    assert len(sample["turns"]) == len(sample["completion"]) == 21
    found = {
        message[1]: turn[0]
        for message, turn in zip(sample["completion"], sample["turns"], strict=True)
        if turn is not None
    }
    assert found == {f"say {t}": t + 1 for t in (0, 1, 2, 3, 16, 17, 18, 19)}
    assert sample["turns"][10] is None


def test_turns_without_a_message_each_are_listed(group_of):
    completions = [chat(3), "text", [{"role": None, "content": None}], chat(2)]
    *listed, placed = group_of([(each, turns_of(2)) for each in completions])["samples"]
    for sample in listed:
        assert sample["unplaced_turns"] == [[1, 0, 5, 0, None], [2, 0.3333, 6, 1, None]]
        assert "turns" not in sample
    assert "turns" in placed


def test_of_many_turns_that_are_listed_the_middle_is_left_out(group_of):
    rows = group_of([("text", turns_of(50))] * 2)["samples"][0]["unplaced_turns"]
    numbers = [row and row[0] for row in rows]
    assert numbers == [*range(1, 11), None, *range(41, 51)]


def test_files_without_turns_add_nothing_to_the_page(group_of):
    group = group_of([(chat(2), None), (chat(1), None)])
    assert not any("turn" in key for each in (group, *group["samples"]) for key in each)


def test_each_group_shows_the_turns_of_its_own_rollouts(tmp_path):
    for step in range(1, 4):
        recorded(tmp_path / "run", [(chat(t), turns_of(t)) for t in (step, 2 * step)], step=step)
    file = rollout_file(tmp_path / "run", 1)
    later = [replace(r, step=1, group_id=1) for r in read_rollouts(rollout_file(file.parent, 3))]
    write_rollouts(file, [*read_rollouts(file), *later])
    groups = shown(tmp_path)
    counts = [[sum(t is not None for t in s["turns"]) for s in g["samples"]] for g in groups]
    assert sorted(counts) == [[1, 2], [2, 4], [3, 6], [3, 6]]


def test_so_many_turns_that_they_fill_the_memory_are_not_shown(group_of):
    many = turns_of(_VALUES // 4 + 1)
    assert "turn_rewards" not in group_of([(chat(2), many)] * 2)


def test_the_report_on_a_run_shows_the_turns_too(tmp_path):
    run = trained(tmp_path, "gdpo", 1, steps=1, texts=("q", chat(2)))
    (file,) = run.path.glob("rollouts/*.parquet")
    rollouts = read_rollouts(file)
    names = tuple(rollouts[0].rewards)
    turns = (Turn(dict.fromkeys(names, 0.25), -1.0, 4), Turn(dict.fromkeys(names, nan), nan, 4))
    write_rollouts(file, [replace(rollout, turns=turns) for rollout in rollouts])
    write_report(analyse(experiment_of(tmp_path, [run])), tmp_path / "report.html")
    found = data(tmp_path / "report.html")["rollouts"]["groups"]
    assert found
    empty = [None] * len(names)
    for sample in (sample for group in found for sample in group["samples"]):
        spoken = [turn for turn in sample["turns"] if turn is not None]
        assert spoken == [[1, -1, 4, *[0.25] * len(names)], [2, None, 4, *empty]]


def test_hostile_texts_and_names_of_rewards_are_shown_with_their_turns_and_run_nothing(
    browser, tmp_path
):
    texts = [*TEXTS.values(), *CHATS["odd messages"]]
    names = tuple(
        "".join(text[:200] for kind, text in TEXTS.items() if kind != "surrogates") + end
        for end in "12"
    )
    said = [
        {"role": "assistant", "content": text if isinstance(text, str) else json.dumps(text)}
        for text in texts
    ]
    for step in range(1, 4):
        samples = [(said[:9], turns_of(9, names)), (said[9:], turns_of(2, names))]
        recorded(tmp_path / "run", samples, names, step=step)
    page = page_of(tmp_path / "run", tmp_path / "page.html", replayed=["recorded", "gdpo"])
    for width in (1280, 400):
        browser.open_wholly(page, width)
    assert browser.ask("document.querySelectorAll('.message > .turn').length") == 3 * 9
    assert browser.ask("document.querySelectorAll('table.turns').length") == 3
    first = browser.ask("document.querySelector('.message > .turn').textContent")
    assert first.startswith("turn 1<script>window.broken = 1</script>")
    assert first.endswith("advantage 0tokens 5")
    assert "window.b… (2) –" in first, "the names are those of the labels"
    listed = "document.querySelector('table.turns tbody').textContent"
    assert browser.ask(listed) == "10–0521–+0.3336"


def test_a_turn_is_read_next_to_its_text(browser, tmp_path):
    folder = recorded(tmp_path / "run", [(chat(2), turns_of(2)), (chat(3), turns_of(2))])
    browser.open(page_of(folder, tmp_path / "page.html", replayed=["recorded"]))
    browser.ask("document.querySelectorAll('tr.row button').forEach(b => b.click())")
    said = "[...document.querySelectorAll('.message')].filter(m => m.querySelector('.turn'))"
    found = browser.ask(f"{said}.map(m => [...m.children].map(e => e.textContent))")
    assert found == [
        ["assistant", "turn 1right 0brief –advantage 0tokens 5", "say 0"],
        ["assistant", "turn 2right 1brief –advantage +0.333tokens 6", "say 1"],
    ]
    heading = "document.querySelector('table.turns').previousElementSibling.textContent"
    assert "2" in browser.ask(heading)
