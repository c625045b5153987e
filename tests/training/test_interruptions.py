"""Trainings that are stopped, fail or lose a process within a step: nothing finished is lost."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from tests.checkout import environment, python
from tests.refusals import config_error, reward_error
from tests.training.conftest import (
    assert_equal_runs,
    assert_resumes_exactly,
    contents,
    forget_checkpoints_after,
)

from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.checkpoints import complete
from gdpo.lab.runs.directory import RunDirectory, read_environment, read_metrics
from gdpo.lab.training import train
from gdpo.lab.training._interrupt import Stopped, StopRequest, stop_on_signal
from gdpo.lab.training.resumable import ResumableTrainer

pytestmark = pytest.mark.slow

BREAKS = """
import os, signal, time
from pathlib import Path
from gdpo import Reward

FOLDER = Path(__file__).parent

def breaks(completion, reference):
    \"\"\"What the plan of this rank says happens once, where the run has logged `at` lines.\"\"\"
    plan = FOLDER / f"plan_{os.environ.get('RANK', '0')}.txt"
    if plan.exists():
        at, run, what = plan.read_text().split(maxsplit=2)
        log = Path(run) / "metrics.jsonl"
        lines = len(log.read_text().splitlines()) if log.exists() else 0
        if Path(run).exists() and lines == int(at):
            plan.unlink()
            exec(what)
    return (len(completion) % 5) / 5

breaks = Reward("breaks", breaks, low=0, high=1)
"""

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
SWALLOW = f"""
try:
    {INTERRUPT}
except BaseException:
    pass
