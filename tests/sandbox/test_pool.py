"""Workers: their number, lifetime and end, and what happens on a fork or a crash."""

import gc
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.environments import ROOT
from tests.sandbox.conftest import GOOD, ONE
from tests.sandbox.needed import needs_sandbox
from tests.sandbox.process_tree import alive, eventually, family, kill, workers

from gdpo.errors import ConfigError
from gdpo.lab.sandbox import Calls, Limits, Sandbox, SandboxError
from gdpo.lab.sandbox._workers import SandboxLaunch, SandboxWorker, WorkerDied
from gdpo.lab.sandbox.sandbox import default_sandbox

pytestmark = needs_sandbox

SLEEP = "import time\ndef f():\n    time.sleep(60)"


@pytest.fixture(scope="module")
def two():
    with Sandbox(workers=2) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox():
    with Sandbox(workers=1) as sandbox:
        yield sandbox


def works(sandbox):
    return sandbox.run(GOOD, ONE).pass_all


def test_many_programs_keep_their_order(two):
    jobs = [(f"def f(): return {i % 3}", ONE) for i in range(30)]
    assert [v.pass_all for v in two.run_many(jobs)] == [i % 3 == 1 for i in range(30)]


def test_threads_share_a_sandbox_and_each_gets_its_own_verdict(two):
    def work(number):
        for value in range(100 * number, 100 * number + 10):
            tests = Calls("f", (((), value),))
            assert two.run(f"def f(): return {value}", tests).pass_all

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


@pytest.mark.parametrize(
    ("source", "seconds", "outcome"),
    [(SLEEP, 0.3, "timeout"), ("import os\ndef f(): os._exit(0)", 60, "killed")],
)
def test_a_worker_is_replaced_after_a_program_went_too_far(source, seconds, outcome):
    others = family()  # the sandbox that this process shares may run
    with Sandbox(workers=1) as sandbox:
        assert works(sandbox)
        before = family() - others
        assert works(sandbox)
        assert family() - others == before
        assert sandbox.run(source, ONE, Limits(wall_seconds=seconds)).outcomes == (outcome,)
        assert works(sandbox)
        assert eventually(lambda: not family() & before)


def test_a_worker_is_replaced_after_a_program_left_a_file(sandbox):
    write = "def f():\n    open('/tmp/note', 'w').write('x')\n    return 1"
    read = "import os\ndef f(): return len(os.listdir('/tmp')) + 1"
    assert sandbox.run(write, ONE).pass_all
    assert sandbox.run(read, ONE).pass_all


def test_a_worker_is_replaced_after_so_many_programs():
    others = family()
    with Sandbox(workers=1, recycle_after=3) as sandbox:
        assert works(sandbox)
        first = family() - others
        for _ in range(3):
            assert works(sandbox)
        assert eventually(lambda: not family() & first)


def test_many_programs_in_one_worker_leave_it_as_it_was(sandbox):
    assert works(sandbox)
    before = family()
    assert all(v.pass_all for v in sandbox.run_many([(GOOD, ONE)] * 60))
    after = family()
    assert len(after) == len(before)
    assert len(after - before) == 1, "the grader is another one, and nothing else"


def test_a_program_changes_nothing_for_the_next(sandbox):
    spoil = """
import builtins, sys, os, json, random
builtins.len = lambda x: 7
json.loads = json.dumps = None
sys.path.clear(); sys.modules.pop("math", None); sys.setrecursionlimit(60)
os.environ["X"] = "1"; random.seed(5)
def f(): return 1
"""
    look = """
import sys, os, json, math
def f():
    alike = sys.getrecursionlimit() == 1000 and "X" not in os.environ
    return len([1]) * json.loads("1") * alike
"""
    sandbox.run(spoil, ONE)
    assert sandbox.run(look, ONE).pass_all


def test_a_worker_that_was_killed_is_replaced_and_its_job_done_again(sandbox):
    assert works(sandbox)
    kill(family())
    assert works(sandbox)


def test_a_worker_killed_twice_is_the_sandboxs_failure(sandbox):
    assert works(sandbox)
    stop = threading.Event()

    def kill_all():
        while not stop.wait(0.3):
            kill(workers())

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(SandboxError, match="twice"):
            sandbox.run(SLEEP, ONE)
    finally:
        stop.set()
        killer.join()
    assert works(sandbox)


