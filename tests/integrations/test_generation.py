"""Tests that the decoding loop matches `generate` and computes no padding."""

import collections
from functools import partial

import numpy as np
import pytest
import torch
from tests.integrations.generating import (
    LONGEST,
    MODELS,
    SHAPE,
    TOKENS,
    by_generate,
    by_loop,
    config_of,
    lengths,
    model_of,
    parting,
    ragged,
)
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

from gdpo.integrations.trl._caches import ROOM, RoomyLayer
from gdpo.integrations.trl.generation import COVERED_SETTINGS

assert_equal = partial(assert_close, rtol=0, atol=0)


# One seed per kind, instead of every seed for every kind.
@pytest.mark.parametrize(("seed", "kind"), list(zip([0, 1, 2, 0, 1], MODELS, strict=True)))
def test_greedy_tokens_are_those_of_generate(kind, seed):
    """Covers several prompt lengths and end tokens, and rows that end at once or never."""
    model, prompts = model_of(kind, seed), ragged(8, seed)
    rows = np.random.default_rng(seed).permutation(np.repeat(np.arange(8), 4)).tolist()
    for watched in (model, parting(model)):
        expected = by_generate(watched, prompts, rows)
        assert_equal(by_loop(watched, prompts, rows), expected)
    found = lengths(expected, max(map(len, prompts)))
    assert len(set(found)) > 3
    assert min(found) <= LONGEST // 2
    assert max(found) == LONGEST


@pytest.mark.parametrize(
    ("prompts", "rows"),
    [
        (ragged(5), list(range(5))),
        (ragged(5), np.repeat(np.arange(5), 8).tolist()),
        ([[5, 6, 7], [8, 9, 10]], [0, 0, 1, 1]),  # of one length: without a mask
    ],
)
def test_any_number_of_rows_of_a_prompt_are_those_of_generate(prompts, rows):
    model = parting(model_of("llama"))
    expected = by_generate(model, prompts, rows)
    assert_equal(by_loop(model, prompts, rows), expected)


def test_a_batch_whose_rows_all_end_at_once_is_one_token_long():
    model = model_of("llama")
    found = by_loop(model, [[5, 6], [8, 9, 10]], [0, 1, 0], suppress_tokens=list(range(1, TOKENS)))
    assert found.tolist() == [[0, 5, 6, 0], [8, 9, 10, 0], [0, 5, 6, 0]]


