"""BFCL's averages over its categories. The package bfcl-eval is not needed."""

import pytest

from gdpo.lab.evaluation._bfcl import LIVE, MULTI_TURN, NON_LIVE, bfcl_averages
from gdpo.lab.evaluation._intervals import Estimate
from gdpo.lab.evaluation.benchmarks import GROUPS
from gdpo.lab.evaluation.evaluation import Result
from gdpo.lab.evaluation.tables import bfcl_lines

IN_TURNS = {name: (i / 10, 200) for i, name in enumerate(MULTI_TURN)}


def test_averages_of_v4_leave_irrelevance_apart():
    scores = dict.fromkeys((*NON_LIVE, *LIVE), (0.5, 10))
    scores["simple_java"] = (0.8, 100)  # a third of a quarter
    scores["live_simple"] = (1.0, 30)  # as many problems as the other three
    averages = bfcl_averages(scores, "V4")
    assert averages == {"Non-live": pytest.approx(0.525), "Live": pytest.approx(0.75)}
    without = {"irrelevance": (0.9, 1), "live_irrelevance": (0.5, 99), "live_relevance": (0, 99)}
    assert bfcl_averages(scores | without, "V4") == averages | {"Irrelevance": pytest.approx(0.7)}
    del scores["live_parallel"]
    assert set(bfcl_averages(scores, "V4")) == {"Non-live"}


def test_averages_of_v3_count_irrelevance_as_a_fifth_and_by_problems():
    scores = dict.fromkeys(NON_LIVE, (0.5, 10)) | {"simple_java": (0.8, 100)}
    assert "Non-live" not in bfcl_averages(scores, "v3")
    scores["irrelevance"] = (1.0, 240)
    assert bfcl_averages(scores, "v3") == {"Non-live": pytest.approx((0.6 + 3 * 0.5 + 1.0) / 5)}
    live = dict.fromkeys(LIVE, (0.5, 10)) | {"live_irrelevance": (1.0, 40)}
    assert "Live" not in bfcl_averages(live, "v3")
    live["live_relevance"] = (0.0, 20)
    assert bfcl_averages(live, "v3") == {"Live": pytest.approx((40 * 0.5 + 40) / 100)}


def test_the_papers_average_is_v3s_plain_mean_of_three():
    scores = dict.fromkeys((*NON_LIVE, "irrelevance"), (0.9, 10))
    scores |= dict.fromkeys((*LIVE, "live_irrelevance", "live_relevance"), (0.6, 10))
    assert set(bfcl_averages(scores, "v3")) == {"Non-live", "Live"}
    averages = bfcl_averages(scores | IN_TURNS, "v3")
    assert averages["Multi-turn"] == pytest.approx(0.15)
    assert averages["Overall"] == pytest.approx(0.55)
    assert "Overall" not in bfcl_averages(scores | IN_TURNS, "V4")


def result(benchmark, mean):
    return Result(benchmark, 10, 1, {"correct": Estimate(mean, 0.0, 1.0, 10)}, {}, [], {})


def test_each_printed_line_names_the_handler_and_the_version():
    ours = [result(name, 0.5) for name in GROUPS["bfcl"]]
    theirs = [result(name, 0.25) for name in GROUPS["bfcl_toolrl"] if "_turn" not in name]
    assert bfcl_lines([*ours, *theirs, result("gsm8k", 1.0)]) == [
        "bfcl, averages of BFCL v3: Non-live 0.500, Live 0.500, Multi-turn 0.500, Overall 0.500",
        "bfcl, averages of BFCL V4: "
        "Non-live 0.500, Live 0.500, Multi-turn 0.500, Irrelevance 0.500",
        "bfcl_toolrl, averages of BFCL v3: Non-live 0.250, Live 0.250",
        "bfcl_toolrl, averages of BFCL V4: Non-live 0.250, Live 0.250, Irrelevance 0.250",
    ]
    assert bfcl_lines(ours[:3]) == []
