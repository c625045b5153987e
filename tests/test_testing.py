"""check_reward finds each way in which a reward can break its contract."""

import asyncio
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.refusals import config_error, refusal, reward_error
from tests.sandbox.process_tree import eventually

from gdpo.errors import RewardError
from gdpo.rewards import Example, Reward
from gdpo.testing import check_reward, hostile_texts

REFERENCE = {"answer": "4"}


def tagged(completion, reference):
    """1 if the completion is the answer in a tag."""
    return float(completion == f"<answer>{reference['answer']}</answer>")


GOOD = Reward(
    "tagged",
    tagged,
    0,
    1,
    (Example("<answer>4</answer>", REFERENCE, 1.0), Example("4", {"answer": "5"}, 0.0)),
)


def with_function(function):
    return replace(GOOD, function=function)


@pytest.fixture(params=[True, False], ids=["with hypothesis", "without hypothesis"])
def check(request):
    """check_reward where hypothesis is installed, and where it is not."""

    def without_hypothesis(reward, **options):
        # No longer than the call: pytest's hypothesis plugin imports it after each test.
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "hypothesis", None)
            check_reward(reward, **options)

    return check_reward if request.param else without_hypothesis


NONE = Reward("none", lambda *_: None, 0, 1, (Example("", {}, None),))


@pytest.mark.parametrize("reward", [GOOD, NONE], ids=lambda reward: reward.name)
def test_a_reward_that_is_good_or_does_not_apply_passes(check, reward):
    check(reward)


def test_an_example_with_another_score_is_found():
    wrong = replace(GOOD, examples=(*GOOD.examples, Example("<answer>4", REFERENCE, 1.0)))
    with reward_error(r"0\.0.* 1\.0.*'<answer>4'"):
        check_reward(wrong)


@pytest.mark.parametrize("score", [None, 0.0])
def test_not_applying_is_not_the_same_as_zero(score):
    other = None if score == 0.0 else 0.0
    reward = Reward("none", lambda *_: other, 0, 1, (Example("", {}, score),))
    with reward_error(r"'none'.*example"):
        check_reward(reward)


def test_a_reward_without_examples_is_refused():
    with reward_error("has no examples"):
        check_reward(replace(GOOD, examples=()))


def cannot_encode(completion, reference):
    completion.encode()  # a lone surrogate cannot be encoded
    return tagged(completion, reference)


def wants_an_end(completion, reference):
    if completion.startswith("<answer>"):
        completion.index("</answer>")
    return tagged(completion, reference)


def recurses(completion, reference):
    def depth(text):
        return 1 + depth(text[1:]) if text[:1] == "[" else 0

    depth(completion.removeprefix("<answer>"))
    return tagged(completion, reference)


def grows(completion, reference):
    return tagged(completion, reference) + len(completion) // 10_000


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (cannot_encode, r"'tagged' .*can't encode.*\\ud800"),
        (wants_an_end, r"'tagged' .*ValueError: substring .*\(test_testing\.py:\d+\)"),
        (recurses, "recursion"),
        (grows, r"'tagged' .*\[0, 1\]"),
    ],
)
def test_a_reward_that_fails_on_odd_completions_is_found(function, named, check):
    with reward_error(named):
        check(with_function(function))


def test_a_reward_with_a_memory_is_found(check):
    seen = set()

    def forgetful(completion, reference):
        first = completion not in seen
        seen.add(completion)
        return tagged(completion, reference) if completion in ("4", "<answer>4</answer>") else first

    with reward_error(r"0\.0"):
        check(with_function(forgetful))


def test_a_reward_that_changes_its_reference_is_found(check):
    def careless(completion, reference):
        reference["seen"] = True
        return tagged(completion, reference)

    reward = replace(GOOD, function=careless, examples=(Example("4", dict(REFERENCE), 0.0),))
    with reward_error("its reference"):
        check(reward)


def test_a_slow_reward_is_found(check):
    def slow(completion, reference):
        time.sleep(0.2 if len(completion) > 500_000 else 0)
        return tagged(completion, reference)

    with reward_error(r"0\.1 s"):
        check(with_function(slow), seconds=0.1)


