"""Writes rollouts with known numbers by the frameworks' own writers.

    python tests/conformance/others/writers.py NAME FOLDER

The rollouts are those of `known_rollouts`. Needs an environment with requirements-writers.txt.
Prints one line of JSON: the framework's version, and the missing packages that are replaced by
empty modules, which the writer does not use. Exits with 77 and the reason if the framework is not
installed.
"""

import asyncio
import json
import os
import sys
import typing
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import typing_extensions
from batches import version_of
from known_rollouts import STEPS, known
from stand_ins import NOT_HERE, empty


def groups(rollouts):
    return [list(group) for _, group in groupby(rollouts, lambda rollout: rollout.group)]


def tinker(folder, steps):
    """Write with `serialize_rollout_summaries` and `TrainingRunStore.write_rollouts`."""
    logging = import_module("tinker_cookbook.rl.rollout_logging")
    types = import_module("tinker_cookbook.rl.types")
    store = import_module("tinker_cookbook.stores.training_store")
    storage = import_module("tinker_cookbook.stores.storage")
    tokens = import_module("tinker_cookbook.completers").TokensWithLogprobs

    def trajectory(rollout):
        reason = "max_tokens" if rollout.cut else "completed"
        turn = types.Transition(
            ob=SimpleNamespace(length=3),
            ac=tokens(rollout.tokens, None, "length" if rollout.cut else "stop"),
            reward=rollout.total,
            episode_done=True,
            metrics={**rollout.rewards, f"stop/{reason}": 1.0},
        )
        return types.Trajectory([turn], SimpleNamespace(length=0), reason)

    run = store.TrainingRunStore(storage.LocalStorage(folder))
    for step, rollouts in steps.items():
        of_step = [
            types.TrajectoryGroup(
                [trajectory(r) for r in group], [0.0] * len(group), [{}] * len(group)
            )
            for group in groups(rollouts)
        ]
        tags = [["math"]] * len(of_step)
        records = logging.serialize_rollout_summaries(
            split="train", iteration=step, trajectory_groups_P=of_step, taglist_P=tags
        )
        run.write_rollouts(step, records)


def art(folder, steps):
    """Write with `write_trajectory_groups_parquet`."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it accesses the network
    write = import_module("art.utils.trajectory_logging").write_trajectory_groups_parquet
    trajectories = import_module("art.trajectories")
    choice = import_module("openai.types.chat.chat_completion").Choice

    def trajectory(rollout):
        answer = {
            "index": 0,
            "finish_reason": "length" if rollout.cut else "stop",
            "message": {"role": "assistant", "content": rollout.completion},
        }
        messages = [{"role": "user", "content": rollout.prompt}, choice.model_validate(answer)]
        return trajectories.Trajectory(
            messages_and_choices=messages, reward=rollout.total, metrics=rollout.rewards
        ).finish()

    split = folder / "trajectories" / "train"
    split.mkdir(parents=True)
    for step, rollouts in steps.items():
        of_step = [
            trajectories.TrajectoryGroup([trajectory(r) for r in group])
            for group in groups(rollouts)
        ]
        write(of_step, split / f"{step:04d}.parquet")


def slime(folder, steps):
    """Write with `save_debug_rollout_data`."""
    sample = import_module("slime.utils.types").Sample
    write = import_module("slime.observability.rollout_data_utils").save_debug_rollout_data
    for step, rollouts in steps.items():
        samples = [
            sample(
                group_index=rollout.group,
                index=place,
                prompt=rollout.prompt,
                tokens=[1, 2, *rollout.tokens],
                response=rollout.completion,
                response_length=len(rollout.tokens),
                label=rollout.truth,
                reward=rollout.rewards,
                status=sample.Status.TRUNCATED if rollout.cut else sample.Status.COMPLETED,
            )
            for place, rollout in enumerate(rollouts)
        ]
        write(str(folder / "data_{rollout_id}.pt"), samples, rollout_id=step, evaluation=False)


def open_instruct(folder, steps):
    """Write with `_save_rollouts`, which `save_rollouts_to_disk` calls in a thread."""
    write = import_module("open_instruct.rl_utils")._save_rollouts
    types = import_module("open_instruct.data_types")
    batch = import_module("open_instruct.model_utils").Batch
    for step, rollouts in steps.items():
        size = len(rollouts)
        queries = batch(
            queries=[[1, rollout.group, step] for rollout in rollouts],
            ground_truths=[[int(rollout.truth)] for rollout in rollouts],
            datasets=["math"] * size,
            raw_queries=None,
            decoded_responses=None,
            indices=None,
            scores=[rollout.total for rollout in rollouts],
        )
        request = types.RequestInfo(
            [0] * size, [0] * size, [""] * size, [""] * size, [0.0] * size, [False] * size
        )
        results = types.GenerationResult(
            responses=[rollout.tokens for rollout in rollouts],
            finish_reasons=["length" if rollout.cut else "stop" for rollout in rollouts],
            masks=[[1] * len(rollout.tokens) for rollout in rollouts],
            request_info=request,
            index=None,
            prompt_id=None,
        )
        advantages = np.array([rollout.advantage for rollout in rollouts])
        write(str(folder), "run", step, queries, results, advantages, len(groups(rollouts)[0]), 0)


def skyrl(folder, steps):
    """Write with `dump_per_dataset_eval_results`. Every other step has a score per token."""
    write = import_module("skyrl.train.utils.trainer_utils").dump_per_dataset_eval_results
    decoder = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
    for place, (step, rollouts) in enumerate(steps.items()):
        last = [[0.0] * (len(r.tokens) - 1) + [r.total] for r in rollouts]
        outputs = {
            "prompt_token_ids": [list(map(ord, rollout.prompt)) for rollout in rollouts],
            "response_ids": [list(map(ord, rollout.completion)) for rollout in rollouts],
            "rewards": last if place % 2 else [r.total for r in rollouts],
            "stop_reasons": ["length" if rollout.cut else "stop" for rollout in rollouts],
        }
        to = folder / "dumped_evals" / f"global_step_{step}_evals"
        to.mkdir(parents=True)
        of_gsm8k = ["gsm8k"] * len(rollouts)
        extras = [{"reward_spec": {"method": "rule", "ground_truth": r.truth}} for r in rollouts]
        write(to, decoder, outputs, of_gsm8k, of_gsm8k, extras, {"mean": 1.0})


def episodes(step, rollouts):
    """Return the rollouts as episodes of verifiers."""
    made = import_module("episodes").episode
    found = []
    for each in rollouts:
        name = f"{each.group}-{each.sample}"
        texts = {"prompt": each.prompt, "completion": each.completion, "cut": each.cut}
        of = made(name, each.group, each.rewards, each.weights, each.tokens, step=step, **texts)
        of.traces[0].record_metric("num_words", 7.0)
        of.traces[0].info["advantage"] = each.advantage
        found.append(of)
    return found


def prime_rl(folder, steps):
    """Write with `FileMonitor.log_episodes`."""
    monitor = import_module("prime_rl.monitors.file").FileMonitor
    config = import_module("prime_rl.configs.monitors").FileMonitorConfig

    async def logged():
        files = monitor(config())
        await files.init(output_dir=folder)
        for step, rollouts in steps.items():
            for kept in ("all", "effective"):
                await files.log_episodes(episodes(step, rollouts), step, "train", kept)

    asyncio.run(logged())


def prime_rl_platform(folder, steps):
    """Write with `episodes_to_parquet_bytes`, which prime-rl's monitor uploads."""
    write = import_module("prime_rl.monitors.prime").episodes_to_parquet_bytes
    for step, rollouts in steps.items():
        written = write(episodes(step, rollouts), "r", step)
        (folder / f"samples_step_{step}.parquet").write_bytes(written)