"""


BREAKABLE = (
    "rewards=[{name: 'own_rewards:vowels'}, {name: 'breaking:breaks'}]",
    "trainer.max_steps=5",
    "trainer.save_steps=100",
)


@pytest.fixture
def breaking(load, tmp_path):
    """Makes a recipe of 5 steps, whose reward does what is planned after one of them."""
    folder = tmp_path / "own"
    (folder / "breaking.py").write_text(BREAKS)
    sys.modules.pop("breaking", None)

    def planned(name, at, what, *changes, rank=0):
        recipe = load(f"name={name}", *BREAKABLE, *changes)
        (folder / f"plan_{rank}.txt").write_text(f"{at} {recipe.run_dir} {what}")
        return recipe

    return planned


@pytest.fixture
def whole(breaking, trained):
    """The run that nothing stops."""
    return trained("name=whole", *BREAKABLE).run


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_stop_within_a_step_saves_at_once_what_the_one_before_left(breaking, whole, sent):
    stopped = breaking("stopped", 2, f"os.kill(os.getpid(), signal.{sent})")
    result = train(stopped)
    assert (result.finished, result.steps) == (False, 2)
    assert [row["step"] for row in read_metrics(result.run)] == [1, 2]
    assert not result.run.model.exists()
    assert "2 of 5 steps are done and saved" in result.conclusion
    assert f"gdpo train {result.run.path} --resume" in result.conclusion
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = train(stopped, resume=True)
    assert (resumed.started_at, resumed.finished) == (2, True)
    assert_equal_runs(resumed.run, whole)


def test_a_stop_in_an_evaluation_saves_its_step_and_evaluates_when_resumed(breaking, load, rows):
    evaluates = (
        f"eval_data={{source: {rows}, limit: 4}}",
        "trainer.eval_steps=5",
        "trainer.per_device_eval_batch_size=4",
        "trainer.max_steps=7",
    )
    whole = train(load("name=whole", *BREAKABLE, *evaluates)).run
    assert [row["step"] for row in read_metrics(whole)] == [1, 2, 3, 4, 5, 5, 6, 7, 7]
    # Between two epochs, too: one has 5 steps.
    stopped = breaking("stopped", 5, INTERRUPT, *evaluates)
    assert train(stopped).steps == 5
    assert_equal_runs(train(stopped, resume=True).run, whole)


def test_a_stop_that_a_reward_swallows_stops_when_the_step_ends(breaking):
    stopped = breaking("stopped", 2, SWALLOW)
    assert train(stopped).steps == 3


def test_where_processes_save_together_a_stop_waits_for_the_end_of_the_step(breaking, monkeypatch):
    monkeypatch.setattr(ResumableTrainer, "saves_together", True)
    stopped = breaking("stopped", 2, INTERRUPT)
    assert train(stopped).steps == 3
    assert train(stopped, resume=True).finished


def test_a_stop_before_the_first_step_ends_leaves_a_run_that_begins_again(breaking, whole):
    stopped = breaking("stopped", 0, INTERRUPT)
    result = train(stopped)
    assert (result.finished, result.steps) == (False, 0)
    assert_equal_runs(train(stopped, resume=True).run, whole)


def test_a_reward_that_fails_costs_its_step_only(breaking, whole, caplog):
    failing = breaking("failing", 3, "raise ValueError('out of order')", "scorer.on_error=raise")
    with reward_error("out of order"):
        train(failing)
    assert re.search(r"Step 3 is saved.*--resume", caplog.text)
    result = train(failing, resume=True)
    assert result.started_at == 3
    assert_equal_runs(result.run, whole)


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6])
def test_a_run_resumes_exactly_within_a_generation_that_serves_several_steps(trained, step):
    """A generation serves six steps: three, and once more."""
    several = ("batch.prompts=3", "batch.rollouts_per_step=4", "trainer.save_total_limit=10")
    run = trained(*several, "trainer.num_iterations=2", "trainer.max_steps=8").run
    assert_resumes_exactly(run, step)


SYNCED = (
    *("trainer.sync_ref_model=true", "trainer.ref_model_sync_steps=1", "trainer.beta=0.5"),
    *("trainer.learning_rate=0.01", "trainer.save_total_limit=10"),
)
"""A reference that follows the policy."""


def test_a_run_whose_reference_follows_the_policy_resumes_exactly(trained):
    assert_resumes_exactly(trained(*SYNCED).run, 2)


def test_a_checkpoint_without_its_reference_is_refused_and_a_new_run_is_the_remedy(trained):
    run = trained(*SYNCED).run
    forget_checkpoints_after(run, 2)
    checkpoint = run.checkpoints / "checkpoint-2"
    (checkpoint / "reference.pth").unlink()
    complete(checkpoint)
    before = contents(run.path)
    with config_error(r"checkpoint-2 has no reference\.pth") as raised:
        train(load_recipe(run.path), resume=True)
    assert contents(run.path) == before
    [name] = re.findall(r"replace --resume with --set (name=\S+)", str(raised.value))
    assert train(load_recipe(run.path, [name, "trainer.max_steps=1"])).finished


def test_checkpoints_are_saved_by_time_too(load):
    changes = ["trainer.save_steps=100", "trainer.save_total_limit=10", "save_minutes=1e-9"]
    run = train(load(*changes)).run
    assert len(list(run.checkpoints.iterdir())) == 4
    with pytest.raises(ValueError, match="save_minutes"):
        load("save_minutes=0")


def test_a_second_ctrl_c_counts_a_second_later():
    request, announced = StopRequest(begun=True, may_give_up=False), []
    request.announce = lambda: announced.append(1)
    request.receive(signal.SIGINT, 10.0)
    request.receive(signal.SIGINT, 10.9)  # the launcher forwards the first one
    request.receive(signal.SIGTERM, 20.0)
    with pytest.raises(KeyboardInterrupt) as raised:
        request.receive(signal.SIGINT, 20.0)
    assert not isinstance(raised.value, Stopped)
    assert announced == [1]


def test_what_may_be_given_up_is_and_what_may_not_is_finished_first():
    request = StopRequest(begun=True)
    with pytest.raises(Stopped):
        request.receive(signal.SIGINT, 0.0)
    request = StopRequest(begun=True)
    request.forbid()
    request.receive(signal.SIGTERM, 0.0)
    with pytest.raises(Stopped):
        request.allow()


def test_a_signal_before_there_is_a_run_goes_to_whom_it_went_before():
    with stop_on_signal(StopRequest()), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_users_own_is_called_before_there_is_a_run():
    heard = []
    before = {
        number: signal.signal(number, lambda number, _frame: heard.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with stop_on_signal(StopRequest()):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize(("world_size", "rank"), [("1", "0"), ("2", "0"), ("2", "1")])
@pytest.mark.parametrize("ending", ["stop", "error", "end"])
def test_the_signal_of_the_launcher_does_not_end_a_process_that_says_what_it_saved(
    world_size, rank, ending, monkeypatch
):
    """torchrun sends SIGTERM to the main process as soon as another one has ended."""
    monkeypatch.setenv("WORLD_SIZE", world_size)
    monkeypatch.setenv("RANK", rank)
    before = signal.getsignal(signal.SIGTERM)
    request = StopRequest(begun=True, may_give_up=False)
    try:
        with suppress(ZeroDivisionError), stop_on_signal(request):
            if ending == "stop":
                os.kill(os.getpid(), signal.SIGINT)
            if ending == "error":
                raise ZeroDivisionError
        ignored = (world_size, rank) == ("2", "0") and ending != "end"
        assert signal.getsignal(signal.SIGTERM) == (signal.SIG_IGN if ignored else before)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_peers_are_reported_of_a_stop():
    def stop():
        request = StopRequest(begun=True, may_give_up=False, peers=[peer.pid])
        request.receive(signal.SIGINT, 0.0)

    waits = "import signal; print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE) as peer:
        peer.stdout.readline()
        try:
            stop()
            peer.wait(timeout=60)
        finally:
            peer.kill()
    assert peer.returncode == -signal.SIGTERM
    stop()


def two_processes(recipe, tmp_path, *options):
    """Train with torchrun; returns the exit code and what was printed."""
    file = tmp_path / f"{recipe.name}.yaml"
    file.write_text(recipe.to_yaml())
    done = python(
        *("-m", "torch.distributed.run", "--standalone"),
        *("--nproc_per_node", "2", "-m", "gdpo", "train", file, "--no-report", *options),
        env=environment(tmp_path / "own", OMP_NUM_THREADS="1"),
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def test_two_processes_stop_within_a_step_and_survive_each_other(breaking, load, tmp_path):
    halved = "batch.micro_batch=2"
    whole = load("name=whole", *BREAKABLE, halved)
    code, printed = two_processes(whole, tmp_path)
    assert code == 0, printed
    assert "8 rollouts per step on 2 processes" in printed
    assert printed.count("5 steps in") == 1, "one process prints"
    assert read_environment(RunDirectory(whole.run_dir))["processes"] == 2

    # The main process gets a SIGTERM, and saves alone.
    stopped = breaking("stopped", 2, INTERRUPT, halved, rank=1)
    code, printed = two_processes(stopped, tmp_path)
    assert code != 0
    assert printed.count("2 of 5 steps are done and saved") == 1, printed
    assert "gdpo/" not in printed, "there is no traceback"

    breaking("stopped", 3, "os.kill(os.getpid(), signal.SIGKILL)", halved, rank=1)
    code, printed = two_processes(stopped, tmp_path, "--resume")
    assert code != 0
    # The launcher tells the main process to stop, unless that has seen it before.
    assert re.search(
        "another process .* has exited. Step 3 is saved|3 of 5 steps are done", printed
    )
    assert "gdpo/" not in printed, "there is no traceback"

    code, printed = two_processes(stopped, tmp_path, "--resume")
    assert code == 0, printed
    assert_equal_runs(RunDirectory(stopped.run_dir), RunDirectory(whole.run_dir))
    hidden = {p.name for p in stopped.run_dir.rglob(".*")} - {".lock"}
    assert not hidden, "nothing is left over"


@pytest.mark.parametrize(("code", "is_main", "left"), [(0, True, 1), (0, False, 0), (130, True, 0)])
def test_processes_exit_without_a_shutdown_after_the_exit_handlers(code, is_main, left):
    """Threads of torch may abort a process that shuts down. A handler may send the last rows."""
    script = f"""