def ends_never(completion, reference):
    while completion != "":
        pass


async def waits_long(completion, reference):
    await asyncio.sleep(100)


async def blocks_long(completion, reference):
    time.sleep(10)
    ENDED.append(completion)


ENDED = []
"""Completions of calls that were not given up."""


def reads_badly(completion, reference):
    re.match(r"(a|a)*$", "a" * 100 + "b")


@pytest.mark.parametrize("function", [ends_never, waits_long, blocks_long, reads_badly])
def test_a_reward_that_does_not_end_is_given_up(function):
    reward = Reward("endless", function, 0, 1, (Example("a", {}, None),), deadline=1)
    with reward_error(r"0\.2 s.*: 'a'"):
        check_reward(reward, seconds=0.2)
    assert not ENDED


def test_a_reward_that_does_not_end_on_a_text_of_hypothesis_is_given_up_at_once():
    def slow(completion, reference):
        if max(completion, default="") >= "\U00010000":
            time.sleep(100)
            ENDED.append(completion)
        return tagged(completion, reference)

    with reward_error(r"0\.2 s"):
        check_reward(with_function(slow), texts=1000, seconds=0.2)
    assert not ENDED


def test_in_another_thread_a_reward_that_does_not_end_continues_in_the_background():
    ended = threading.Event()
    reward = with_function(lambda *_: ended.wait(60) and 0)
    with ThreadPoolExecutor(1) as thread:
        checked = thread.submit(check_reward, reward, seconds=0.2)
        with reward_error(r"0\.2 s"):
            checked.result(timeout=300)
    ended.set()


def test_somebody_elses_alarm_still_rings():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        check_reward(GOOD, texts=1)
        assert eventually(lambda: rung)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_two_different_values_are_both_shown():
    asked = []

    def fickle(completion, reference):
        asked.append(completion)
        return 2 if len(asked) > 1 else 1.0

    text = refusal(check_reward, with_function(fickle), error=RewardError)
    assert all(word in text for word in ("1.0", "out of range", "2.0"))


def test_what_a_reward_raised_is_the_cause():
    with pytest.raises(RewardError) as caught:
        check_reward(with_function(lambda *_: 1 / 0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_plain_function_is_refused_with_the_remedy():
    with config_error(r"Reward\('tagged', tagged, low=0, high=1\)"):
        check_reward(tagged)


def test_the_offending_text_is_shortened():
    def fragile(completion, reference):
        return tagged(completion, reference) / (len(completion) < 100_000)

    assert len(refusal(check_reward, with_function(fragile), error=RewardError)) < 1000


def test_hypothesis_finds_what_the_fixed_texts_do_not():
    def fragile(completion, reference):
        return 1 / (max(completion, default="") < "\U00010000") and tagged(completion, reference)

    with reward_error(r"division by zero.*: '\U00010000'"):
        check_reward(with_function(fragile), texts=1000)


def test_hostile_texts_are_the_same_every_time():
    texts = list(hostile_texts(GOOD, 50))
    assert texts == list(hostile_texts(GOOD, 50))
    assert texts != list(hostile_texts(GOOD, 50, seed=1))
    assert len(set(texts[-50:])) > 25


TOKENS = Reward(
    "short",
    lambda num_tokens, _: float(num_tokens <= 100),
    0,
    1,
    (Example(100, {}, 1.0), Example(101, {}, 0.0)),
    of="tokens",
)


def test_a_reward_of_the_number_of_tokens_is_tried_on_numbers():
    check_reward(TOKENS)
    with reward_error(r"too large to convert.*: 9223372036854775808"):
        check_reward(replace(TOKENS, function=lambda n, _: float(len(range(n)) <= 100)))


def test_a_coroutine_function_is_waited_for():
    async def judge(completion, reference):
        return tagged(completion, reference)

    check_reward(with_function(judge))

    async def broken(completion, reference):
        return 2.0 * tagged(completion, reference)

    with reward_error(r"out of range: .*2\.0"):
        check_reward(with_function(broken))
