"""Rows of a step depend on seed and step; each pass reads the text once, with repeated rows."""

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.model.passes.inputs import NOT_COUNTED
from probekit.training.batches import Batches
from probekit.training.recipe import RepeatsSection

N_CTX = 8


def batches(n_tokens=200, n_rows=4, share=(0.0, 0.0), seed=3, **repeats):
    repeats = RepeatsSection(share=share, period=(2, 4), **repeats)
    return Batches(np.arange(n_tokens, dtype=np.uint16), n_rows, N_CTX, 500, repeats, seed)


def test_each_token_of_the_text_predicts_the_next():
    ids, targets = batches().at(0)
    assert ids.shape == targets.shape == (4, N_CTX)
    assert (targets == ids + 1).all()


def test_a_pass_reads_every_window_once_and_the_next_in_another_order():
    one = batches(n_rows=1)
    passes = [
        [one.at(step)[0][0].tolist() for step in range(n * one.n_windows, (n + 1) * one.n_windows)]
        for n in range(2)
    ]
    for rows in passes:
        read = sorted(token for row in rows for token in row)
        assert len(read) == len(set(read)) == one.n_windows * N_CTX
    assert sorted(passes[0]) != passes[0]
    assert passes[0] != passes[1]


def test_no_window_reaches_beyond_the_text():
    for n_tokens in range(2 * N_CTX, 4 * N_CTX):
        for seed in range(10):
            one = batches(n_tokens, n_rows=1, seed=seed)
            assert all(one.at(step)[1].shape == (1, N_CTX) for step in range(4))


def test_a_step_is_deterministic():
    first, second = batches(share=(0.5, 0.5)), batches(share=(0.5, 0.5))
    second.at(7), second.at(2)
    for step in (5, 2):
        assert all((a == b).all() for a, b in zip(first.at(step), second.at(step), strict=True))
    assert (first.at(5)[0] != batches(share=(0.5, 0.5), seed=4).at(5)[0]).any()


def test_repeated_rows_repeat_and_only_what_can_be_known_is_counted():
    ids, targets = batches(n_rows=6, share=(0.99, 0.99)).at(20)
    for row, target in zip(ids, targets, strict=True):
        period = 1 + int((target == NOT_COUNTED).sum())
        assert 2 <= period <= 4
        assert (row[period:] == row[:-period]).all()
        assert (target[: period - 1] == NOT_COUNTED).all()
        assert (
            target[period - 1 :] == np.resize(row[:period], 2 * N_CTX)[period : N_CTX + 1]
        ).all()


@pytest.mark.parametrize("steps", [50, 400])
def test_the_share_of_repeated_rows_moves_from_first_to_last(steps):
    falling = batches(n_rows=10, share=(0.6, 0.2), grow_steps=200)
    counted = sum(int((falling.at(n)[1] == NOT_COUNTED).any(1).sum()) for n in range(steps))
    shares = [0.6 - 0.4 * min(1, (n + 0.5) / 200) for n in range(steps)]
    assert counted == pytest.approx(10 * sum(shares), abs=1.5)


def test_pieces_grow():
    growing = batches(n_rows=10, share=(0.9, 0.9), grow_steps=100)
    longest = [int((growing.at(n)[1] == NOT_COUNTED).sum(1).max()) + 1 for n in (0, 1, 99, 150)]
    assert longest == [2, 2, 4, 4]


def test_uniform_pieces_come_from_the_whole_vocabulary():
    even = batches(n_rows=20, share=(0.99, 0.99), uniform=1.0).at(3)[0]
    of_text = batches(n_rows=20, share=(0.99, 0.99), uniform=0.0).at(3)[0]
    assert even.max() > 200 > of_text.max()


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match=r"15 training tokens; rows of 8 tokens need at least 16"):
        batches(2 * N_CTX - 1)
