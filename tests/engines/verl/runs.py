"""Runs complete trainings of verl on a CPU: runs.py NAME FOLDER --policy POLICY, runs.py --list.

Each run generates with vLLM, computes rewards and advantages, trains with FSDP under Ray, and sends
the weights back to vLLM.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import checks
from recipes import tiny

from gdpo.rollouts import read_rollouts
from training import cpu, execute, logged, plain, started, train

STEPS, GENERATIONS = 20, 16
LEARNED = 0.3
"""Least rise of the share of digits, which rose by more than 0.6 in every execution."""

WATCH = "+algorithm.gdpo_watch=true"
WATCHED = {"VERL_USE_EXTERNAL_MODULES": "watch"}
SEPARATE = (
    "actor_rollout_ref.rollout.checkpoint_engine.backend=file",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=file_weights",
    "++ray_kwargs.ray_init.num_gpus=2",
    "ray_kwargs.ray_init.num_cpus=32",
)
"""Trains and generates on separate devices. Weights go through `file_weights.py`."""

OWN_PROGRAM = (
    *SEPARATE,
    "actor_rollout_ref.hybrid_engine=False",
    "rollout.n_gpus_per_node=1",
    "trainer.rollout_data_dir=null",  # these programs fail when they write rollouts
)
"""For the trainers that verl has programs of their own for."""

SAME_WEIGHTS = 0.03
"""Largest mean difference of log-probabilities between vLLM and the trainer, in nats a token.

bfloat16 explains up to 0.01. With weights that do not arrive, it was 0.15 at the second step and
0.67 at the eighth.
"""


def gdpo(folder, policy):
    """Train with adv_estimator=gdpo/gdpo, and measure the plugin's time."""
    times = folder / "times.jsonl"
    train(folder, plain(folder, policy, STEPS), **WATCHED, GDPO_TIMES=str(times))
    return {**figures(folder), "plugin_seconds_per_step": seconds(times, STEPS)}


def mo_grpo(folder, policy):
    train(folder, plain(folder, policy, STEPS, "algorithm.adv_estimator=gdpo/mo_grpo"))
    return figures(folder, "mo_grpo")


def constrained_grpo(folder, policy):
    """Train with an estimator that has a state: a multiplier for brevity."""
    options = "{targets: {brevity: 0.07}, step_size: 2}"
    chosen = ("algorithm.adv_estimator=gdpo/constrained_grpo", f"+algorithm.gdpo_options={options}")
    train(folder, plain(folder, policy, STEPS, *chosen))
    key = "gdpo/brevity/multiplier"
    multipliers = [step[key] for step in logged(folder / "metrics.jsonl")]
    assert len(set(multipliers)) > 1, f"{key} never changed"
    return figures(folder, "constrained_grpo", {"targets": {"brevity": 0.07}, "step_size": 2})


def two_workers(folder, policy):
    """Train with two workers and two servers of vLLM."""
    train(folder, plain(folder, policy, STEPS, workers=2))
    return figures(folder)


def legacy(folder, policy):
    """Train with verl's older trainer, which writes each reward, but no advantages."""
    arguments = plain(folder, policy, STEPS, "trainer.use_v1=False", record=False)
    train(folder, arguments, **WATCHED, GDPO_SEEN=f"{folder}/record")
    return figures(folder)


def colocate_async(folder, policy):
    """Train while the next batch is generated, on the same device."""
    train(folder, plain(folder, policy, STEPS, "trainer.v1.trainer_mode=colocate_async"))
    return figures(folder, delayed=True)


def separate_async(folder, policy):
    """Train while another device generates."""
    mode = (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
    )
    train(folder, plain(folder, policy, STEPS, *mode, *SEPARATE))
    return figures(folder, delayed=True)


def one_step_off(folder, policy):
    """Train on the batch before the one that another device generates."""
    found = "hydra.searchpath=[pkg://verl.trainer.config]"
    arguments = plain(folder, policy, STEPS, found, *OWN_PROGRAM, record=False)
    program = "verl.experimental.one_step_off_policy.main_ppo"
    train(folder, arguments, program=program, **WATCHED, GDPO_SEEN=f"{folder}/record")
    return figures(folder, delayed=True)


def fully_async(folder, policy):
    """Train while another device generates without waiting for new weights."""
    sizes = (
        "data.train_batch_size=0",
        "data.gen_batch_size=1",
        f"rollout.total_rollout_steps={8 * STEPS}",
        "async_training.trigger_parameter_sync_step=1",
    )
    arguments = plain(folder, policy, STEPS, *sizes, *OWN_PROGRAM, record=False)
    program = "verl.experimental.fully_async_policy.fully_async_main"
    train(folder, arguments, program=program, **WATCHED, GDPO_SEEN=f"{folder}/record")
    return figures(folder, delayed=True)


def watch(folder, policy):
    """Train with verl's own grpo, and watch it."""
    own = ("algorithm.adv_estimator=grpo", "algorithm.gdpo_reward_weights=[1.0,1.0]", WATCH)
    train(folder, plain(folder, policy, STEPS, *own))
    return {**figures(folder, "grpo", compare=differs_from_verl), **watched(folder)}


