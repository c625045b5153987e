"""Runs the estimators of other frameworks, through their own code, on a common batch format.

An adapter takes a `Batch` and returns a function that runs the framework's own estimator and
returns one advantage per rollout. The adapter prepares the framework's inputs (token masks, prompt
ids, a trainer) first, so that the function can be timed alone. This module contains no formula.
"""

import argparse
import importlib.util
import io
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import isnan, nan
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[[], torch.Tensor]
"""Runs an estimator and returns advantages `[rollout]`."""


@dataclass(frozen=True)
class Batch:
    """Stores the rewards of rollouts, grouped by prompt."""

    rewards: torch.Tensor
    """`[rollout, reward]`, float32; NaN where the reward function returned None."""
    sizes: list[int]
    """Rollouts of each prompt."""
    weights: list[float]
    lengths: list[int] = field(default_factory=list)
    """Tokens of each completion. Default: `tokens` for all."""
    tokens: int = 8

    @property
    def samples(self):
        """Rollouts per prompt, for frameworks that need groups of equal size."""
        if len(set(self.sizes)) > 1:
            raise NotImplementedError("groups of equal size only")
        return self.sizes[0]

    def prompt_of_each(self):
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes))

    def mask(self):
        """Return `[rollout, token]`, 1 for the tokens of a completion."""
        lengths = torch.tensor(self.lengths or [self.tokens] * len(self.rewards))
        return (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def padded(self):
        """Return `[prompt, sample, reward]`, padded with NaN."""
        groups = torch.split(self.rewards, self.sizes)
        return torch.nn.utils.rnn.pad_sequence(list(groups), batch_first=True, padding_value=nan)


def ours(batch):
    import gdpo

    rewards = batch.padded()
    there = torch.arange(rewards.shape[1]) < torch.tensor(batch.sizes)[:, None]
    if bool(there.all()):
        return lambda: gdpo.gdpo(rewards, batch.weights).reshape(-1)
    return lambda: gdpo.gdpo(rewards, batch.weights)[there]


def ms_swift(batch):
    from swift.rl_core.advantage import compute_advantages

    weights, samples = torch.tensor(batch.weights), batch.samples
    return lambda: compute_advantages(batch.rewards, weights, samples, scale_rewards="gdpo")[0]


def verl(batch):
    from verl.trainer.ppo.core_algos import compute_gdpo_outcome_advantage  # isort: skip
    from omegaconf import OmegaConf

    keys = [f"reward_{k}" for k in range(len(batch.weights))]
    config = OmegaConf.create({"gdpo_reward_keys": keys, "gdpo_reward_weights": batch.weights})
    mask = batch.mask()
    prompts = torch.zeros(len(mask), 64, dtype=torch.long)
    tensors = {
        "prompts": prompts,
        "attention_mask": torch.cat([torch.ones_like(prompts), mask], dim=1),
    }
    given = {
        "token_level_rewards": torch.zeros(mask.shape),
        "response_mask": mask,
        "index": batch.prompt_of_each().numpy().astype(str).astype(object),
        "config": config,
        "non_tensor_batch": dict(zip(keys, batch.rewards.T.numpy(), strict=True)),
        "batch": tensors,
    }
    return lambda: compute_gdpo_outcome_advantage(**given)[0][:, 0]


def nemo_rl(batch, *, leave_one_out=False):
    from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GDPOAdvantageEstimator

    config = AdvEstimatorConfig(
        name="gdpo", use_leave_one_out_baseline=leave_one_out, reward_weights=batch.weights
    )
    estimator = GDPOAdvantageEstimator(config, None)
    prompt_ids = batch.prompt_of_each()[:, None].expand(-1, 64).contiguous()
    parts = {f"reward/{k:03d}": column for k, column in enumerate(batch.rewards.T)}
    mask = batch.mask()
    return lambda: estimator.compute_advantage(prompt_ids, None, mask, repeated_batch=parts)[:, 0]


def nemo_rl_default(batch):
    return nemo_rl(batch, leave_one_out=True)


def trl(batch):
    """Run TRL's rule. It is inside the trainer, so this creates one, with a one-token policy."""
    rows = [
        {"prompt": f"prompt {prompt}", "rollout": i}
        for i, prompt in enumerate(batch.prompt_of_each().tolist())
    ]
    with redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        trainer = _trl_trainer(batch, folder, rows)
    return lambda: trainer._generate_and_score_completions(rows)["advantages"]


def _trl_trainer(batch, folder, rows):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=len(rows),
        num_generations=batch.samples,
        max_completion_length=1,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=batch.weights,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    rewards = [_column(batch.rewards[:, k].tolist(), k) for k in range(len(batch.weights))]
    model, tokenizer = _tiny_policy()
    data = Dataset.from_list(rows)
    return GRPOTrainer(model, rewards, config, train_dataset=data, processing_class=tokenizer)


def _column(values, k):
    def reward(rollout, **_):
        return [None if isnan(values[i]) else values[i] for i in rollout]

    reward.__name__ = f"reward_{k}"
    return reward


def _tiny_policy():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="<end>", pad_token="<end>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), tokenizer


def nemo_rl_commit():
    """Return the commit of the source tree that nemo_rl is imported from."""
    folder = Path(importlib.util.find_spec("nemo_rl").origin).parent
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown commit (not a git checkout)"


@dataclass(frozen=True)
class Framework:
    name: str
    distribution: str
    """Name of its package; '' if it has none."""
    adapter: Callable[[Batch], Run]
    setting: str = ""


FRAMEWORKS = [
    Framework("gdpo", "", ours),
    Framework("TRL", "trl", trl),
    Framework("ms-swift", "ms-swift", ms_swift),
    Framework("verl", "verl", verl),
    Framework("NeMo-RL", "", nemo_rl, "use_leave_one_out_baseline: false"),
    Framework("NeMo-RL, its default", "", nemo_rl_default, "use_leave_one_out_baseline: true"),
]


def present(frameworks):
    """Return the importable frameworks with their versions. The others are reported on stderr."""
    found = {}
    probe = Batch(torch.tensor([[0.0, 1], [1, 0], [0, 0], [1, 1]]), [2, 2], [1.0, 1.0])
    for framework in frameworks:
        report(f"loading {framework.name}")
        try:
            with quietly():
                framework.adapter(probe)()
            found[framework.name] = (framework, _version(framework))
        except (ImportError, PackageNotFoundError, AssertionError) as error:
            report(f"skipped {framework.name}: {error}")
    return found


def _version(framework):
    if framework.adapter is ours:
        import gdpo

        return gdpo.__version__
    return version(framework.distribution) if framework.distribution else nemo_rl_commit()


@contextmanager
def quietly():
    """Suppress the frameworks' prints, warnings and log lines."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def report(line):
    print(line, file=sys.stderr, flush=True)


def add_options(parser):
    parser.add_argument(
        "--peers-python",
        metavar="PATH",
        default=os.environ.get("PEERS_PYTHON"),
        help="Python of an environment with the other frameworks (benchmarks/peers/README.md). "
        "Everything then runs in it, gdpo included. Default: the variable PEERS_PYTHON, else this "
        "Python",
    )
    parser.add_argument(
        "--nemo-rl",
        metavar="FOLDER",
        default=os.environ.get("NEMO_RL"),
        help="checkout of NeMo-RL. Default: the variable NEMO_RL",
    )


def run_in_peers_python(options: argparse.Namespace) -> None:
    """Restart the script with the environment variables it needs, in `--peers-python` if given."""
    paths = [str(ROOT / "src"), *([options.nemo_rl] if options.nemo_rl else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GDPO_BENCHMARK_INSIDE": "1",
    }
    if "GDPO_BENCHMARK_INSIDE" in os.environ:
        return
    done = subprocess.run([options.peers_python or sys.executable, *sys.argv], env=environment)
    sys.exit(done.returncode)
