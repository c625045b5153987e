"""Rewards with a deadline run in processes that can be killed."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.refusals import config_error, reward_error
from tests.sandbox.process_tree import eventually

from gdpo.rewards import Reward, Scorer, _pool


def loop():
    while True:
        pass


def fail():
    raise ValueError("the text")


DOES = {
    "loop": loop,
    "loop in C": lambda: float(10 ** (10**9) % 7),
    "exit": lambda: os._exit(0),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "print": lambda: sys.stdout.write("[0.9]\n") and None,
    "memory": lambda: float(len(bytearray(2**32)) > 0),
    "raise": fail,
    "pid": os.getpid,
    "many": lambda: 2.0,
}


def obedient(completion, reference):
    """Carry out the action that the completion names."""
    value = DOES[completion]() if completion in DOES else None
    return reference.get("value", 0.5) if value is None else value


SLOW = Reward("slow", obedient, 0, 1, deadline=60)
HURRIED = Reward("slow", obedient, 0, 1, deadline=4)
QUICK = Reward("quick", lambda completion, _: float(completion == "fine"), 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("completion", "kind"),
    [
        ("loop", "timed out"),
        ("loop in C", "timed out"),
        ("exit", "worker died"),
        ("crash", "worker died"),
        ("memory", "raised MemoryError"),
        ("raise", "raised ValueError"),
        ("many", "out of range"),
    ],
)
def test_what_goes_wrong_costs_its_own_entry_only(completion, kind):
    texts = ["fine", completion, "also fine", "\ud800 too", "print"]
    slow = HURRIED if kind == "timed out" else SLOW
    with Scorer([slow, QUICK], workers=1, worker_memory_gb=2) as scorer:
        scores = scorer.score(texts, [{}, {}, {"value": 0.25}, {"value": None}, {}])
    wanted = [[0.5, 1], [np.nan, 0], [0.25, 0], [np.nan, 0], [0.5, 0]]
    np.testing.assert_array_equal(scores.values, wanted)
    assert [(f.reward, f.index, f.kind) for f in scores.failures] == [("slow", 1, kind)]
    assert scores.kinds("slow") == {kind: 1}


def fork_and_wait():
    if os.fork() == 0:
        time.sleep(15)


@pytest.mark.parametrize("leave", [fork_and_wait, lambda: os.system("sleep 15 &")])
def test_what_a_reward_leaves_running_does_not_hide_that_its_worker_died(leave):
    def function(completion, reference):
        if completion == "dies":
            leave()
            os._exit(3)
        return 0.5

    with Scorer([Reward("leaves", function, 0, 1, deadline=10)], workers=1) as scorer:
        scores = scorer.score(["a", "dies", "b"], [{}] * 3)
    np.testing.assert_array_equal(scores.values[:, 0], [0.5, np.nan, 0.5])
    (failure,) = scores.failures
    assert failure.kind == "worker died"
    assert "exit code 3" in failure.message


def test_only_the_process_that_scores_goes_on_after_a_reward_forked(run_script):
    text = """
        import asyncio, os
        from gdpo.rewards import Reward, Scorer
        def forks(completion, _):
            os.fork()
            return 0.5
        async def forks_in_the_loop(completion, _):
            if completion == "a":
                os.fork()
            await asyncio.sleep(0.01)
            print("asked", completion, flush=True)
            return 0.25
        both = [Reward("quick", forks, 0, 1), Reward("judge", forks_in_the_loop, 0, 1)]
        print(Scorer(both).score(["a", "b"], [{}] * 2).values.tolist(), flush=True)
    """
    out, _ = run_script(text).communicate(timeout=60)
    assert sorted(out.splitlines()) == ["[[0.5, 0.25], [0.5, 0.25]]", "asked a", "asked b"]


def loads(completion, reference):
    if "GDPO_LOADED" not in os.environ or completion == "slow":
        time.sleep(reference["load"])
    os.environ["GDPO_LOADED"] = "1"
    return 1.0


@pytest.mark.slow
def test_a_first_call_that_is_too_late_says_that_it_includes_what_is_loaded():
    reward = Reward("loads", loads, 0, 1, deadline=3)
    with Scorer([reward], workers=1) as scorer:
        (first,) = scorer.score(["a"], [{"load": 60}]).failures
        later = scorer.score(["b", "slow"], [{"load": 0}, {"load": 60}]).failures
    assert "first call" in first.message
    assert all("3 s" in failure.message for failure in later)
    assert not any("first call" in failure.message for failure in later)


MODULE = """
import threading, time
from gdpo.rewards import Reward
time.sleep(4)
lock = threading.Lock()
def function(completion, reference):
    return float(not lock.locked())
