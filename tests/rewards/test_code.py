import pickle
import time
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import data_error
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.rewards import code
from gdpo.lab.rewards.code import LONGEST, extract_code, no_bug, pass_all, pass_rate, verdict_of
from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Stdio
from gdpo.lab.sandbox.sandbox import default_sandbox
from gdpo.rewards import score
from gdpo.testing import check_reward

REWARDS = (pass_rate, pass_all, no_bug)
ADD = {"kind": "asserts", "statements": ["assert add(1, 2) == 3", "assert add(1, -1) == 0"]}


def calls_of(cases):
    return {"kind": "calls", "function": "f", "cases": cases}


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\na\n```", "a"),
        ("```python\na\n```\nand\n```python\nb\n```", "b"),
        ("```python\na\n```\nwhich prints\n```\n1\n```", "a"),
        ("```python\na\n```\nrun it:\n```bash\npython a.py\n```\n", "a"),
        ("```\na\n```\n```\nb\n```", "b"),
        ("```python\na\n```\n```\nb\n```", "a"),
        ("```js\na\n```", "a"),
        ("a = 1\n", "a = 1\n"),
        ("", ""),
        ("  ```Python\n  if a:\n      b\n  ```", "if a:\n    b"),
        ("1. So:\n\t```py\n\ta\n\t```", "a"),
        ("  ```python\n  a\nb\n ```", "a\nb"),
        ("```python3 title='a.py'\na\n```", "a"),
        ("```{.python}\na\n```", "a"),
        ("``` python \na\n``` ", "a"),
        ("~~~python\na\n```\nb\n~~~", "a\n```\nb"),
        ("````python\na\n```\nb\n`````", "a\n```\nb"),
        ("```python\r\na\r\nb\r\n```\r\n", "a\r\nb\r"),
        ("```python\na\nb", "a\nb"),  # never closed
        ("```python\na\n```\n```python\n", "a"),  # an empty block does not count
        ("```python\na\n```\n```python\n\n  \n```", "a"),
        ("```python\n\n\n```", "```python\n\n\n```"),  # none that counts: the whole text
        ("```python print(1)```", "```python print(1)```"),  # marks within a line
        ("so ```python\na\n```", "so ```python\na\n```"),
        ("```python\n'''\n``` is no end\n'''\n```", "'''\n``` is no end\n'''"),
        ("<think>```python\na\n```</think>\nb", "\nb"),
        ("<think>```python\na\n```</think>\n```\nb\n```", "b"),
        ("<think>a</think>\n```\nb\n```\n</think>", "b"),  # the thinking ends at the first tag
        ("<think>\n```python\na\n```", "a"),  # never answered: what was thought of last
    ],
)
def test_code_is_the_last_python_block_or_the_last_block_or_all(completion, program):
    assert extract_code(completion) == program


WHOLE = "import math\n\n@cached\ndef f(x):\n    return x\n"
CUT = "def g(x):\n    return ("


@pytest.mark.parametrize(
    ("block", "program"),
    [
        (f"{WHOLE}\nassert f(1) ==", WHOLE),
        (f"{WHOLE}\nassert f(1) == 1\nassert f(", f"{WHOLE}\nassert f(1) == 1"),
        (f"{WHOLE}\nassert f(\n    1,\n# two\n    2", WHOLE),
        (f"{WHOLE}\ndef test():\n    assert f(1) == 1\n    assert f(2", WHOLE),
        (f'{WHOLE}\nprint("""\nso\nit\nis', WHOLE),
        (f"{WHOLE}\ntry:\n    f(1)\nexcept ValueError:\n    print(", f"{WHOLE}"),
        (f"{WHOLE}\n@cached\n{CUT}", WHOLE),
        (
            f"class A:\n    def f(self):\n        return 1\n{CUT}",
            "class A:\n    def f(self):\n        return 1",
        ),
        (f"{WHOLE}\nif f(1):", WHOLE),
        # Nothing whole is defined: the program is what it is.
        (CUT, CUT),
        (f"import math\n{CUT}", f"import math\n{CUT}"),
        (f"class A:\n    a = 1\n\n    {CUT}", f"class A:\n    a = 1\n\n    {CUT}"),
        ("n = 1\nprint(n\n", "n = 1\nprint(n\n"),
    ],
)
def test_a_program_that_is_cut_within_later_code_keeps_what_stands_whole_before_it(block, program):
    found = extract_code(f"So:\n```python\n{block}")
    assert found.rstrip("\n") == program.rstrip("\n")
    assert extract_code(f"So:\n```\n{block}") == found
    closed = f"So:\n```python\n{block}\n```"
    assert extract_code(closed) == block


