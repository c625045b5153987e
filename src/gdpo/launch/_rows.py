"""The rows of a recipe as the parquet files that verl trains on."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.tasks import Problem

_SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.int64()}),
    }
)


def write_rows(file: Path, problems: Sequence[Problem], task: str) -> None:
    """Write prompts and references, whole or not at all.

    The reference is JSON, as `compute_score` takes it: a parquet column would give every row the
    fields of all others.

    Args:
        file: Where to.
        problems: Of the recipe's data.
        task: Its name, which verl keeps as `data_source`.
    """
    rows = [
        {
            "data_source": task,
            "prompt": [{"role": m["role"], "content": m["content"]} for m in problem.prompt],
            "reward_model": {"style": "rule", "ground_truth": json.dumps(problem.reference)},
            "extra_info": {"index": index},
        }
        for index, problem in enumerate(problems)
    ]
    partial = file.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), partial)
    partial.replace(file)
