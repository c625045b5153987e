"""Checks that files with the known rollouts are read with the numbers that were written."""

from dataclasses import dataclass

import numpy as np
from tests.conformance.others.known_rollouts import STEPS, WEIGHTS, known

from gdpo.integrations.torch_files import load_dump
from gdpo.rewards.text import completion_text, from_file, prompt_text
from gdpo.rollouts.readers import read_rollout_files, read_texts


@dataclass(frozen=True)
class WriterFields:
    """Describes which fields a framework's writer stores, besides step and group."""

    format: str
    rewards: tuple[str, ...] = tuple(WEIGHTS)
    """Names of the rewards. A name that is not a reward is their total."""
    weights: bool = False
    """Whether the file shows the weights: it stores them, or a total that has them."""
    total: bool = True
    advantage: bool = False
    tokens: bool = False
    cut: bool = False
    texts: bool = True


TOLD = {
    "verl": WriterFields("verl", weights=True),
    "tinker": WriterFields("tinker", weights=True, tokens=True, cut=True, texts=False),
    "art": WriterFields("art", weights=True),
    "slime": WriterFields("slime", total=False, tokens=True, cut=True),
    "open-instruct": WriterFields(
        "open-instruct", ("reward",), advantage=True, tokens=True, cut=True, texts=False
    ),
    "skyrl": WriterFields("skyrl", ("score",), cut=True),
    "prime-rl": WriterFields("verifiers", weights=True, advantage=True, tokens=True, cut=True),
    "prime-rl platform": WriterFields(
        "prime-rl", weights=True, advantage=True, tokens=True, cut=True
    ),
}


def assert_of_the_formula(printed, path):
    """Check the lines of a path: also with missing rewards, and each reward is logged."""
    found = [line for line in printed if line["path"] == path]
    assert [line["rewards"] for line in found] == [2, 3, 5]
    for line in found:
        assert max(line["difference"], line["with_missing"]) < 1e-5
        assert line["no_signal"] == 0
        assert {"gdpo/reward_0/zero_variance_groups", "gdpo/warnings"} <= set(line["metrics"])


def differences(folder, fields):
    """Return the names of fields that were read with other values than were written."""
    reading = read_rollout_files(folder, load_pt=load_dump)
    tables = list(reading)
    report = reading.report
    wrong = [
        name
        for name, read, wanted in (
            ("format", {file.format for file in report.files}, {fields.format}),
            ("skipped", report.skipped, 0),
            ("notices", list(map(str, report.notices.values())), []),
            ("steps", [table.steps[0] for table in tables], list(STEPS)),
        )
        if read != wanted
    ]
    for step, table in zip(STEPS, tables, strict=False):
        wrong += [f"{name} of step {step}" for name in _otherwise(table, known(step), fields)]
    return wrong


def _otherwise(table, rollouts, fields):
    if len(table) != len(rollouts) or table.names != fields.rewards:
        yield f"{len(table)} rollouts with {table.names}"
        return
    wanted = tuple(WEIGHTS.values()) if fields.weights else (1.0,) * len(table.names)
    if table.grouped().weights != wanted:
        yield f"weights {table.weights}"
    groups = np.array([rollout.group for rollout in rollouts])
    same = table.groups[:, None] == table.groups
    if not np.array_equal(same, groups[:, None] == groups):
        yield "groups"
    numbers = {
        "rewards": [[r.rewards.get(name, r.total) for name in fields.rewards] for r in rollouts],
        "total": [r.total if fields.total else np.nan for r in rollouts],
        "advantages": [r.advantage if fields.advantage else np.nan for r in rollouts],
        "num_tokens": [len(r.tokens) if fields.tokens else np.nan for r in rollouts],
        "cut": [r.cut if fields.cut else np.nan for r in rollouts],
    }
    for name, wanted in numbers.items():
        if not np.array_equal(getattr(table, name), np.array(wanted, float), equal_nan=True):
            yield name
    if fields.texts and _texts(table) != [(r.prompt, r.completion) for r in rollouts]:
        yield "texts"


def _texts(table):
    (file,) = table.files
    read = read_texts(file, table.row.tolist(), load_pt=load_dump)
    prompts = from_file([text.prompt for text in read])
    completions = from_file([text.completion for text in read])
    return [
        (prompt_text(asked), completion_text(said))
        for asked, said in zip(prompts, completions, strict=True)
    ]
