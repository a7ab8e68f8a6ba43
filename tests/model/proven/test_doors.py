"""Tensors in nested containers, and comparisons that no NaN passes."""

import math
from typing import NamedTuple

import pytest
import torch

from probekit.model.proven.doors import apart_rows, close_sum, get_at, put_at, same, tensors_in

NAN = torch.tensor([[1.0, math.nan], [1.0, 1.0]])


class Pair(NamedTuple):
    first: object
    second: object


def test_tensors_are_found_and_replaced_in_nested_containers():
    x, y, z = torch.zeros(2), torch.ones(3), torch.arange(3)
    value = Pair({"a": [x, z]}, (y, None))
    assert [path for path, _ in tensors_in(value)] == [(0, "a", 0), (1, 0)]  # z has integers
    new = put_at(value, (0, "a", 0), y)
    assert isinstance(new, Pair)
    assert get_at(new, (0, "a", 0)) is y
    assert get_at(value, (0, "a", 0)) is x  # the original is not changed
    assert new.second is value.second


def test_nothing_is_equal_to_a_nan():
    clean = torch.ones(2, 2)
    assert apart_rows(NAN, clean) == apart_rows(clean, NAN) == apart_rows(NAN, NAN) == math.inf
    assert not same(NAN, NAN)
    assert not close_sum(NAN, NAN, [NAN])
    assert not close_sum(clean, clean * math.inf, [clean])


def test_equal_rows_may_have_other_shapes_but_no_other_dtype():
    x = torch.randn(2, 3, 4)
    assert same(x, x.reshape(6, 4))
    assert not same(x, x.double())
    assert not same(x, x[:1])


def test_a_row_is_compared_with_its_own_length():
    x = torch.ones(10, 4)
    x[0] = 1e4  # as the first position of trained networks
    y = x.clone()
    y[5] += 0.01
    assert apart_rows(y, x) == pytest.approx(0.01)


def test_a_massive_coordinate_excuses_only_itself():
    terms = [torch.tensor([1e6, 1.0]), torch.tensor([1.0, 1.0])]
    y = terms[0] + terms[1]
    off = y + torch.tensor([0.0, 1e-3])
    assert close_sum(y, y, terms)
    assert not close_sum(y, off, terms)