reward = Reward("own", function, 0, 1, deadline=3)
"""


@pytest.mark.slow
def test_what_a_module_loads_at_its_top_level_does_not_count(tmp_path, saved, monkeypatch):
    saved("own_slow_module.py", MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    reward = importlib.import_module("own_slow_module").reward
    with Scorer([reward], workers=1) as scorer:
        assert scorer.score(["a"], [{}]).values.tolist() == [[1.0]]


def test_on_error_worst_gives_the_lowest_value_and_raise_names_the_rollout():
    low = Reward("low", obedient, -1, 1, deadline=60)
    with Scorer([low], workers=1, on_error="worst") as scorer:
        assert scorer.score(["raise", "x"], [{}, {}]).values.tolist() == [[-1], [0.5]]
    with (
        Scorer([low], workers=1, on_error="raise") as scorer,
        reward_error(r"'low'.*ValueError: the text \(.*\); completion 1"),
    ):
        scorer.score(["x", "raise"], [{}, {}])


def test_a_process_is_replaced_when_it_is_worn_out(monkeypatch):
    monkeypatch.setattr(_pool, "RECYCLE_AFTER", 2)
    pid = Reward("pid", obedient, 0, 2**40, deadline=20)
    with Scorer([pid], workers=1) as scorer:
        pids = scorer.score(["pid"] * 3, [{"row": i} for i in range(3)]).values[:, 0].tolist()
    assert pids[0] == pids[1] != pids[2]


def waits(completion, reference):
    while not Path(reference["file"]).exists():
        time.sleep(0.01)
    return 1.0


async def writes(completion, reference):
    Path(reference["file"]).touch()
    return 0.25


def test_processes_and_judges_work_at_the_same_time(tmp_path):
    both = [Reward("waits", waits, 0, 1, deadline=20), Reward("writes", writes, 0, 1)]
    with Scorer(both, workers=1) as scorer:
        scores = scorer.score(["a"], [{"file": str(tmp_path / "file")}])
    assert scores.values.tolist() == [[1.0, 0.25]]


def first(completion, reference):
    os.environ["GDPO_SEEN"] = completion
    return 0.0


def second(completion, reference):
    return float(os.environ.get("GDPO_SEEN") == completion)


def test_the_slow_rewards_of_one_completion_run_in_one_process_one_after_the_other():
    both = [Reward("a", first, 0, 1, deadline=20), Reward("b", second, 0, 1, deadline=20)]
    with Scorer(both, workers=2) as scorer:
        scores = scorer.score([str(i) for i in range(20)], [{}] * 20)
    assert scores.values[:, 1].tolist() == [1.0] * 20


def test_closing_ends_the_processes_and_scoring_starts_them_again():
    pid = Reward("pid", obedient, 0, 2**40, deadline=20)
    scorer = Scorer([pid], workers=1)
    for _ in range(2):
        process = int(scorer.score(["pid"], [{}]).values[0, 0])
        os.kill(process, 0)
        scorer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_reward_that_cannot_be_sent_to_a_process_is_refused_with_a_remedy():
    lock = threading.Lock()

    async def judge(*_):
        return float(lock.locked())

    free = Reward("free", lambda *_: float(lock.locked()), 0, 1)
    with Scorer([free, SLOW, Reward("judge", judge, 0, 1, deadline=9)], workers=1) as scorer:
        assert scorer.score(["a"], [{}]).values.tolist() == [[0.0, 0.5, 0.0]]
    locked = replace(free, deadline=1)
    with Scorer([locked]) as scorer, config_error(r"module.* deadline"):
        scorer.score(["a"], [{}])


@pytest.fixture
def run_script(saved):
    """Start a script whose output is captured."""

    def start(text):
        script = saved("script.py", textwrap.dedent(text))
        return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)

    return start


def test_a_script_that_does_not_guard_its_main_part_is_not_run_again(run_script):
    text = """
        from gdpo.rewards import Reward, Scorer
        print("main")
        mine = Reward("mine", lambda completion, _: len(completion) / 10, 0, 1, deadline=20)
        print(Scorer([mine]).score(["ab"], [{}]).values.tolist())
    """
    out, _ = run_script(text).communicate(timeout=300)
    assert out.split() == ["main", "[[0.2]]"]


@pytest.mark.slow
def test_a_worker_does_not_outlive_the_scorer_even_if_that_is_killed(run_script):
    text = """
        import os, time
        from gdpo.rewards import Reward, Scorer
        def forever(completion, _):
            print(os.getpid(), flush=True)
            while True: pass
        Scorer([Reward("forever", forever, 0, 1, deadline=2)], workers=1).score(["a"], [{}])
    """
    script = run_script(text)
    worker = int(script.stdout.readline())
    script.kill()
    script.communicate()
    if not eventually(lambda: not Path(f"/proc/{worker}").exists()):
        os.kill(worker, signal.SIGKILL)
        raise AssertionError("the worker was left behind")


def test_an_interrupt_ends_the_batch_at_once(run_script):
    text = """
        import signal
        from gdpo.rewards import Reward, Scorer
        # A parent that runs in the background of a shell makes its children ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def forever(completion, _):
            print("began\\n", end="", flush=True)  # one write, as two workers print
            while True: pass
        scorer = Scorer([Reward("forever", forever, 0, 1, deadline=600)], workers=2)
        try:
            scorer.score(list("abcdef"), [{}] * 6)
        except KeyboardInterrupt:
            print("stopped")
    """
    script = run_script(text)
    assert script.stdout.readline() == "began\n"
    script.send_signal(signal.SIGINT)
    out, _ = script.communicate(timeout=300)
    # A worker may be ended between its "began" and the end of that line.
    assert out.endswith("stopped\n")
