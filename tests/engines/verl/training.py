"""Runs verl on a CPU, and reads what it wrote."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from processes import Run

HERE = Path(__file__).parent
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
    "RAY_worker_niceness": "0",  # with the default, 15, workers starve on a busy machine
    "RAY_memory_monitor_refresh_ms": "0",  # it would end a run for what other processes use
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
    """Return the arguments of verl for a training on `scores.py`, with adv_estimator=gdpo/gdpo.

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
        "algorithm.adv_estimator=gdpo/gdpo",
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
    """Run a command that starts verl. It must exit with 0."""
    with started(command, folder, variables) as run:
        code = run.wait()
    assert code == 0, f"{command[:4]} exited with {code}"


def started(command, folder, variables=None):
    """Return a command that starts verl on a CPU, as a context."""
    return Run(command, folder, VARIABLES | (variables or {}))


def logged(file):
    """Return what verl logged, one dict per step."""
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [line["data"] for line in lines if "training/global_step" in line["data"]]