def plain_gdpo(folder, policy):
    """Train with verl's own gdpo, which fails on the V1 trainer without gdpo, and watch it."""
    train(folder, plain(folder, policy, STEPS, "algorithm.adv_estimator=gdpo", WATCH))
    return {**figures(folder, compare=differs_from_verl), **watched(folder)}


def watched(folder):
    """Return the influence share of digits at the last step. Every step must log it."""
    shares = [step["gdpo/digits/influence_share"] for step in logged(folder / "metrics.jsonl")]
    assert len(shares) == STEPS, f"{len(shares)} of {STEPS} steps logged the influence share"
    return {"influence_share": shares[-1]}


def differs_from_verl(record, estimator, options):
    """Return the largest difference of a recorded advantage from verl's own function."""
    import torch
    from verl.trainer.ppo import core_algos

    function = core_algos.get_adv_estimator_fn(estimator)
    largest = 0.0
    for file in checks.steps(record):
        rollouts = read_rollouts(file)
        lengths = torch.tensor([each.num_tokens for each in rollouts])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        names, weights = zip(*rollouts[0].weights.items(), strict=True)
        scores = torch.zeros(mask.shape)
        totals = [sum(each.rewards.values()) for each in rollouts]
        scores[range(len(mask)), lengths - 1] = torch.tensor(totals, dtype=torch.float32)
        prompts = np.array([str(each.group_id) for each in rollouts], dtype=object)
        rewards = {
            "config": {"gdpo_reward_keys": names, "gdpo_reward_weights": weights},
            "non_tensor_batch": {n: np.array([e.rewards[n] for e in rollouts]) for n in names},
            "batch": {"prompts": mask[:, :0], "attention_mask": mask},
        }
        more = rewards if estimator == "gdpo" else {}
        tokens, _ = function(token_level_rewards=scores, response_mask=mask, index=prompts, **more)
        found = torch.tensor([each.advantage for each in rollouts])
        largest = max(largest, float((tokens[:, 0] - found).abs().max()))
    assert largest < checks.CLOSE, f"an advantage differs by {largest} from verl's {estimator}"
    return largest


def turns(folder, policy):
    """Train verl's agent loop with a tool on advantages of turns."""
    tools = Path(__file__).with_name("tools.py")
    rollout = "actor_rollout_ref.rollout"
    agent = (
        "algorithm.adv_estimator=gdpo/turn_gdpo",
        f"{rollout}.agent.default_agent_loop=tool_agent",
        f"{rollout}.multi_turn.format=digits",
        f"{rollout}.multi_turn.function_tool_path={tools}",
        f"{rollout}.multi_turn.max_assistant_turns=3",
        f"reward.custom_reward_function.path={tools.with_name('turn_scores.py')}",
        "data.max_response_length=64",
    )
    train(folder, plain(folder, policy, STEPS, *agent))
    return {
        **figures(folder, "turn_gdpo", compare=checks.turn_difference),
        "turns": number_of_turns(folder / "record"),
    }


def number_of_turns(record):
    """Return the numbers of turns that occurred. There must be rollouts of 1, 2 and 3 turns."""
    found = {len(r.turns) for file in checks.steps(record) for r in read_rollouts(file)}
    assert found == {1, 2, 3}, f"rollouts have {found} turns"
    return sorted(found)


def launch_gsm8k(folder, policy):
    """Launch the recipe, then evaluate the model and make a report."""
    faster = {"learning_rate": 2e-4}  # it decays to 0
    recipe = tiny(folder, policy, "gsm8k", prompt=448, completion=80, steps=GENERATIONS, **faster)
    execute(launched(recipe, length=528), folder)
    run = folder / "runs" / "tiny"
    rows = f"gsm8k={folder}/rows.jsonl"
    gdpo_command("evaluate", run, "--benchmarks", "gsm8k", "--data", rows, "--max-tokens", "80")
    gdpo_command("report", run)
    for file in ("model/model.safetensors", "README.md"):
        assert (run / file).is_file(), f"the run has no {file}"
    return launch_figures(folder, "format")


def launch_tool_calling(folder, policy):
    """Launch a recipe with two optimizer steps in a generation."""
    steps = 2 * GENERATIONS
    recipe = tiny(folder, policy, "tool_calling", prompt=96, completion=112, steps=steps)
    execute(launched(recipe, length=208), folder)
    return launch_figures(folder, "format")


def launch_math_length(folder, policy):
    """Launch a recipe with a length limit, a KL term, and groups that are filtered by verl."""
    limited = [{"name": "correctness"}, {"name": "token_limit", "options": {"limit": 30}}]
    name, steps = "math_length_1.5b", 2 * GENERATIONS
    recipe = tiny(folder, policy, name, prompt=128, completion=64, steps=steps, rewards=limited)
    execute(launched(recipe, length=192), folder)
    return launch_figures(folder, "length")