def test_tests_that_are_cut_in_a_block_of_their_own_leave_the_program_before_them():
    tests = "Tests:\n```python\nassert f(1) == 1\nassert f("
    assert extract_code(f"```python\n{WHOLE}```\n{tests}") == WHOLE.rstrip("\n")
    assert extract_code(f"```python\n{WHOLE}```\n{tests}2)").endswith(
        "assert f(1) == 1\nassert f(2)"
    )
    assert extract_code(tests) == "assert f(1) == 1\nassert f("


@needs_sandbox
def test_a_whole_function_before_a_cut_end_passes_and_a_cut_one_is_a_bug():
    right = "def add(a, b):\n    return a + b\n"
    scores = {
        text: [r.function(f"```python\n{text}", {"tests": ADD}) for r in REWARDS]
        for text in (f"{right}assert add(1", f"{right}    retu", "def add(a, b):\n    return (a")
    }
    assert list(scores.values()) == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


@given(st.text(st.characters(exclude_categories=())))
def test_code_is_taken_as_it_is_written(text):
    lines = text.replace("\r", "").split("\n")
    if not text.strip() or any(line.strip().startswith("```") for line in lines):
        return
    if "</think>" not in text:
        assert extract_code(f"so\n```python\n{text}\n```\nis it") == text


@given(
    st.lists(
        st.sampled_from(["```", "````", "~~~", "python", "\n", "  ", "\t", "a", "`", "</think>"])
        | st.text(st.characters(exclude_categories=()), max_size=3)
    ).map("".join)
)
def test_code_is_a_part_of_the_text_whatever_the_text(text):
    assert all(line.strip() in text for line in extract_code(text).split("\n"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        *("```", "`", " ", "\n", "```\n", "```python\n", "~~~ \n", "\t```\n", "``` `\n", "```  a"),
        *("@a\n", "f(\n", "a\n", "try:\n a\n", "-", "not ", "a\\\n", "'", "{1:", "1+", "\0"),
    ],
)
def test_code_is_found_in_linear_time(piece):
    text = piece * (100_000 // len(piece))
    start = time.process_time()
    extract_code(text + "`")
    extract_code(" " * 50_000 + text)
    extract_code(f"```python\ndef f(): 1\n{text[:99_000]}")
    assert time.process_time() - start < 5  # a quarter of what a quadratic one takes


def test_the_end_of_a_long_answer_is_looked_at():
    assert extract_code("```python\na\n```\n" + "b" * 99_000) == "a"
    assert extract_code("```python\na\n```\n" + "b" * 100_000) == "b" * 100_000


def test_tests_of_every_kind_are_read():
    check = {"kind": "check", "code": "def check(c): assert c(1)", "entry_point": "f"}
    calls = calls_of([[[1, [2]], {"a": 1}], [[], None]])
    stdio = {"kind": "stdio", "cases": [["1\n", "2\n"]]}
    read = [code.tests_of(each) for each in (ADD, check, calls, stdio)]
    assert read == [
        Asserts(("assert add(1, 2) == 3", "assert add(1, -1) == 0")),
        Check("def check(c): assert c(1)", "f"),
        Calls("f", (((1, [2]), {"a": 1}), ((), None))),
        Stdio((("1\n", "2\n"),)),
    ]


def test_a_reference_without_tests_has_none_and_gets_no_reward():
    assert [reward.function("a", {"tests": None}) for reward in REWARDS] == [None] * 3


def test_what_is_none_is_not_there():
    """A key with the value None is ignored: Arrow gives every row the keys of all others."""
    filled = {**ADD, "setup": None, "code": None, "entry_point": None, "function": None}
    assert code.tests_of(filled) == code.tests_of(ADD)
    assert code.limits_of({"limits": {"cpu_seconds": None}}) == Limits()


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (["assert 1"], r"'tests' .*got list"),
        ("asserts", r"'tests' .*got str"),
        ({"statements": ["assert 1"]}, r"'tests\.kind' .*asserts, .*got nothing"),
        ({"kind": "assert"}, r"'tests\.kind' .*got str 'assert'"),
        ({"kind": ["asserts"]}, r"'tests\.kind' .*got list"),
        ({"kind": "asserts"}, r"'statements'"),
        ({"kind": "asserts", "statements": "assert 1"}, r"'tests': Asserts\.statements "),
        ({"kind": "asserts", "statements": []}, r"'tests': Asserts\.statements "),
        ({"kind": "asserts", "statements": [1]}, r"Asserts\.statements\[0\] "),
        ({**ADD, "set_up": ""}, r"'set_up': did you mean 'setup'"),
        ({**ADD, "setup": 1}, r"Asserts\.setup .*got int 1"),
        ({"kind": "check", "code": "def check(c): pass"}, r"'entry_point'"),
        ({"kind": "calls", "function": "f"}, r"'cases'"),
        (calls_of([]), r"Calls\.cases is empty"),
        (calls_of([[1, 2]]), r"Calls\.cases\[0\]: .*got int 1"),
        (calls_of([[[1]]]), r"Calls\.cases\[0\] .*got list"),
        ({"kind": "stdio", "cases": [["a", "b"], ["a", 1]]}, r"Stdio\.cases\[1\]\[1\] "),
        ({"kind": "stdio", "cases": [[]]}, r"Stdio\.cases\[0\] .*got list"),
        ({"kind": "x" * 100}, r"got str 'x{59}…$"),
        ({"kind": "stdio", "cases": [{"a": "b"}]}, r"Stdio\.cases\[0\] .*got dict"),
    ],
)
def test_data_that_are_no_tests_are_refused_by_name(tests, message):
    with data_error(message):
        code.tests_of(tests)


