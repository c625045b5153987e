"""One small dump of every format, with exactly the fields that its writer writes.

Files in `golden` are by the writers themselves.
"""

import csv
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def golden(name, *files):
    """A function that copies files of a golden folder, and returns the path of the last copy."""

    def copied(folder):
        for file in files:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(next((Path(__file__).parent / "golden").glob(f"{name}_*")) / file, path)
        return path

    return copied


_EVALS = "dumped_evals/global_step_3_evals/"
tinker = golden("tinker", "iteration_000003/train_rollout_summaries.jsonl")
art = golden("art", "trajectories/train/0003.parquet")
skyrl = golden("skyrl", f"{_EVALS}aggregated_results.jsonl", f"{_EVALS}gsm8k.jsonl")
open_instruct = golden("open-instruct", "run_rollouts_000000.jsonl")
platform = golden("prime-rl-platform", "samples_step_3.parquet")


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(path, records, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records), path, **options)
    return path


def rows(path, records):
    """The records in the form that the ending of the path names."""
    if path.suffix == ".jsonl":
        return lines(path, records)
    if path.suffix == ".parquet":
        return parquet(path, records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
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


def verl_v1(folder):
    return lines(
        folder / "3.jsonl",
        [
            {"input": "a", "output": "x", "gts": None, "score": s, "step": 3, "uid": uid}
            for s, uid in ((1.0, "p_1_0_0"), (0.0, "p_1_1_0"), (1.0, "p_2_0_0"), (2.0, "p_2_1_0"))
        ],
    )


def nemo_rl(folder):
    def sample(idx, prompt, reward, credit, kept):
        columns = {
            "content": ["user: " + str(prompt), "answer", "Environment: correct"],
            "rewards": reward,
            "input_lengths": len(prompt) + 3,
            "token_ids": [*prompt, 7, 8, 9, 0],
            "token_loss_mask": [*[0] * len(prompt), 1, 1, 1, 0],
            "sample_loss_mask": kept,
            "advantages": [*[0.0] * len(prompt), credit, credit, credit, 0.0],
            "generation_logprobs": [0.0],
            "prev_logprobs": [0.0],
        }
        # Its logger cuts a batch into batches of one.
        return {**{name: [value] for name, value in columns.items()}, "idx": idx}

    samples = [
        sample(0, [1, 2], 1.0, 0.7, 1.0),
        sample(1, [1, 2], 0.0, -0.7, 1.0),
        sample(2, [1, 3], 2.0, 0.0, 0.0),
        sample(3, [1, 3], 2.0, 0.0, 1.0),
    ]
    return lines(folder / "train_data_step12.jsonl", samples)


def swift(folder):
    def table(step, first):
        return {
            "step": [str(step)] * 4,
            "prompt": ["a", "a", "b", "b"],
            "completion": ["w", "x", "y", "z"],
            "MathAccuracy": [first, 0.0, 1.0, 1.0],
            "Format": [1.0, None, 0.0, 0.5],
            "advantages": [1.0, -1.0, 0.5, -0.5],
            "solution": ["4", "4", "5", "5"],
        }

    return lines(folder / "completions.jsonl", [table(1, 1.0), table(2, 0.25)])


def swift_ray(folder):
    rows = [("a", 1.0), ("a", 0.0), ("b", 0.5), ("b", 0.25)]
    records = [
        {"gen_step": 2, "prompt": prompt, "completion": "x", "reward": reward}
        for prompt, reward in rows
    ]
    return lines(folder / "completions.jsonl", records)


def results(folder):
    records = [
        {
            "example_id": i // 2,
            "prompt": [{"role": "user", "content": str(i // 2)}],
            "completion": [{"role": "assistant", "content": "x"}],
            "answer": "4",
            "reward": 1.0 + i,
            "error": None,
            "timing": {"total_ms": 3.0},
            "is_completed": True,
            "is_truncated": i == 1,
            "stop_condition": "no_tools_called",
            "metrics": {"correct": float(i), "format": 1.0, "num_turns": 1},
            "tool_defs": [],
            "token_usage": {"input_tokens": 9.0, "output_tokens": 4.0 + i},
        }
        for i in range(4)
    ]
    return lines(folder / "results.jsonl", records)


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
