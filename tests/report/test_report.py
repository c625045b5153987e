"""The page as a file: what is in it, and what is not."""

import base64
import hashlib
import io
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.refusals import data_error
from tests.report.runs import REWARDS, experiment_of, record, trained, two_estimators, unrecorded

from gdpo.advantages import ESTIMATORS
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.comparison import further, headline
from gdpo.lab.recipes.recipe import DataConfig, Recipe
from gdpo.lab.report import summary, write_report
from gdpo.lab.report._run_charts import lengths
from gdpo.lab.report._run_contents import analyze_experiment
from gdpo.rollouts import read_rollouts, reward_arrays

VOID = {"meta", "br", "wbr", "input", "path", "circle"}


class Parsed(HTMLParser):
    """Tags balanced, or an error; elements, attributes and scripts kept."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.attributes, self.inside, self.text = [], [], [], {}, []
        self.feed(text)
        self.close()
        assert self.stack == []
        self.words = "".join(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] in ("script", "style"):
            self.inside.setdefault(self.stack[-1], []).append(data)
        else:
            self.text.append(data)

    def value(self, tag, name):
        return [v for t, n, v in self.attributes if (t, n) == (tag, name)]


def unrecorded_pairs(folder, seeds):
    return [unrecorded(label, seed, folder) for label in ("grpo", "gdpo") for seed in range(seeds)]


def made(tmp_path, comparison):
    file = tmp_path / "report.html"
    write_report(comparison, file)
    return read(file)


def page_of(folder, runs):
    return made(folder, analyse(experiment_of(folder, runs)))


def read(file):
    text = file.read_text("utf-8")
    parsed = Parsed(text)
    return text, parsed, json.loads(parsed.inside["script"][0])


@pytest.fixture(scope="module")
def usual(compared):
    comparison, file = compared
    return comparison, *read(file)


def test_page_and_summary_say_the_headline_the_runs_and_that_they_are_few(usual):
    comparison, _, parsed, _ = usual
    text = printed(comparison)
    assert len(text.splitlines()) <= 20
    assert f"{comparison.outcome('gdpo', 'format').final.value:.3f}" in text
    for flat in (" ".join(each.split()) for each in (parsed.words, text)):
        assert "4 runs of 12 steps · seeds 1, 2" in flat
        assert headline(comparison) in flat
        assert "Exploratory: 2 seeds" in flat
    assert "toy: 4 runs" in text
    more = replace(
        comparison,
        outcomes=tuple(replace(each, runs=5) for each in comparison.outcomes),
        differences=tuple(replace(each, pairs=5) for each in comparison.differences),
    )
    assert "Exploratory" not in printed(more)


def test_its_policy_allows_its_own_script_and_style_and_nothing_else(usual):
    _, _, parsed, _ = usual
    policy = parsed.value("meta", "content")[0]

    def digest(text):
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest(parsed.inside['style'][0])}'; "
        f"script-src 'sha256-{digest(parsed.inside['script'][1])}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert len(parsed.inside["script"]) == 2, "the data and one script"


def test_it_refers_to_nothing_outside_itself(usual):
    _, text, parsed, _ = usual
    links = {v for _, n, v in parsed.attributes if n in ("href", "src")}
    assert links == {f"#{section}" for section in parsed.value("section", "aria-labelledby")}
    assert {link[1:] for link in links} == set(parsed.value("h2", "id"))
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    assert not [n for _, n, _ in parsed.attributes if n == "style"], "the policy would drop it"


def test_every_reward_has_a_row_per_estimator_with_its_numbers(usual):
    comparison, _, parsed, _ = usual
    text = " ".join(parsed.words.split())
    for reward in REWARDS:
        for label in ("grpo", "gdpo"):
            final = comparison.outcome(label, reward.name).final.value
            digits = {"format": 3, "correct": 2}[reward.name]
            assert f"{final:.{digits}f}" in text


def test_a_chart_knows_each_estimators_values_at_every_step(usual):
    comparison, _, parsed, data = usual
    chart = data["charts"][0]
    assert chart["x"] == list(range(1, 13))
    curve = comparison.experiment.curves("gdpo", "format")[:, 5].mean()
    assert chart["lines"][1]["text"][5].startswith(f"{curve:.3f}")
    assert len(data["charts"]) == 3, "two rewards, and the time to the threshold of one"
    assert parsed.tags.count("figure") == 3


def test_the_advantages_are_each_estimators_own_on_the_whole_step(usual):
    comparison, _, _, data = usual
    shown, estimators = data["rollouts"], ["grpo", "gdpo"]
    assert shown["estimators"] == estimators
    whole = {}
    for group in shown["groups"]:
        run, step = comparison.experiment.runs[group["run"]], group["step"]
        if (run.path, step) not in whole:
            recorded = read_rollouts(run.path / "rollouts" / f"step_{step:06d}.parquet")
            rewards = reward_arrays(recorded).rewards
            whole[run.path, step] = [ESTIMATORS[name](rewards, np.ones(2)) for name in estimators]
        for sample in group["samples"]:
            expected = [each[group["id"], sample["id"]] for each in whole[run.path, step]]
            assert sample["advantages"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("last", "found"), [(7, False), (12, True)])
def test_findings_have_the_steps_at_which_they_held_unless_these_are_few(tmp_path, last, found):
    """64 groups show that the reward is out of reach, and the 64 after them too."""
    run = trained(tmp_path, "gdpo", 1, steps=32, groups=16)
    for step in range(5, last + 1):
        rewards = np.random.default_rng(step).random((16, 4, 2))
        rewards[..., 0] = 0.0
        record(run.path, "gdpo", step, rewards)
    _, parsed, _ = page_of(tmp_path, [run])
    text = " ".join(parsed.words.split())
    assert ("out of reach" in text) == found
    assert bool(re.search(r"seed 1: steps 5 to 12\b", text)) == found


def test_a_single_run_has_no_comparison_and_is_replayed_with_grpo_beside_it(tmp_path):
    text, parsed, data = page_of(tmp_path, [trained(tmp_path, "gdpo", 1)])
    assert "against" not in parsed.words.lower()
    assert 'id="survival"' not in text
    assert len(data["charts"]) == 2
    assert data["rollouts"]["estimators"] == ["gdpo", "grpo"]


def test_labels_that_differ_in_their_weights_alone_are_replayed_as_one_estimator(tmp_path):
    labels = ("gdpo length.weight=1", "gdpo length.weight=0.5")
    experiment = experiment_of(
        tmp_path,
        [
            replace(trained(tmp_path, "gdpo", seed, steps=3), label=label)
            for seed, label in enumerate(labels)
        ],
    )
    analysis = analyze_experiment(experiment)
    assert list(analysis.estimators) == ["gdpo", "grpo"]
    assert [each.estimator for each in analysis.replayed] == ["gdpo", "grpo"]
    assert analysis.off_record == {"gdpo": pytest.approx(0, abs=1e-6)}
    assert not any(trained.own_code for trained in analysis.estimators.values())
    assert "length.weight=0.5" in made(tmp_path, analyse(experiment))[0]


def test_labels_that_differ_in_the_options_of_their_estimator_are_replayed_with_their_own(tmp_path):
    runs = []
    for place, bound in enumerate((1.0, None)):
        run = replace(trained(tmp_path, "gdpo", place), label=f"gdpo bound={bound}")
        options = {} if bound is None else {"max_advantage": bound}
        recipe = Recipe(task="x", model="m", data=DataConfig(source="r"), advantage_options=options)
        (run.path / "recipe.yaml").write_text(recipe.to_yaml() + "influence: {format: 1}\n")
        runs.append(run)
    analysis = analyze_experiment(experiment_of(tmp_path, runs))
    assert list(analysis.estimators) == ["gdpo", "gdpo bound=None"]
    bounded, free = (
        max(np.max(np.abs(group.advantages[name])) for group in analysis.sample)
        for name in analysis.estimators
    )
    assert bounded <= 1.0 < free


def test_the_lengths_are_drawn_beside_the_rewards_where_they_were_logged(tmp_path):
    def with_lengths(run):
        mean = np.arange(12.0) + run.seed
        return replace(run, lengths={"mean": mean, "max": 10 * mean})

    runs = [with_lengths(unrecorded("gdpo", seed, tmp_path)) for seed in (1, 2, 6)]
    comparison = analyse(experiment_of(tmp_path, runs))
    mean, longest = lengths(comparison)
    assert (mean.label, longest.label) == ("mean length, tokens", "longest, tokens")
    assert mean.lines[0].value[-1] == 13.0, "the median over the seeds"
    assert longest.lines[0].value[-1] == 130.0
    assert (longest.lines[0].low[-1], longest.lines[0].high[-1]) == (125.0, 150.0)
    assert longest.high == 170.0
    page = made(tmp_path, comparison)[0]
    assert page.index("longest, tokens") < page.index('id="survival"')
    assert lengths(analyse(experiment_of(tmp_path, [unrecorded("gdpo", 1, tmp_path)]))) == []


def test_a_reward_that_is_not_compared_is_named(tmp_path):
    runs = unrecorded_pairs(tmp_path, 5)
    experiment = replace(experiment_of(tmp_path, runs), unlike=frozenset({("gdpo", "format")}))
    comparison = analyse(experiment)
    for text in (made(tmp_path, comparison)[0], printed(comparison)):
        assert re.search(r"–: [^.]*gate[^.]*grpo", text)


def test_runs_without_rollouts_say_so(tmp_path):
    runs = unrecorded_pairs(tmp_path, 5)
    text, _, data = page_of(tmp_path, runs)
    assert text.count("No rollouts were recorded") == 1
    assert not [name for name in ("filter", "findings", "advantages") if f'id="{name}"' in text]
    assert data["rollouts"]["groups"] == []


def test_a_failed_run_is_shown_with_its_reason(tmp_path):
    runs = [unrecorded("grpo", 0, tmp_path), unrecorded("gdpo", 0, tmp_path)]
    runs.append(unrecorded("gdpo", 1, tmp_path, steps=4, state="failed", why="CUDA <b>out</b>"))
    runs.append(unrecorded("grpo", 1, tmp_path, steps=0, state="failed", why="\x1b no"))
    comparison = analyse(experiment_of(tmp_path, runs))
    text, parsed, _ = made(tmp_path, comparison)
    assert "CUDA &lt;b&gt;out&lt;/b&gt;" in text
    assert "2 failed" in text
    assert "4 of 12" in parsed.words
    assert "CUDA <b>out</b>" in printed(comparison)


def test_runs_that_never_reached_the_threshold_are_marked_where_they_ended(tmp_path):
    low = [replace(r, means={n: v * 0 for n, v in r.means.items()}) for r in two_low(tmp_path)]
    high = unrecorded("gdpo", 2, tmp_path)
    high = replace(high, means={reward.name: np.full(12, reward.high) for reward in REWARDS})
    text = page_of(tmp_path, [*low, high])[0]
    # Two rewards of two estimators; in one of the estimators, the runs end at two different steps.
    assert text.count('class="censored"') == 2 * 3
    assert "not reached" in text


def two_low(folder):
    ends = ((0, 12), (1, 12)), ((0, 12), (1, 7))
    labels = zip(("grpo", "gdpo"), ends, strict=True)
    return [unrecorded(label, seed, folder, steps=n) for label, both in labels for seed, n in both]


def test_hostile_rollouts_and_names_leave_the_page_whole(hostile_rollouts, hostile_names):
    for file in (hostile_rollouts, hostile_names[1]):
        page, parsed, data = read(file)
        assert len(page.encode()) < 2_000_000
        assert parsed.tags.count("script") == len(parsed.inside["script"]) == 2
        assert not [n for _, n, _ in parsed.attributes if n.startswith("on")]
        assert not set("<>&") & set(parsed.inside["script"][0]), "they could end the element"
        assert not {"img", "base", "link", "iframe"} & set(parsed.tags)
        assert {c for c in page if not c.isprintable()} <= {"\n", "\t"}
        assert data["rollouts"]["groups"], "they are shown all the same"
    assert printed(hostile_names[0])


@pytest.mark.slow
def test_ten_runs_of_long_texts_stay_under_two_megabytes(tmp_path):
    texts = ("prompt <&> " * 800, "\u00e9<>&" * 4_000)
    experiment = two_estimators(tmp_path, seeds=range(5), steps=6, texts=texts)
    page, parsed, data = made(tmp_path, analyse(experiment))
    assert 500_000 < len(page.encode()) < 2_000_000
    assert "of 960 rollouts are shown" in parsed.words
    runs = {group["run"] for group in data["rollouts"]["groups"]}
    assert len(runs) == 10, "every run has some"


def test_the_groups_that_are_disagreed_on_most_are_shown(tmp_path):
    run = trained(tmp_path, "grpo", 1, steps=10, texts=("p" * 3_000, "c" * 4_000))
    odd = np.random.default_rng(0).random((4, 4, 2)) * [1.0, 0.001]
    odd[2] = [[1, -3], [0, 3], [0, 3], [0, 3]]
    record(run.path, "grpo", 7, odd, texts=("p", "c"))
    data = page_of(tmp_path, [run])[2]
    groups = data["rollouts"]["groups"]
    worst = max(groups, key=lambda group: max(s["disagreement"] for s in group["samples"]))
    assert (worst["step"], worst["id"]) == (7, 2)
    assert worst in groups[:3]


def test_a_long_run_is_thinned_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpo.lab.report.trained._STEPS", 20)
    run = trained(tmp_path, "gdpo", 1, steps=23, groups=1)
    page, _, data = page_of(tmp_path, [run])
    assert "of 20 steps, spread evenly over 23" in page
    assert len(data["charts"][0]["x"]) == 23
    long = unrecorded("gdpo", 1, tmp_path / "none", steps=10_000)
    data = page_of(tmp_path, [long])[2]
    assert len(data["charts"][0]["x"]) == 400


def test_a_file_that_is_no_rollout_record_is_named(tmp_path):
    run = trained(tmp_path, "gdpo", 1, steps=5)
    bad = run.path / "rollouts" / "step_000003.parquet"
    bad.write_bytes(b"PAR1 not really")
    with data_error("step_000003"):
        write_report(analyse(experiment_of(tmp_path, [run])), tmp_path / "report.html")


def test_an_estimator_that_cannot_be_replayed_is_named(tmp_path):
    runs = [trained(tmp_path, label, 1, steps=3) for label in ("grpo", "gdpo")]
    (runs[1].path / "recipe.yaml").write_text("advantage_options: {")
    _, parsed, data = page_of(tmp_path, runs)
    assert "could not be replayed" in parsed.words
    assert data["rollouts"]["groups"][0]["samples"][0]["advantages"][1] is None


@pytest.mark.parametrize("labels", [("grpo", "nobody:knows"), ("nobody:knows", "grpo")])
def test_an_estimator_of_the_users_own_is_shown_by_what_its_own_runs_recorded(tmp_path, labels):
    runs = [trained(tmp_path, label, 1, steps=3) for label in labels]  # both with GRPO's advantages
    experiment = experiment_of(tmp_path, runs)
    analysis = analyze_experiment(experiment)
    for group in analysis.sample:
        shown, others = (group.advantages[label] for label in ("nobody:knows", "grpo"))
        if labels[int(group.table.run)] == "nobody:knows":
            np.testing.assert_allclose(shown, others, atol=1e-12)
        else:
            assert np.isnan(shown).all()
    assert [(each.estimator, round(each.correlation, 6)) for each in analysis.replayed] == [
        (label, 1.0) for label in labels
    ]
    assert set(analysis.off_record) == {"grpo"}
    _, parsed, _ = made(tmp_path, analyse(experiment))
    assert "is not an estimator of gdpo" in parsed.words
    assert "could not be replayed" not in parsed.words


def test_missing_rewards_are_shown_as_missing(tmp_path):
    run = trained(tmp_path, "gdpo", 1, steps=3)
    rewards = np.random.default_rng(0).random((4, 4, 2))
    rewards[0, :, 1] = np.nan
    record(run.path, "gdpo", 2, rewards)
    data = page_of(tmp_path, [run])[2]
    step = [g for g in data["rollouts"]["groups"] if g["step"] == 2 and g["id"] == 0]
    assert [s["rewards"]["correct"] for s in step[0]["samples"]] == [None] * 4


def test_no_column_of_a_rollout_file_is_read_twice_for_a_page(tmp_path, monkeypatch):
    comparison = analyse(two_estimators(tmp_path / "runs", steps=3))
    read = Counter()

    class Counting(pq.ParquetFile):
        def __init__(self, source, *args, **kwargs):
            super().__init__(source, *args, **kwargs)
            self.path = source

        def iter_batches(self, *args, columns=None, **kwargs):
            read.update((self.path, name) for name in columns or self.schema_arrow.names)
            return super().iter_batches(*args, columns=columns, **kwargs)

    monkeypatch.setattr(pq, "ParquetFile", Counting)
    made(tmp_path, comparison)
    assert len({path for path, _ in read}) == 4 * 3
    assert {name for _, name in read} >= {"advantage", "completion"}
    assert set(read.values()) == {1}


def printed(comparison):
    console = Console(width=120, file=io.StringIO())
    console.print(summary(comparison))
    return console.file.getvalue()


def test_further_differences_and_failed_and_open_runs_are_named_everywhere(tmp_path):
    runs = [
        replace(each, means={n: v * 0 + end + each.seed / 50 for n, v in each.means.items()})
        for each in unrecorded_pairs(tmp_path, 6)
        for end in [0.6 if each.label == "gdpo" else 0.1]
    ]
    runs[0] = replace(runs[0], state="failed", why="out of memory")
    runs[-1] = replace(runs[-1], state="running")
    comparison = analyse(experiment_of(tmp_path, runs))
    sentence = further(comparison)
    assert sentence == "Also: gdpo higher in correct."
    for text in (made(tmp_path, comparison)[0], " ".join(printed(comparison).split())):
        assert sentence in text
        assert "· 1 failed · 1 not ended" in text