def test_limits_are_read():
    read = code.limits_of({"limits": {"cpu_seconds": 2, "wall_seconds": 3.5}})
    assert read == Limits(cpu_seconds=2, wall_seconds=3.5)
    assert code.limits_of({}) == Limits()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (4, r"'limits' .*got int 4"),
        ({"cpu_second": 1}, r"did you mean 'cpu_seconds'"),
        ({"cpu_seconds": 0}, r"'limits': .*'cpu_seconds'"),
        ({"cpu_seconds": "1"}, r"'limits': .*cpu_seconds"),
        ({"wall_seconds": LONGEST + 1}, r"'limits\.wall_seconds' .*60.* got 61"),
    ],
)
def test_limits_that_are_none_are_refused_by_name(limits, message):
    with data_error(message):
        code.limits_of({"limits": limits})


@pytest.mark.parametrize("reward", REWARDS, ids=lambda reward: reward.name)
def test_the_rewards_run_where_they_can_be_killed(reward):
    assert reward.deadline > LONGEST
    sent = pickle.loads(pickle.dumps(reward.function))
    assert sent.func is reward.function.func
    assert sent.keywords == {"name": reward.name}


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("reward", REWARDS, ids=lambda reward: reward.name)
def test_the_rewards_keep_their_contract(reward):
    check_reward(reward, texts=40)


@pytest.fixture
def ran(monkeypatch):
    """Return the programs that were run."""
    sources = []
    box = default_sandbox()
    run = type(box).run

    def counted(self, source, *rest):
        sources.append(source)
        return run(self, source, *rest)

    monkeypatch.setattr(type(box), "run", counted)
    return sources


@needs_sandbox
def test_a_program_runs_once_for_all_rewards(ran):
    programs = [f"def add(a, b): return a + b + {n}" for n in (0, 1, 0)]
    values = [
        [reward.function(program, {"tests": ADD}) for program in programs] for reward in REWARDS
    ]
    assert values == [[1, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert len(ran) == 2


@needs_sandbox
def test_only_the_last_verdicts_are_kept(ran, monkeypatch):
    monkeypatch.setattr(code, "_recent", OrderedDict())
    monkeypatch.setattr(code, "_KEPT", 2)
    programs = [f"def add(a, b): return a + b + {n}" for n in (0, 1, 0, 2, 1, 0)]
    assert [pass_all.function(each, {"tests": ADD}) for each in programs] == [1, 0, 1, 0, 0, 1]
    assert ran == [programs[0], programs[1], programs[3], programs[0]]


@pytest.mark.slow
@needs_sandbox
def test_a_verdict_of_the_clock_serves_each_reward_once_and_one_of_the_processor_time_for_ever(ran):
    sleeps, loops = "import time\ntime.sleep(600)", "while True: pass"
    reference = {"tests": ADD, "limits": {"wall_seconds": 0.3, "cpu_seconds": 1}}
    for _ in range(2):
        for program in (sleeps, loops):
            assert [reward.function(program, reference) for reward in REWARDS] == [0, 0, 0]
    assert ran == [sleeps, loops, sleeps]
    assert verdict_of(sleeps, reference).by_clock
    assert not verdict_of(loops, reference).by_clock
    assert len(ran) == 3


@pytest.mark.slow
@needs_sandbox
def test_other_tests_or_limits_are_another_run():
    program = "def f(x): return {1: 2}"
    whole = calls_of([[[0], {1: 2}]])
    text = calls_of([[[0], {"1": 2}]])
    assert verdict_of(program, {"tests": whole}).pass_all
    assert not verdict_of(program, {"tests": text}).pass_all
    slow = "import time\ntime.sleep(2)\ndef add(a, b): return a + b"
    assert verdict_of(slow, {"tests": ADD, "limits": {"wall_seconds": 0.1}}).bug == "timeout"
    assert verdict_of(slow, {"tests": ADD}).pass_all


@needs_sandbox
def test_a_wrong_answer_is_no_bug_and_a_bug_may_pass_some_tests():
    program = "def add(a, b):\n    if b < 0: raise ValueError\n    return a + b"
    values = score(REWARDS, [program, "def add(a, b): return 0"], [{"tests": ADD}] * 2).values
    assert values.tolist() == [[0.5, 0, 0], [0.5, 0, 1]]
