"""Measures the effect of each reward from a model and rollout files, without an optimizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdpo._text import one_line
from gdpo.advantages import AdvantageRule
from gdpo.analysis.steps import batch_of
from gdpo.errors import ConfigError, DataError
from gdpo.policy.effect import Batch, MeasuredEffect, Policy, Progress
from gdpo.rewards.reward import as_messages
from gdpo.rewards.text import completion_text, from_file
from gdpo.rollouts.readers import read_rollout_files, read_texts
from gdpo.rollouts.table import RewardArrays

_FEWEST = 3
"""Minimum number of steps for a standard error. Each step is a batch."""

_LONGEST = 200
"""Maximum number of characters of a library's error message."""


def measure_files(
    folder: Path,
    paths: Sequence[Path],
    progress: Progress,
    step: int | None,
    groups: int,
    *,
    estimator: str,
    **reading: Any,
) -> MeasuredEffect:
    """Return the effect of each reward on a model, from rollouts that it wrote.

    The last steps of the files are used, as many as the number of groups requires. A policy with
    nearly the weights of the model should have generated them. Without an optimizer, the step is
    the gradient divided by its usual size, so only ratios of effects have a meaning.

    Args:
        folder: Folder of a Hugging Face model and its tokenizer. Code in it is not executed.
        paths: Rollout files or folders.
        progress: Called after each step, with the number of finished steps and of all steps.
        step: Last step whose rollouts are used. None: the last one in the files.
        groups: Number of groups, rounded up to whole steps, of which at least three are used.
        estimator: Estimator of the run.
        reading: Options of `read_texts`.

    Raises:
        ConfigError: If the folder is not such a model, or the estimator is unknown.
        DataError: If the files lack texts, or have fewer than three steps with rewards and one
            group size.
    """
    steps = _last(paths, step, groups, **reading)
    names = steps[0].table.names
    rule = AdvantageRule(estimator, names)
    tokenizer = _loaded(AutoTokenizer, folder)
    batches = [_batch(each, tokenizer, **reading) for each in steps]
    model = _loaded(AutoModelForCausalLM, folder)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    notes = [f"rollouts of {len(steps)} steps up to step {steps[-1].table.steps[0]:,}"]
    policy = Policy(model, names, np.asarray(steps[-1].weights), rule, notes)
    try:
        return policy.measured(batches, progress)
    except IndexError as error:  # of an embedding
        raise DataError(
            f"{folder}: the model has fewer tokens than its tokenizer, or fewer positions than a "
            "rollout has tokens. Pass the model that wrote the rollouts"
        ) from error


def _loaded(kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library may raise any error here
        raise ConfigError(
            f"{folder} is not a causal language model with a tokenizer: "
            f"{one_line(str(error))[:_LONGEST]}. Pass the folder that save_pretrained wrote: for "
            "a run of gdpo, RUN/model"
        ) from error


def _last(
    paths: Sequence[Path], end: int | None, groups: int, **reading: Any
) -> list[RewardArrays]:
    """Return the last steps of the last run, with at least this number of groups if possible."""
    tables = read_rollout_files(paths, **reading)
    found = [
        each
        for table in tables
        if (end is None or table.steps[0] <= end) and (each := batch_of(table)) is not None
    ]
    kinds = [(each.table.run, each.rewards.shape[1:]) for each in found]
    alike = [each for each, kind in zip(found, kinds, strict=True) if kind == kinds[-1]]
    if len(alike) < _FEWEST or np.ndim(alike[-1].weights) > 1:
        raise DataError(
            f"{paths[-1]}: the effect needs {_FEWEST} steps of a run with groups of one size, and "
            f"one weight per reward, not per prompt. Steps found: {len(alike)}. Pass such files"
        )
    return alike[-max(_FEWEST, -(-groups // len(alike[-1].rewards))) :]


def _batch(step: RewardArrays, tokenizer: Any, **reading: Any) -> Batch:
    """Return the rollouts of a step as tokens."""
    table, rows, lengths = step.table, list[list[int]](), list[int]()
    texts = {
        (number, text.row): text
        for number, file in enumerate(table.files)
        for text in read_texts(file, table.row[table.file == number].tolist(), **reading)
    }
    # Padding (-1) selects another rollout, whose coefficients are 0.
    for place in step.placed.ravel():
        text = texts[int(table.file[place]), int(table.row[place])]
        prompt, said = (from_file([each])[0] for each in (text.prompt, text.completion))
        is_chat = not isinstance(prompt, str)
        if (
            prompt is None
            or said is None
            or text.mixed
            or len(as_messages(said)) > 1
            or (is_chat and not tokenizer.chat_template)
            or tokenizer.eos_token_id is None
        ):
            raise DataError(
                f"{table.files[table.file[place]]}, row {text.row}: the effect needs a prompt with "
                "one message after it as text, and a tokenizer with an end token, and with a chat "
                "template if the prompt is a chat. Pass files with texts, or another model folder"
            )
        if is_chat:
            prompt = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=False
            )
        asked = tokenizer(prompt, add_special_tokens=not is_chat).input_ids
        ids = tokenizer(completion_text(said), add_special_tokens=False).input_ids
        # The model generated the token that ends a completion, unless it was truncated.
        if table.cut[place] != 1:
            ids.append(tokenizer.eos_token_id)
        rows.append([*asked, *ids])
        lengths.append(len(ids))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    padded = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
    from_end = torch.arange(padded.input_ids.shape[1], 0, -1)
    scored = from_end <= torch.tensor(lengths)[:, None]
    return Batch(padded.input_ids, padded.attention_mask, scored, step.rewards)