@dataclass(frozen=True)
class Writer:
    """Describes where a framework's writer is."""

    write: object
    package: str
    distribution: str = ""
    folders: tuple[str, ...] = ("",)
    """Folders of a checkout with its packages."""
    source: str | None = None
    """The variable that names the checkout. None: the framework is installed."""
    unused: tuple[str, ...] = ()
    """Packages that its modules import but its writer does not use."""


OF_TRAINERS = ("ray", "wandb", "vllm", "deepspeed", "olmo_core", "torchdata", "sglang")
OF_PRIME_RL = {
    "package": "prime_rl",
    "folders": ("src", "packages/prime-rl-configs/src"),
    "source": "PRIME_RL_SOURCE",
    "unused": (*OF_TRAINERS, "wandb_gql", "wandb_workspaces", "prime_cli"),
}
WRITERS = {
    "tinker": Writer(tinker, "tinker_cookbook", "tinker_cookbook"),
    "art": Writer(art, "art", "openpipe-art"),
    "slime": Writer(slime, "slime", source="SLIME_SOURCE", unused=OF_TRAINERS),
    "open-instruct": Writer(
        open_instruct,
        "open_instruct",
        source="OPEN_INSTRUCT_SOURCE",
        unused=(*OF_TRAINERS, "langdetect", "litellm", "immutabledict", "beaker", "nltk"),
    ),
    "skyrl": Writer(
        skyrl,
        "skyrl",
        folders=("", "skyrl-gym"),
        source="SKYRL_SOURCE",
        unused=(*OF_TRAINERS, "cloudpathlib", "pybase64"),
    ),
    "prime-rl": Writer(prime_rl, **OF_PRIME_RL),
    "prime-rl platform": Writer(prime_rl_platform, **OF_PRIME_RL),
}


def lacking(writer):
    """Put its checkout on the path, and return what is missing; None: nothing."""
    if writer.source is not None:
        source = os.environ.get(writer.source)
        if not source:
            return f"{writer.source} names no checkout"
        sys.path[:0] = [str(Path(source, inner)) for inner in writer.folders]
    return None if find_spec(writer.package) else f"not installed: {writer.package}"


def main(name, folder):
    writer = WRITERS[name]
    if why := lacking(writer):
        sys.stderr.write(why + "\n")
        sys.exit(NOT_HERE)
    if sys.version_info < (3, 12):  # pydantic accepts no other type there
        typing.TypedDict = typing_extensions.TypedDict
    replaced = empty(writer.unused)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    out, sys.stdout = sys.stdout, sys.stderr  # frameworks print
    writer.write(folder, {step: known(step) for step in STEPS})
    version = version_of(writer.package, writer.distribution)
    out.write(json.dumps({"version": version, "empty": sorted(replaced)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
