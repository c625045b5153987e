"""The page in a browser: nothing runs that is not ours, and it is used without a mouse."""

import csv
import json
import shutil
import time

import pytest
from tests.report.hostile import CHATS, TEXTS
from tests.report.runs import experiment_of, unrecorded

from gdpo.analysis import EXAMPLE, analyze
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.report import write_report
from gdpo.report import write_rollouts_report
from gdpo.rollouts.readers import read_rollout_files


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The page about the example of `gdpo analyze`."""
    file = tmp_path_factory.mktemp("example") / "page.html"
    write_rollouts_report(analyze(read_rollout_files(EXAMPLE)), file)
    return file


@pytest.fixture
def page(browser, compared):
    browser.open(compared[1])
    return browser


def open_page(browser, folder, runs, fragment="", **options):
    """Open the page about these runs."""
    write_report(analyse(experiment_of(folder, runs, **options)), folder / "page.html")
    browser.open(folder / "page.html", fragment)


def count(page):
    return page.ask("document.querySelector('#count').textContent")


def cells(page, column):
    return page.ask(
        f"[...document.querySelectorAll('tr.row')].map(r => r.children[{column}].textContent)"
    )


def set_field(page, place, value):
    page.ask(
        f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelectorAll('#filter input, #filter select')[{place}])"
    )


@pytest.mark.slow
def test_hostile_rollouts_run_nothing_and_break_nothing(browser, hostile_rollouts):
    for width in (1280, 400):
        browser.open_wholly(hostile_rollouts, width)
        shown = browser.ask("document.querySelectorAll('tr.detail').length")
        assert shown > len({**TEXTS, **CHATS})
    shown = browser.ask("document.querySelector('#list').textContent")
    for part in ("<script>window.broken = 1</script>", "⟨U+202E⟩gnp.exe", "⟨U+0000⟩"):
        assert part in shown
    assert "characters left out" in shown
    assert "1,980 messages left out" in shown


def test_hostile_names_run_nothing_and_break_nothing(browser, hostile_names):
    for width in (1280, 400):
        browser.open_wholly(hostile_names[1], width)


@pytest.mark.parametrize(("labels", "rewards"), [(2, 1), (2, 2), (5, 3)])
def test_which_by_how_much_and_how_sure_need_no_scrolling(browser, tmp_path, labels, rewards):
    names = ["grpo", "gdpo", "per_reward_batch_std", "dara_symmetric", "gdpo_decorrelated"][:labels]
    measured = tuple(Measured(f"reward_{k}", -3.0, 3.0, 1.0) for k in range(rewards))
    runs = [
        unrecorded(label, seed, tmp_path, rewards=measured, steps=12 + place)
        for place, label in enumerate(names)
        for seed in range(5)
    ]
    open_page(browser, tmp_path, runs, rewards=measured)
    bottom = "Math.max(...[...document.querySelectorAll('.answer, .results table')]"
    assert browser.ask(f"{bottom}.map(e => e.getBoundingClientRect().bottom))") <= 800
    tables = "[...document.querySelectorAll('.results .wide')]"
    cut_off = f"{tables}.filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.ask(cut_off) == 0


def test_pointing_at_a_chart_shows_each_estimators_value_at_that_step(page):
    page.point(".chart svg", share=0.5)
    at = page.ask("document.querySelector('.values .at').textContent")
    assert at in ("step 6", "step 7")
    values = page.ask(
        "[...document.querySelector('.values').querySelectorAll('output')].map(o => o.textContent)"
    )
    assert len(values) == 2
    assert all(float(value.split()[0]) >= 0 for value in values)
    assert page.ask("document.querySelectorAll('.cursor circle').length") == 2
    page.point("h1")
    assert page.ask("document.querySelector('.values .at').textContent") == "at the end"


def test_a_chart_is_read_with_the_keyboard_alone(page):
    for _ in range(9):
        page.press("Tab")
        if page.ask("document.activeElement.className") == "chart":
            break
    spoken = "document.activeElement.getAttribute('aria-valuetext')"
    assert page.ask(spoken).startswith("step 12: grpo ")
    page.press("ArrowLeft")
    assert page.ask(spoken).startswith("step 11: ")
    page.press("Home")
    page.press("ArrowRight")
    assert page.ask(spoken).startswith("step 2: ")
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_rollout_is_opened_and_closed_with_the_keyboard(page):
    page.ask("document.querySelector('tr.row button').focus()")
    page.press("Enter", "\r")
    assert page.ask("document.activeElement.getAttribute('aria-expanded')") == "true"
    shown = page.ask("document.querySelector('tr.detail').textContent")
    assert "Say it." in shown
    assert "4 of 4 samples" in shown
    assert page.ask("document.querySelector('.message .role').textContent") == "user"
    page.press("Enter", "\r")
    assert page.ask("document.querySelector('tr.detail')") is None


def test_rollouts_are_sorted_by_disagreement_and_by_any_column(page):
    first = [float(cell) for cell in cells(page, 6)]
    assert first == sorted(first, reverse=True)
    assert page.ask("document.querySelectorAll('#list thead th')[6].ariaSort") == "descending"
    for column in (2, 3, 4, 5):
        press = f"document.querySelectorAll('#list thead button')[{column}].click()"
        for reverse in (True, False):
            page.ask(press)
            found = [float(cell) for cell in cells(page, column)]
            assert found == sorted(found, reverse=reverse)


def test_rollouts_are_filtered_by_estimator_seed_step_reward_and_text(page):
    assert count(page) == "768 of 768 rollouts match"
    set_field(page, 0, "gdpo")
    assert count(page) == "384 of 768 rollouts match"
    set_field(page, 1, "2")
    assert count(page) == "192 of 768 rollouts match"
    set_field(page, 2, "3")
    set_field(page, 3, "4")
    assert count(page) == "32 of 768 rollouts match"
    assert set(cells(page, 1)) == {"3", "4"}
    set_field(page, 4, "format")
    set_field(page, 5, "1")
    assert set(cells(page, 2)) == {"1"}
    set_field(page, 5, "")
    set_field(page, 6, "0.5")
    assert set(cells(page, 2)) == {"0"}
    set_field(page, 7, "SAY IT. (4,")
    assert set(cells(page, 1)) == {"4"}
    set_field(page, 7, "nobody wrote this")
    assert count(page) == "0 of 768 rollouts match"


def test_dark_light_and_print_differ_and_print_leaves_the_viewer_out(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.ask(colour)
    page.media(colours="dark")
    assert page.ask(colour) != light
    page.media("print", colours="dark")
    assert page.ask(colour) == light
    assert page.ask("getComputedStyle(document.querySelector('.viewer')).display") == "none"
    assert page.ask("document.querySelector('.chart svg').getBoundingClientRect().height") > 50


def test_at_400_pixels_the_shares_and_the_remedy_are_on_the_screen(browser, example):
    browser.open(example, width=400)
    for column in (0, 1, 2):
        table = "document.querySelector('[aria-labelledby=rewards] table')"
        box = f"[...{table}.rows].map(r => r.cells[{column}].getBoundingClientRect().right)"
        assert max(browser.ask(box)) <= 400
    head = "[...document.querySelector('thead').rows[0].cells]"
    headings = browser.ask(f"{head}.map(c => c.textContent)")
    assert headings[:3] == ["reward", "weight share", "influence share"]
    findings = "[...document.querySelectorAll('.findings tbody td')]"
    assert max(browser.ask(f"{findings}.map(c => c.getBoundingClientRect().right)")) <= 400
    remedy = browser.ask(f"{findings}[0].textContent")
    assert remedy.startswith("if the rewards should count equally: gdpo with reward_weights")


def test_names_in_sentences_are_code(browser, example):
    browser.open(example)
    assert "`" not in browser.ask("document.body.innerText")
    for place in (".answer", ".findings"):
        code = f"[...document.querySelectorAll('{place} code')].map(c => c.textContent)"
        assert "brevity" in browser.ask(code)


def test_a_link_opens_its_rollout_at_once_and_despite_a_filter(page, compared, tmp_path):
    page.ask("document.querySelectorAll('tr.row button')[20].click()")
    opened = "document.querySelector('tr.detail').textContent"
    link, text = page.ask(f"[document.querySelector('tr.detail a').hash, {opened}]")
    set_field(page, 7, "nobody wrote this")
    page.ask(f"location.hash = {link!r}")
    assert page.ask(opened) == text
    page.ask("location.hash = '#rollout=gdpo/9/9/9/9'")
    assert count(page) == "The linked rollout is not on this page."
    page.open(shutil.copy(compared[1], tmp_path / "copy.html"), link)
    assert page.ask(opened) == text
    top = "document.activeElement.getBoundingClientRect().top"
    assert page.ask(f"Math.abs({top}) < 20")


def test_a_link_to_a_page_without_rollouts_says_so(browser, tmp_path):
    runs = [unrecorded("grpo", 0, tmp_path)]
    open_page(browser, tmp_path, runs, "#rollout=grpo/0/1/1/1")
    assert count(browser) == "The linked rollout is not on this page."


def test_without_scripts_a_link_shows_its_section_and_no_control_is_there(browser, compared):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(compared[1], "#numbers")
    assert browser.ask("document.querySelector('#numbers').getBoundingClientRect().top") < 20
    shown = "[...document.querySelectorAll('form, button')].filter(e => e.checkVisibility())"
    assert browser.ask(f"{shown}.length") == 0
    browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_the_name_of_a_line_hides_it_in_all_charts(page):
    page.ask("document.querySelector('.values button').focus()")
    lines = "[...document.querySelectorAll('g[data-line]')]"
    drawn = f"{lines}.filter(g => getComputedStyle(g).display !== 'none')"
    names = f"[...new Set({drawn}.map(g => g.dataset.line))].sort()"
    assert page.ask(names) == ["gdpo", "grpo"]
    page.press("Enter", "\r")
    assert page.ask(names) == ["gdpo"]
    assert page.ask("document.activeElement.ariaPressed") == "false"
    page.point(".chart svg")
    assert page.ask("document.querySelectorAll('.cursor circle').length") == 1
    assert page.ask("document.querySelector('.values output').textContent") == ""
    page.press("Enter", "\r")
    assert page.ask(names) == ["gdpo", "grpo"]


def test_curves_and_all_data_are_saved_without_formulas(browser, tmp_path):
    name = '=1+"1",'
    measured = (Measured(name, -1.0, 1.0, 1.0),)
    runs = [
        unrecorded(label, 0, tmp_path, steps=steps, rewards=measured)
        for label, steps in (("grpo", 12), ("\n=gdpo", 4))
    ]
    open_page(browser, tmp_path, runs, rewards=measured)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.ask("document.querySelectorAll('#save button').forEach(button => button.click())")
    curves, whole = tmp_path / "curves.csv", tmp_path / "data.json"
    while not (curves.exists() and whole.exists()):
        time.sleep(0.01)
    _, first, *others = csv.reader(curves.read_text("utf-8").splitlines())
    assert first[:5] == [f"'{name}", "mean reward", "grpo", "step", "1"]
    assert float(first[5]) == pytest.approx(runs[0].means[name][0])
    assert [row[2] for row in others] == ["grpo"] * 11 + ["'=gdpo"] * 4
    saved = json.loads(whole.read_text("utf-8"))
    assert saved["charts"][0]["lines"][0]["value"][0] == float(first[5])
    caption, rows = saved["tables"]["results"][0].values()
    assert name in caption
    assert rows[1][0] == "grpo"
