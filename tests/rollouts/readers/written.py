"""One small dump of every format, with exactly the fields that its writer writes.

Files in `golden` are by the writers themselves, those in `golden/by-source` are made by hand after
the source of the writers.
"""

import csv
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def in_its_folder(path):
    """Make the folder of a path, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def golden(name, *files):
    """A function that copies files of a golden folder, and returns the path of the last copy."""

    def copied(folder):
        for file in files:
            path = in_its_folder(folder / file)
            shutil.copy(Path(__file__).parent / "golden" / name / file, path)
        return path

    return copied


_EVALS = "dumped_evals/global_step_3_evals/"
tinker = golden("tinker_0.6.1", "iteration_000003/train_rollout_summaries.jsonl")
art = golden("art_0.5.18", "trajectories/train/0003.parquet")
skyrl = golden("skyrl_a9564572e", f"{_EVALS}aggregated_results.jsonl", f"{_EVALS}gsm8k.jsonl")
open_instruct = golden("open-instruct_e6c3044aa", "run_rollouts_000000.jsonl")
platform = golden("prime-rl-platform_559b44772", "samples_step_3.parquet")
verl_v1 = golden("by-source/verl_v1", "3.jsonl")
nemo_rl = golden("by-source/nemo_rl", "train_data_step12.jsonl")
swift = golden("by-source/swift", "completions.jsonl")
swift_ray = golden("by-source/swift_ray", "completions.jsonl")
results = golden("by-source/results", "results.jsonl")


def lines(path, records):
    in_its_folder(path).write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(path, records, **options):
    pq.write_table(pa.Table.from_pylist(records), in_its_folder(path), **options)
    return path


def rows(path, records):
    """The records in the form that the ending of the path names."""
    if path.suffix == ".jsonl":
        return lines(path, records)
    if path.suffix == ".parquet":
        return parquet(path, records)
    with in_its_folder(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in records for key in row)))
        writer.writeheader()
        writer.writerows(records)
    return path


def verl_line(**changed):
    return {"input": "a", "output": "b", "gts": None, "score": 1.0, "step": 1, **changed}


def verl(folder, steps=(7,), prompts=("a", "b")):
    """The legacy trainer's, two samples a prompt: `acc` and `format` are its rewards."""
    for step in steps:
        lines(
            folder / f"{step}.jsonl",
            [
                {
                    "input": prompt,
                    "output": f"{prompt}{sample}",
                    "gts": "4",
                    "score": sample + 0.5,
                    "step": step,
                    "acc": bool(sample),
                    "format": 0.5,
                    "pred": "4",
                    "request_id": "r",
                }
                for prompt in prompts
                for sample in range(2)
            ],
        )
    return folder


def trace(scores, *, tokens=3, agent="solver", advantage=None, stop="done", trainable=True):
    rewards = {name: {"score": score, "weight": weight} for name, (score, weight) in scores.items()}
    return {
        "id": "t",
        "task": {"type": "Task", "data": {}, "key": "k", "hash": "h"},
        "agent": {"name": agent, "trainable": trainable},
        "nodes": [
            {
                "parent": None,
                "message": {"role": "user", "content": "q"},
                "sampled": False,
                "token_ids": [1, 2],
                "mask": [False, False],
            },
            {
                "parent": 0,
                "message": {"role": "assistant", "content": "a"},
                "sampled": True,
                "token_ids": [3] + [4] * tokens,
                "mask": [False] + [True] * tokens,
                "logprobs": [],
            },
        ],
        "calls": [],
        "rewards": rewards,
        "metrics": {"turns": 1.0},
        "info": {} if advantage is None else {"advantage": advantage},
        "stop_condition": stop,
        "timing": {},
    }


def episodes(path, step=8):
    scores = [(1.0, 0.5), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
    return lines(
        path,
        [
            {
                "id": str(i),
                "env": {"id": "math", "name": "math"},
                "task": {"type": "Task", "data": {}, "key": "k", "hash": "h"},
                "group": {"id": f"g{i // 2}"},
                "run": {"type": "train", "id": "r", "work": {"type": "train", "step": step}},
                "ok": True,
                "errors": [],
                "traces": [
                    trace(
                        {"correct": (correct, 1.0), "brief": (brief, 0.25)},
                        advantage=i - 1.5,
                        tokens=i + 1,
                        stop="max_output_tokens" if i == 3 else "done",
                    )
                ],
            }
            for i, (correct, brief) in enumerate(scores)
        ],
    )


WRITERS = {
    "tinker": tinker,
    "art": art,
    "skyrl": skyrl,
    "open-instruct": open_instruct,
    "prime-rl": platform,
    "verl v1": verl_v1,
    "nemo-rl": nemo_rl,
    "ms-swift": swift,
    "ms-swift-ray": swift_ray,
    "verifiers-results": results,
    "verl": verl,
    "verifiers": lambda folder: episodes(folder / "traces.jsonl"),
}
"""A function for each format that writes its files into a folder, and returns what to read."""


def trl(folder, records):
    """The files of TRL's trainer: one a step, with a column for each reward function."""
    for step in dict.fromkeys(row["step"] for row in records):
        of_step = [row for row in records if row["step"] == step]
        parquet(folder / "completions" / f"completions_{step:05d}.parquet", of_step)
    return folder
