"""The page of foreign rollouts: what it says, and that nothing in it runs that is not ours."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.turn_rollouts import recorded
from tests.report.hostile import CHATS, TEXTS
from tests.report.runs import trained
from tests.rollouts.readers import written

from gdpo.analysis import analyze
from gdpo.report import write_rollouts_report
from gdpo.report.charts import Chart, Line
from gdpo.report.rollouts_page import MARK
from gdpo.rollouts.readers import read_rollout_files


def page_of(folder, page, *, replayed=("recorded", "grpo", "gdpo"), **options):
    reading = read_rollout_files(folder, **options)
    write_rollouts_report(analyze(reading, replayed=replayed, sampled=True), page)
    return page


def drifting(folder, *, steps=12, tokens=True, rewards=("right", "brief")):
    """Long completions are right more often, and brief ones brief."""
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        length = rng.integers(10, 200, (8, 8))
        values = {
            rewards[0]: (rng.random((8, 8)) < length / 200).astype(float),
            rewards[1]: 1 - length / 200,
        }
        records = [
            {
                "step": step,
                "prompt": f"question {step} {p}",
                "completion": f"answer {p} {s} is what was found, and here is why" * 3,
                **({"num_tokens": int(length[p, s])} if tokens else {}),
                **{name: float(value[p, s]) for name, value in values.items()},
            }
            for p in range(8)
            for s in range(8)
        ]
        written.lines(folder / f"{step}.jsonl", records)
    return folder


def data(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found[1])


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return drifting(tmp_path_factory.mktemp("foreign") / "run")


@pytest.fixture(scope="module")
def page(dump):
    page = dump.parent / "page.html"
    return page_of(dump, page, replayed=["grpo", "gdpo"], rewards=["right", "brief"])


def test_it_answers_and_adds_up(page):
    text = page.read_text()
    assert MARK in text[:4096]
    assert "<h1><bdi>Influence of each reward in run</bdi></h1>" in text
    assert "768 rows: 768 read, 0 skipped" in text
    assert len(text.encode()) < 2_000_000
    sections = ("findings", "curves", "influence", "correlation", "lengths", "advantages", "read")
    assert [name for name in sections if f'id="{name}"' not in text] == []


def test_the_charts_hold_the_numbers_of_the_analysis(dump, page):
    (run,) = analyze(read_rollout_files(dump, rewards=["right", "brief"])).runs
    charts = data(page)["charts"]
    assert len(charts) == 2 + 2 + 2  # means; influence and live groups; by length
    assert charts[0]["x"] == list(range(1, 13))
    shown = [float(text) for text in charts[0]["lines"][0]["text"]]
    assert shown == pytest.approx(run.over_time["right"]["mean"], abs=1e-3)
    by_length = charts[4]
    assert by_length["unit"] == "tokens"
    values = [float(text.split()[0]) for text in by_length["lines"][0]["text"] if text != "–"]
    assert values[-1] > values[0] + 0.4  # long ones are right


def test_the_rollouts_shown_have_their_own_texts_and_rewards(dump, page):
    viewer = data(page)["rollouts"]
    assert viewer["estimators"] == ["grpo", "gdpo"]
    assert {group["step"] for group in viewer["groups"]} == set(range(1, 13))
    group = viewer["groups"][0]
    lines = (dump / f"{group['step']}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    prompt = viewer["prompts"][group["prompt"]][0][1]
    for sample in group["samples"]:
        record = records[sample["id"]]
        assert record["completion"] == sample["completion"][0][1]
        assert record["prompt"] == prompt
        assert sample["rewards"]["right"] == record["right"]
        assert sample["tokens"] == record["num_tokens"]
    assert group["size"] == 8


def test_a_dump_without_tokens_has_no_chart_of_lengths(tmp_path):
    dump = drifting(tmp_path / "run", tokens=False)
    text = page_of(dump, tmp_path / "a.html", rewards=["right", "brief"]).read_text()
    assert "by the length" not in text


def page_with(folder, values):
    rows = [{"prompt": "a", "step": i // 4, "x": value} for i, value in enumerate(values)]
    return page_of(written.lines(folder / "a.jsonl", rows), folder / "a.html", rewards=["x"])


@pytest.mark.parametrize("value", [0.0, 1.0, 1e17, -1e17, 1e30])
def test_a_constant_of_any_size_lies_in_the_middle_of_its_chart(tmp_path, value):
    """Also where the means of equal numbers differ by rounding, as those of 1e30 do."""
    page = page_with(tmp_path, [value] * 16)
    mean, _, constant = data(page)["charts"]
    assert mean["lines"][0]["py"] == [97.0] * 4
    assert constant["lines"][0]["numbers"][0] == [100.0] * 4
    picture = page.read_text().split("mean reward, by step")[1].split("</svg>")[0]
    labels = re.findall(r'<text class="tick y"[^>]*>([^<]*)</text>', picture)
    assert len(set(labels)) == len(labels) > 2


def test_values_that_no_tick_can_part_are_drawn(tmp_path):
    page = page_with(tmp_path, [0.0] * 8 + [5e-324] * 8)
    assert [184.0, 184.0, 10.0, 10.0] in [chart["lines"][0]["py"] for chart in data(page)["charts"]]


def test_a_chart_without_height_has_everything_in_its_middle():
    x, none = np.arange(2.0), np.full(2, np.nan)
    line = Line("a", 0, np.full(2, 1e17), none, none, np.empty((0, 2)))
    chart = Chart(title="a", label="b", x=x, low=1e17, high=1e17, lines=[line])
    assert chart.data()["lines"][0]["py"] == [97.0, 97.0]
    assert chart.path(line.value) == "M46 97L428 97"


@pytest.mark.slow
def test_many_runs_rewards_and_steps_stay_small(tmp_path):
    names = [f"reward_{k}" for k in range(40)]
    rng = np.random.default_rng(0)
    for run in range(8):
        records = [
            {
                "step": s // 4,
                "prompt": "a",
                "completion": "b" * 3000,
                **dict(zip(names, v, strict=True)),
            }
            for s, v in enumerate(rng.random((80, 40)).round(3).tolist())
        ]
        written.lines(tmp_path / "runs" / f"run {run}" / "a.jsonl", records)
    page = page_of(tmp_path / "runs", tmp_path / "a.html", replayed=["grpo"], rewards=names)
    text = page.read_text()
    assert len(text.encode()) < 2_000_000
    assert "2 more runs and 16 more rewards are not shown" in text


def test_a_band_goes_along_its_edges_and_back_and_stairs_rise_at_once():
    x = np.arange(4.0)
    line = Line("a", 0, x, low=np.array([0, 0.5, 0, np.nan]), high=np.ones(4))
    chart = Chart(title="a", label="b", x=x, low=0, high=1, lines=[line])
    top, bottom = "46 10L173.3 10L300.7 10", "300.7 184L173.3 97L46 184"
    assert chart.band(line) == f"M{top}L{bottom}Z"
    stairs = replace(chart, stairs=True)
    assert stairs.path(np.array([0, 1, 1, 1])) == "M46 184L173.3 184L173.3 10L428 10"


@pytest.mark.slow
def test_nothing_runs_that_is_not_ours(browser, tmp_path):
    both = {**TEXTS, **CHATS}
    for number, text in enumerate(both.values()):
        trained(tmp_path / "runs", "gdpo", number, steps=1, texts=(str(text)[:5000], text))
    hostile = "".join(
        t[:200] for kind, t in TEXTS.items() if kind not in ("surrogates", "controls")
    )
    drifting(tmp_path / "runs" / "names", steps=3, rewards=(hostile, f"{hostile}2"))
    page = page_of(tmp_path / "runs", tmp_path / "page.html", replayed=["grpo", "gdpo"])
    for width in (1280, 400):
        browser.open_wholly(page, width)


def test_charts_and_rollouts_are_used(browser, page):
    browser.open(page)
    browser.point(".chart svg", share=0.5)
    assert browser.ask("document.querySelector('.values .at').textContent") in ("step 6", "step 7")
    labels = "[...document.querySelectorAll('#filter label')].map(e => e.firstChild.textContent)"
    assert browser.ask(labels)[:2] == ["run", "from step"]  # foreign runs have no seeds
    browser.ask("document.querySelector('tr.row button').click()")
    detail = browser.ask("document.querySelector('tr.detail').textContent")
    assert "question" in detail
    assert "advantage: gdpo" in detail
    assert browser.complaints == []


LONG = ("match_format_approximately", "check_answer_against_the_reference")


def test_runs_of_different_length_share_a_chart_by_length_with_counts(tmp_path):
    for run, longest in (("short", 20), ("long", 200)):
        records = [
            {"step": 1, "prompt": f"{n // 8}", "num_tokens": n % longest, "r": 2.0 * (n % longest)}
            for n in range(400)
        ]
        written.lines(tmp_path / "runs" / run / "1.jsonl", records)
    page = page_of(tmp_path / "runs", tmp_path / "a.html", replayed=["grpo"], rewards=["r"])
    chart = data(page)["charts"][-1]
    assert (chart["unit"], chart["rest"]) == ("tokens", "the longest")
    assert chart["x"][:3] == [8, 24, 40]
    texts = [line["text"] for line in chart["lines"]]  # the folders in their order
    assert texts[0][:2] == ["15 (32 rollouts)", "47 (32 rollouts)"]
    assert texts[1][:3] == ["15 (320 rollouts)", "35 (80 rollouts)", "–"]


def test_a_chart_at_rest_says_what_its_values_are_of(browser, page):
    browser.open(page)
    said = "[...document.querySelectorAll('.values .at')].map(e => e.textContent)"
    assert browser.ask(said) == ["at the end"] * 4 + ["the longest"] * 2
    browser.point("[data-chart='4'] svg", share=0.5)
    assert browser.ask(said)[4].startswith("tokens ")
    browser.point("h1")
    assert browser.ask(said)[4] == "the longest"
    values = browser.ask(
        "document.querySelector('[data-chart=\"4\"] + .values output').textContent"
    )
    assert " rollouts)" in values


@pytest.mark.parametrize("width", [1100, 400])
def test_names_break_between_their_words_only_and_the_details_are_not_cut_off(
    browser, tmp_path, width
):
    dump = drifting(tmp_path / "run_with_a_name", steps=2, rewards=LONG)
    page = page_of(tmp_path, tmp_path / "a.html", rewards=list(LONG))
    assert len(list(dump.iterdir())) == 2
    browser.open(page, width=width)
    browser.ask("document.querySelector('tr.row button').click()")
    torn = (
        "[...document.querySelectorAll('th bdi')].flatMap(name => [...name.childNodes])"
        ".filter(word => word.nodeType === 3 && !word.data.includes(' ')).filter(word => {"
        "  const range = document.createRange(); range.selectNodeContents(word);"
        "  return range.getClientRects().length !== 1;"
        "}).map(word => word.data)"
    )
    assert browser.ask(torn) == []
    headings = "[...document.querySelectorAll('#list > thead th')].map(e => e.textContent)"
    assert browser.ask(headings)[2:4] == list(LONG)
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    if width == 1100:
        list_fits = (
            "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('#list').parentNode)"
        )
        assert browser.ask(list_fits)


def test_the_turns_have_a_section_with_a_table_and_charts(tmp_path):
    folder = recorded(tmp_path / "run", steps=4)
    page = page_of(folder, tmp_path / "page.html")
    text = page.read_text()
    (run,) = analyze(read_rollout_files(folder)).runs
    section = text.split('<h2 id="turns">')[1].split("</section>")[0]
    rows = re.findall(r'<tr><th scope="row"><bdi>(\d)</bdi></th>(.*?)</tr>', section)
    assert [int(turn) for turn, _ in rows] == [turn.turn for turn in run.turns]
    assert "more turns" not in section
    cells = [re.sub("<.*?>| ", "", cell) for cell in re.findall("<td>.*?</td>", rows[1][1])]
    second = run.turns[1]
    shares = [cell for r in second.rewards for cell in (r.zero_variance_groups, r.influence_share)]
    assert cells[0] == f"{100 * second.alive:.0f}%"
    shown = [int(re.match(r"\d+", part)[0]) for cell in cells[1:] for part in cell.split(",")]
    assert shown == pytest.approx([100 * share for share in shares], abs=0.5)
    charts = [chart for chart in data(page)["charts"] if chart["unit"] == "turn"]
    assert [chart["x"] for chart in charts] == [[1, 2, 3, 4, 5, 6]] * 2
    shown = [float(each.split()[0]) for each in charts[0]["lines"][0]["text"]]
    wanted = [100 * turn.rewards[0].influence_share for turn in run.turns]
    assert shown == pytest.approx(wanted, abs=0.5)
    value, _, groups = charts[1]["lines"][0]["text"][1].partition(" ")
    assert float(value) == pytest.approx(100 * second.rewards[0].zero_variance_groups, abs=0.5)
    assert groups == f"({second.groups} groups)"


def test_without_turns_there_is_no_section_about_turns(page):
    assert 'id="turns"' not in page.read_text()
    assert not [chart for chart in data(page)["charts"] if chart["unit"] == "turn"]


def test_a_page_with_turns_is_drawn_without_complaints(browser, tmp_path):
    page = page_of(recorded(tmp_path / "run", steps=2), tmp_path / "page.html")
    for width in (1280, 400):
        browser.open_wholly(page, width)
    browser.point("[aria-labelledby=turns] .chart", 0.0)
    at = "document.querySelector('[aria-labelledby=turns] .values .at').textContent"
    assert browser.ask(at) == "turn 1"