import atexit, types
from gdpo.lab.training import run
state = types.SimpleNamespace(num_processes=2, is_main_process={is_main})
state.destroy_process_group = lambda: None
run._processes = lambda: state
atexit.register(print, "handler")
run.leave_processes({code})
print("shutdown")
"""
    done = python("-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (code, "handler\n" * left, "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_of_one_process_is_told_by_that_one(breaking, tmp_path, rank):
    broken = breaking(
        "broken",
        2,
        "raise ValueError('of one rank')",
        "batch.micro_batch=2",
        "scorer={on_error: raise}",
        rank=rank,
    )
    if rank == 0:  # the launcher ends the other process, however long that takes
        longer = (
            "import time\nnow = time.sleep\ntime.sleep = lambda s: now(600 if s == 10 else s)\n"
        )
        (tmp_path / "own" / "sitecustomize.py").write_text(longer)
    code, printed = two_processes(broken, tmp_path)
    assert code != 0
    told = re.findall("^gdpo: (rank 1: )?reward 'breaks' failed", printed, re.MULTILINE)
    assert told == ["rank 1: " * rank], printed
    assert rank == 1 or "rank 1" not in printed.replace("[rank1]", ""), printed


LAUNCHER = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-m", "gdpo", "train", *sys.argv[1:]], env=os.environ)
"""


def test_a_process_whose_launcher_is_killed_before_the_start_does_not_wait_for_it(recipe_file):
    """Process 0 of 2 has nobody to find the other through, and torch would wait for minutes."""
    printed = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    agent = {"MASTER_PORT": "9", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    done = python(  # until the process that is left closes the pipe, too
        *("-c", LAUNCHER, recipe_file, "--set", "rewards=[{name: format}]"),
        env=printed | agent,
        timeout=200,
    )
    assert "launcher was killed" in done.stderr
    assert "Traceback" not in done.stderr
