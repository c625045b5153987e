"""Tests that a dataset without references is refused before anything is generated."""

import pytest
from datasets import Dataset
from tests.refusals import config_error

from gdpo.integrations.trl._rewards import as_sequence, check_columns
from gdpo.rewards import Reward

REWARD = Reward("brief", lambda completion, _: float(len(completion) < 5), 0, 1)
WITH = Dataset.from_list([{"prompt": "a", "reference": {}}])
WITHOUT = Dataset.from_list([{"prompt": "a", "answer": "b"}])


def check(rewards, train_dataset, eval_dataset=None):
    arguments = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
    check_columns(as_sequence(rewards), arguments, may_add_columns=False)


def trl_style(completions, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("rewards", "datasets"),
    [
        (REWARD, (WITHOUT,)),
        ([lambda prompts: prompts, REWARD], (WITHOUT,)),
        ([REWARD], (WITH, WITHOUT)),
        ([REWARD], (WITH, {"small": WITH, "large": WITHOUT})),
    ],
)
def test_a_dataset_without_references_is_refused(rewards, datasets):
    message = "'brief'.* column 'reference'.*answer, prompt"
    with config_error(message):
        check(rewards, *datasets)


@pytest.mark.parametrize(
    ("rewards", "datasets"),
    [
        (REWARD, (WITH, None)),
        ([trl_style], (WITHOUT,)),
        ([REWARD], (WITH.to_iterable_dataset().map(dict),)),
        ([REWARD], ([{"prompt": "a"}],)),
        ([REWARD], (WITHOUT.with_transform(dict),)),
        (None, (WITHOUT,)),
    ],
)
def test_what_has_references_or_needs_none_or_cannot_be_known_passes(rewards, datasets):
    check(rewards, *datasets)
