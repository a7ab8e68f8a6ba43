"""Rows that are read when they are needed: the same numbers, however they are selected."""

import numpy as np
import pytest

from probekit import lazy_rows
from probekit.lazy_rows import LazyRows

ROWS = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
NUMBERS = np.array([4, 5, 6, 20, 1])


def lazily(is_mapped=True):
    """The rows, and the slices and row numbers that are read."""
    places = []

    def read(place):
        places.append(place)
        return ROWS[place]

    return LazyRows(read, ROWS.shape, ROWS.dtype, is_mapped=is_mapped), places


PLACES = [
    slice(None),
    slice(2, 9, 3),
    np.array([7, 0, 7]),
    np.array([-2, 0]),
    np.arange(23) % 4 == 1,
]


@pytest.mark.parametrize("place", PLACES)
def test_indices_give_the_rows_of_the_array(place):
    rows, _ = lazily()
    np.testing.assert_array_equal(rows[place], ROWS[place])
    selected = rows.select(np.arange(22, -1, -1))
    np.testing.assert_array_equal(selected[place], ROWS[::-1][place])
    if not isinstance(place, slice):
        np.testing.assert_array_equal(selected.select(place)[:], ROWS[::-1][place])


def test_nothing_is_read_before_an_index_and_consecutive_rows_as_a_slice():
    rows, places = lazily()
    selected = rows.select(NUMBERS).scaled(np.zeros(3), np.full(3, 0.5))
    assert (places, len(selected), selected.shape, selected.nbytes) == ([], 5, (5, 3), 120)
    np.testing.assert_array_equal(selected[:3], 2.0 * ROWS[4:7].astype(np.float64))
    np.testing.assert_array_equal(selected[2:], 2.0 * ROWS[[6, 20, 1]].astype(np.float64))
    assert places[0] == slice(4, 7)
    assert places[1].tolist() == [6, 20, 1]
    np.testing.assert_array_equal(np.asarray(rows), ROWS)


def test_blocks_cover_all_rows_in_order(monkeypatch):
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 10)
    rows, places = lazily()
    found = list(rows.blocks())
    assert [place for place, _ in found] == places == [slice(0, 10), slice(10, 20), slice(20, 23)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in found]), ROWS)


def test_small_rows_of_a_file_are_loaded_once(monkeypatch):
    rows, places = lazily()
    loaded = rows.loaded()
    np.testing.assert_array_equal(loaded[NUMBERS], ROWS[NUMBERS])
    assert places == [slice(0, 23)]
    monkeypatch.setattr(lazy_rows, "LOADED_BYTES", ROWS.nbytes - 1)
    assert rows.loaded() is rows
    in_memory, places = lazily(is_mapped=False)
    assert in_memory.loaded() is in_memory
    assert places == []


def test_an_array_is_read_without_a_copy():
    assert np.shares_memory(LazyRows.of(ROWS)[2:5], ROWS)
    rows = LazyRows.of(ROWS)
    assert LazyRows.of(rows) is rows
