"""Runs verl on a CPU, and reads what it wrote."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
MARK = "GDPO_ENGINE_RUN"
"""Variable by which the processes of a run are found: each inherits it from the one before."""

LIMIT = 1500
"""Seconds after which verl is ended."""

VARIABLES = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # selects verl's FSDP engine
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_agent_register_timeout_ms": "300000",  # imports take long on a busy machine
    "RAY_prestart_worker_first_driver": "0",
}


def cpu(workers=1, length=128):
    """Return what verl needs on a CPU, as overrides of its configuration.

    Args:
        workers: Processes that train, each with a vLLM of its own.
        length: Tokens of the longest prompt plus the longest response.
    """
    return [
        "trainer.device=cpu",
        "data.dataloader_num_workers=0",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.enforce_eager=True",
        "+actor_rollout_ref.rollout.enable_sleep_mode=False",
        "actor_rollout_ref.rollout.free_cache_engine=False",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.max_num_seqs=64",
        f"actor_rollout_ref.rollout.max_model_len={length}",
        f"actor_rollout_ref.rollout.max_num_batched_tokens={max(length, 512)}",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16",
        "reward.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",  # slots: most of the processes wait
        f"+ray_kwargs.ray_init.num_gpus={workers}",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
    ]


def plain(folder, policy, steps, *overrides, workers=1, record=True):
    """Return the arguments of verl for a training on `scores.py`, with adv_estimator=gdpo.

    Args:
        folder: Folder of the data and of everything that verl writes.
        policy: Folder of the policy.
        steps: Number of steps.
        overrides: More overrides of verl's configuration.
        workers: Processes that train, each with a vLLM of its own.
        record: Whether to write our record. Only verl's V1 trainers do.
    """
    write_sums(folder / "train.parquet")
    return [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/train.parquet",
        "data.val_max_samples=1",
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
        f"reward.custom_reward_function.path={HERE}/scores.py",
        f"trainer.n_gpus_per_node={workers}",
        "trainer.nnodes=1",
        "trainer.logger=[console,file]",
        f"trainer.total_training_steps={steps}",
        f"trainer.total_epochs={steps}",
        "trainer.val_before_train=False",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.rollout_data_dir={folder}/dump",
        "algorithm.adv_estimator=gdpo",
        "+algorithm.gdpo_reward_keys=[digits,brevity]",
        "+algorithm.gdpo_reward_weights=[1.0,0.25]",
        *([f"+algorithm.gdpo_rollouts={folder}/record"] if record else []),
        *cpu(workers),
        *overrides,
    ]


def write_sums(file):
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {i} + {j}?"}],
            "reward_model": {"style": "rule", "ground_truth": str(i + j)},
            "extra_info": {"index": 8 * i + j},
        }
        for i in range(8)
        for j in range(8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)


def train(folder, arguments, *, program="verl.trainer.main_ppo", **variables):
    """Run a program of verl with these arguments. Its processes import modules of this folder."""
    given = {"VERL_FILE_LOGGER_PATH": f"{folder}/metrics.jsonl", "PYTHONPATH": str(HERE)}
    execute([sys.executable, "-m", program, *arguments], folder, given | variables)


def execute(command, folder, variables=None):
    """Run a command that starts verl. It must exit with 0. All its processes are ended."""
    with started(command, folder, variables) as process:
        code = process.wait(LIMIT)
    assert code == 0, f"{command[:4]} exited with {code}"


@contextmanager
def started(command, folder, variables=None):
    """Start a command. At the end of the block, end it and every process that it started."""
    sessions = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets need a short path
    mark = uuid.uuid4().hex
    environment = {**os.environ, **VARIABLES, "RAY_TMPDIR": str(sessions), MARK: mark}
    process = subprocess.Popen(
        list(map(str, command)), cwd=folder, env={**environment, **(variables or {})}
    )
    try:
        yield process
    finally:
        end(mark)
        process.wait()
        shutil.rmtree(sessions, ignore_errors=True)


def wait_for(condition, process):
    """Wait until a condition holds while a process runs."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, f"the run ended early: {process.poll()}"
        assert time.monotonic() < until, f"nothing happened for {LIMIT} s"
        time.sleep(0.5)


def end(mark):
    """Kill the processes of a run, and those that they start meanwhile."""
    while left := marked(mark):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.2)


def marked(mark):
    return [each for each in psutil.process_iter() if environment_of(each).get(MARK) == mark]


def environment_of(process):
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def logged(file):
    """Return what verl logged, one dict per step."""
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [line["data"] for line in lines if "training/global_step" in line["data"]]
