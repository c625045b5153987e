"""Values that are varied: every combination, in one spelling, and what cannot be meant."""

import pytest
from tests.refusals import config_error

from gdpo.lab.experiments.grid import estimator_of, read_variants
from gdpo.lab.experiments.reading import label_of


def test_nothing_varied_is_one_variant_without_a_name():
    assert read_variants([]) == {"": ()}
    assert label_of("gdpo", "") == "gdpo"


def test_every_combination_of_values_is_a_variant():
    gates = "rewards.length.gate=null, {on: correctness, at_least: 1}"
    assert list(read_variants(["rewards.length.weight=1.0,0.50", gates]).values()) == [
        ("rewards.length.weight=1", "rewards.length.gate=null"),
        ("rewards.length.weight=1", "rewards.length.gate={on: correctness, at_least: 1}"),
        ("rewards.length.weight=0.5", "rewards.length.gate=null"),
        ("rewards.length.weight=0.5", "rewards.length.gate={on: correctness, at_least: 1}"),
    ]


def test_a_variant_is_called_by_the_names_of_its_rewards_and_by_whole_keys_else():
    given = ["rewards.length.weight=1", "rewards.0.weight=2", "trainer.beta=0.1"]
    assert list(read_variants(given)) == ["length.weight=1 rewards.0.weight=2 trainer.beta=0.1"]


@pytest.mark.parametrize("value", ["1", "0.25", "1e-06", ".inf", "true", '"a, b"', "[1, 2]", "x y"])
def test_a_value_is_given_on_as_it_was_meant(value):
    assert next(iter(read_variants([f"a.b={value},other"]).values())) == (f"a.b={value}",)


def test_a_label_knows_its_estimator():
    [variant] = read_variants(["data.source=my rows.jsonl"])
    assert estimator_of(label_of("mine:estimator", variant)) == "mine:estimator"


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (["a"], "--vary a: .*key=value,value"),
        (["a="], "key=value,value"),
        (["=1"], "key=value,value"),
        (["a=1,1.0"], "--vary a=1,1.0 .*1 twice"),
        (["a=1", "a=2"], "--vary .*a twice"),
        (["a=[1"], r"--vary a=\[1: not valid YAML"),
        (["a=1],[2"], "not valid YAML"),
        (["advantage=gdpo,grpo"], "--estimators"),
        (["trainer.seed=1,2"], "--seeds"),
        (["name=a,b"], "name"),
        (["runs_dir=a,b"], "--output"),
    ],
)
def test_a_value_that_cannot_be_varied_is_refused(vary, message):
    with config_error(message):
        read_variants(vary)


def test_schedules_are_varied_like_numbers():
    schedule = "{from: 1, to: 0.2, steps: 200}"
    assert list(read_variants([f"rewards.length.weight=1,{schedule}"]).values()) == [
        ("rewards.length.weight=1",),
        (f"rewards.length.weight={schedule}",),
    ]