def killed_and_resumed(folder, policy):
    """Kill a launched run with its workers after a checkpoint, and resume it."""
    steps = 2 * GENERATIONS
    sizes = {"prompt": 96, "completion": 112, "steps": steps, "save_steps": 4}
    recipe = tiny(folder, policy, "tool_calling", **sizes)
    metrics = folder / "runs" / "tiny" / "verl" / "metrics.jsonl"
    with started(launched(recipe, length=208), folder) as first:
        code = first.wait(lambda: metrics.is_file() and len(logged(metrics)) >= 3)
    assert code is None, f"the run ended with {code} before it was killed"
    execute(launched(recipe, length=208, options=["--resume"]), folder)
    again = [step["training/global_step"] for step in logged(metrics)]
    resumed_at = again[0] if again[0] > 2 else 3  # the first checkpoint is that of generation 2
    assert again == list(range(resumed_at, GENERATIONS + 1)), f"the steps after it are {again}"
    return launch_figures(folder, "format")


def launched(recipe, *, length, options=()):
    """Return the command that launches a recipe on a CPU, with our record of its rollouts."""
    record = f"+algorithm.gdpo_rollouts={recipe.parent}/record"
    verl = [sys.executable, "-m", "gdpo", "launch", "verl", recipe, "--gpus", "1"]
    return [*verl, *options, "--", record, *cpu(length=length)]


def launch_figures(folder, component):
    """Check what a launched recipe wrote. Return its figures."""
    run, record = folder / "runs" / "tiny", folder / "record"
    rows = (run / "metrics.jsonl").read_text().splitlines()
    numbers = [json.loads(row)["step"] for row in rows]
    assert numbers == list(range(1, GENERATIONS + 1)), f"metrics.jsonl has the steps {numbers}"
    assert len(checks.steps(record)) == GENERATIONS, "steps of the record are missing"
    assert (run / "model" / "model.safetensors").is_file(), "the run has no model"
    steps = logged(run / "verl" / "metrics.jsonl")
    for files in (run, record):
        checks.analyzed(files)
    return {
        "advantage_difference": checks.advantage_difference(record),
        "logprob_difference": gaps(steps),
        "component": risen(component, checks.means(record, component)),
        "step_seconds": step_seconds(steps),
    }


def risen(name, means):
    """Return the name and its mean over the first and the last three steps. It must rise by 0.1."""
    first, last = np.mean(means[:3]), np.mean(means[-3:])
    assert last > first + 0.1, f"{name} did not rise: {means}"
    return [name, float(first), float(last)]


def gdpo_command(*arguments):
    """Run a command of gdpo in this environment. Return what it prints."""
    command = [sys.executable, "-m", "gdpo", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stderr}"
    return done.stdout


def figures(
    folder,
    estimator="gdpo",
    options=None,
    *,
    delayed=False,
    compare=checks.advantage_difference,
):
    """Check what a training on digits and brevity recorded. Return its figures.

    Args:
        folder: Folder of the run.
        estimator: Estimator with which it was trained.
        options: Options of the estimator.
        delayed: Whether batches are generated by earlier weights. vLLM and the trainer then differ,
            and only a rising reward shows that weights arrive.
        compare: Function that compares the recorded advantages with those of the estimator.
    """
    record, steps = folder / "record", logged(folder / "metrics.jsonl")
    recorded = len(checks.steps(record))
    assert recorded == STEPS, f"{recorded} steps were recorded"
    for files in filter(Path.is_dir, (record, folder / "dump")):
        checks.analyzed(files)
    return {
        "advantage_difference": compare(record, estimator, options),
        **({} if delayed else {"logprob_difference": gaps(steps)}),
        "component": checks.learned(record, "digits", LEARNED),
        "step_seconds": step_seconds(steps),
    }


def gaps(steps):
    """Return the difference of log-probabilities at the first and the last step, in nats a token.

    After an update it stays small only if vLLM has the trained weights.
    """
    values = [step["rollout_corr/log_ppl_abs_diff"] for step in steps]
    assert all(each < SAME_WEIGHTS for each in values), f"vLLM and the trainer differ by {values}"
    return [values[0], values[-1]]


def step_seconds(steps):
    """Return the median wall time of a step."""
    return float(np.median([step["timing_s/step"] for step in steps]))


def seconds(times, steps):
    """Return the plugin's CPU seconds in a step. The first step, with its imports, is left out."""
    by_name = {}
    for line in times.read_text().splitlines():
        call = json.loads(line)
        by_name.setdefault(call["name"], []).append(call["cpu"])
    later = [cpu for calls in by_name.values() for cpu in calls[len(calls) // steps :]]
    return sum(later) / (steps - 1)


RUNS = {
    "gdpo": gdpo,
    "mo_grpo": mo_grpo,
    "constrained_grpo": constrained_grpo,
    "two_workers": two_workers,
    "legacy": legacy,
    "colocate_async": colocate_async,
    "separate_async": separate_async,
    "one_step_off": one_step_off,
    "fully_async": fully_async,
    "watch": watch,
    "plain_gdpo": plain_gdpo,
    "turns": turns,
    "launch_gsm8k": launch_gsm8k,
    "launch_tool_calling": launch_tool_calling,
    "launch_math_length": launch_math_length,
    "killed_and_resumed": killed_and_resumed,
}

if __name__ == "__main__":
    checks.main(RUNS, ("verl", "vllm", "ray"))