def test_nothing_is_left_when_a_sandbox_is_closed_dropped_or_in_the_middle_of_a_job():
    before = family()
    with Sandbox(workers=2) as sandbox:
        assert works(sandbox)
    assert eventually(lambda: family() == before)
    sandbox = Sandbox(workers=1)
    assert works(sandbox)
    del sandbox
    gc.collect()
    assert eventually(lambda: family() == before)
    sandbox = Sandbox(workers=1)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, SLEEP, ONE)
        time.sleep(0.5)
        sandbox.close()
        assert isinstance(running.exception(), SandboxError)
    assert eventually(lambda: family() == before)


def test_a_sandbox_that_is_closed_while_it_starts_writes_to_no_closed_pipe():
    """The worker is ready only when its pipe has been closed."""
    late = "import sys; sys.stdin.read(); sys.stdout.buffer.write(bytes([1, 0, 0, 0, 1]))"
    worker = SandboxWorker(SandboxLaunch((sys.executable, "-c", late), {}, "", None))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run, None)
        assert eventually(worker._in_use.locked)
        worker.close()
        assert isinstance(running.exception(), WorkerDied)


def test_a_closed_sandbox_runs_nothing():
    sandbox = Sandbox(workers=1)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        assert works(sandbox)


def ended(process):
    return *process.communicate(timeout=300), process.returncode


def script(text):
    """Run this code in a separate process."""
    names = (
        "import os, sys, threading\n"
        "from tests.sandbox.process_tree import *\nfrom tests.sandbox.test_pool import *\n"
    )
    code = names + textwrap.dedent(text)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_nothing_is_left_of_a_process_that_is_killed():
    process = script(
        """
        sandbox = Sandbox(workers=2)
        sandbox.run(GOOD, ONE)
        print("running", flush=True)
        sandbox.run("while True: pass", ONE, Limits(cpu_seconds=60, wall_seconds=60))
        """
    )
    with process:
        assert process.stdout.readline() == "running\n"
        assert eventually(lambda: len(family(process.pid)) >= 4)
        theirs = family(process.pid)
        process.kill()
        assert eventually(lambda: not any(map(alive, theirs)))


def test_a_process_that_forgets_its_sandbox_ends_quietly():
    process = script("sandbox = Sandbox(workers=1)\nprint(sandbox.run(GOOD, ONE).pass_all)")
    assert ended(process) == ("True\n", "", 0)


def test_after_a_fork_parent_and_child_have_workers_of_their_own():
    process = script(
        """
        shared, other = default_sandbox(), Sandbox(workers=1)
        assert shared.run(GOOD, ONE).pass_all and other.run(GOOD, ONE).pass_all
        mine = family()
        child = os.fork()
        if not child:
            assert not pipes(), "the parent's workers would outlive it"
            assert default_sandbox().run(GOOD, ONE).pass_all and other.run(GOOD, ONE).pass_all
            assert not family() & mine
            sys.exit(0)
        for _ in range(20):
            assert shared.run(GOOD, ONE).pass_all and other.run(GOOD, ONE).pass_all
        assert os.waitpid(child, 0)[1] == 0
        assert family() == mine
        """
    )
    assert ended(process) == ("", "", 0)


def test_a_fork_in_the_middle_of_a_job_disturbs_neither():
    process = script(
        """
        shared = default_sandbox()
        done = []
        job = "import time\\ndef f():\\n    time.sleep(1)\\n    return 1"
        thread = threading.Thread(target=lambda: done.append(shared.run(job, ONE)))
        thread.start()
        time.sleep(0.5)
        child = os.fork()
        if not child:
            ok = default_sandbox().run(GOOD, ONE).pass_all
            default_sandbox().close()
            os._exit(0 if ok else 1)
        thread.join()
        assert done[0].pass_all
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert ended(process) == ("", "", 0)


def test_the_default_sandbox_is_one_per_process_and_made_anew_when_it_was_closed():
    sandbox = default_sandbox()
    assert default_sandbox() is sandbox
    assert works(sandbox)
    sandbox.close()
    assert default_sandbox() is not sandbox
    assert default_sandbox().run(GOOD, ONE).pass_all
    default_sandbox().close()


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0}, {"recycle_after": 0}, {"backend": "docker"},
        {"backend": "bwrap", "unsafe": True},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        Sandbox(**options)