SETTINGS = {
    "max_length": {"max_length": 30, "max_new_tokens": None},
    "max_new_tokens": {"max_new_tokens": 5},
    "min_new_tokens": {"min_new_tokens": 9},
    "do_sample": {"do_sample": True},
    "temperature": {"do_sample": True, "temperature": 0.7},
    "top_k": {"do_sample": True, "top_k": 5},
    "top_p": {"do_sample": True, "top_p": 0.8},
    "min_p": {"do_sample": True, "min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "suppress_tokens": {"suppress_tokens": [3, 4, 5]},
    "eos_token_id": {"eos_token_id": [3, 4, 5, 6]},
    "bos_token_id": {"bos_token_id": 1},
    "pad_token_id": {"pad_token_id": 9},
}


def test_every_setting_that_counts_as_covered_is_tested():
    assert set(SETTINGS) == COVERED_SETTINGS


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_sampled_from_is_what_generate_samples_from(setting):
    """Compares the processed scores of every row in every step before its end."""
    prompts, rows = ragged(4, seed=3), [0, 3, 1, 1, 2, 0, 3, 3, 2, 1, 0, 2]
    expected, found = {}, {}
    a = by_generate(parting(model_of("llama"), watch=expected), prompts, rows, **SETTINGS[setting])
    b = by_loop(parting(model_of("llama"), watch=found), prompts, rows, **SETTINGS[setting])
    assert_equal(b, a)
    assert set(found) <= set(expected)  # generate keeps computing rows that have ended
    for place, scores in found.items():
        assert_close(scores, expected[place], rtol=1e-5, atol=1e-5)
    start = max(map(len, prompts))
    ends = config_of(**SETTINGS[setting]).eos_token_id
    for row, length in zip(a, lengths(a, start, ends), strict=True):
        assert {(int(row[start]), start + step) for step in range(1, length)} <= set(found)


def test_sampled_completions_have_the_distribution_of_those_of_generate():
    """Uses up to 2 tokens from a vocabulary of 6, 5,000 completions of 2 prompts each."""
    expected = counted(by_generate, 20, temperature=0.6)
    assert deviation(counted(by_loop, 40, temperature=0.6), expected) < 3.5
    assert deviation(counted(by_loop, 41, temperature=0.67), expected) > 6


def counted(generate, seed, **setting):
    torch.manual_seed(1)
    shape = {**SHAPE, "vocab_size": 6, "initializer_range": 0.3, "eos_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**shape)).double().eval()
    setting |= {"do_sample": True, "max_new_tokens": 2, "eos_token_id": 0, "top_k": 0}
    torch.manual_seed(seed)
    sequences = generate(model, [[1, 2, 3], [4]], [0, 1] * 5000, **setting)
    return collections.Counter(map(tuple, sequences.tolist()))


def deviation(first, second):
    """Return the deviation of the chi-square of two counts, in standard deviations."""
    often = [key for key in first | second if first[key] + second[key] >= 10]
    cells = np.array([[count[key] for key in often] for count in (first, second)])
    freedom = len(often) - 2
    assert freedom > 3
    chi_square = ((cells[0] - cells[1]) ** 2 / cells.sum(axis=0)).sum()
    return (chi_square - freedom) / np.sqrt(2 * freedom)


def test_a_prompt_is_read_once_and_rows_that_have_ended_leave():
    """Counts the tokens that the model processes."""
    model, prompts = parting(model_of("llama")), ragged(4)
    rows = np.repeat(np.arange(4), 8).tolist()
    passed = []
    model.model.embed_tokens.register_forward_pre_hook(
        lambda _, given: passed.append(given[0].shape)
    )
    sequences = by_loop(model, prompts, rows)
    start = max(map(len, prompts))
    open_rows = [sum(length > i for length in lengths(sequences, start)) for i in range(1, LONGEST)]
    assert passed[0] == (len(prompts), start)
    assert [shape[1] for shape in passed[1:]] == [1] * (LONGEST - 1)
    for (batch, _), still_open in zip(passed[1:], open_rows, strict=True):
        assert still_open <= batch <= still_open / 0.9
    assert passed[-1][0] < len(rows) / 2


def test_a_layer_with_room_holds_what_a_layer_holds_and_room_for_at_most_32_more_tokens():
    draw = torch.Generator().manual_seed(0)
    plain, filled = DynamicLayer(), DynamicLayer()
    prompts = torch.rand(2, 3, 2, 5, 4, generator=draw)
    plain.update(*prompts)
    filled.update(*prompts)
    rows = torch.tensor([2, 0, 0, 1, 2, 2])
    roomy = RoomyLayer(filled)
    assert filled.keys is None  # otherwise the prompts would be stored twice
    roomy.batch_select_indices(rows)
    plain.batch_select_indices(rows)
    for step in range(115):
        if step in (3, 40, 41):
            keep = torch.arange(len(plain.keys))[torch.arange(len(plain.keys)) != 1]
            plain.batch_select_indices(keep)
            roomy.batch_select_indices(keep)
        new = torch.rand(2, len(plain.keys), 2, 1, 4, generator=draw)
        for ours, theirs in zip(roomy.update(*new), plain.update(*new), strict=True):
            assert_equal(ours, theirs)
            assert ours.untyped_storage().nbytes() <= ours[..., :1, :].numel() * 4 * (
                6 + step + ROOM
            )
        assert roomy.get_seq_length() == plain.get_seq_length() == 6 + step
