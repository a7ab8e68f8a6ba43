"""Labels, groups and tokens in memory: texts, numbers, arrays, tensors and columns of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from probekit.data.examples import Dataset, Example
from probekit.errors import ConfigError, DataError

_REGRESSION = 'probe={"kinds": [{"kind": "ridge_regression"}]}'


def label_texts(labels: Iterable[Any], *, reads_classes: bool) -> list[str]:
    """Return the labels as texts.

    >>> label_texts(np.array([0, 1]), reads_classes=True), label_texts([0.5], reads_classes=False)
    (['0', '1'], ['0.5'])

    Raises:
        DataError: a label is missing, or a number with decimals where classes are needed, or
            labels of different types would be confused, such as 1 and "1".
    """
    cells = _cells("labels", labels)
    for row, label in enumerate(cells):
        if reads_classes and isinstance(label, float):
            raise DataError(
                f"labels[{row}] is the number {label}, but the kinds of probe read classes. For "
                f"regression give {_REGRESSION}; for classes convert the labels to integers or "
                "texts."
            )
    return plain_texts("labels", cells, distinct=reads_classes)


def plain_texts(name: str, values: Iterable[Any], *, distinct: bool = False) -> list[str]:
    """Return values as texts.

    Args:
        name: name of the argument, for messages.
        values: the values.
        distinct: whether values are names, so that 1 and "1", or 1 and True, would be confused.

    Raises:
        DataError: a value is missing, or neither a text nor a number, or would be confused.
    """
    found = []
    cells = _cells(name, values)
    for row, value in enumerate(cells):
        if value is None:
            raise DataError(
                f"{name}[{row}] is a missing value. Fill it in, or remove the row from "
                "all sites too."
            )
        if not isinstance(value, str | int | float):
            raise DataError(
                f"{name}[{row}] is of type {type(value).__name__}. Allowed: texts and numbers."
            )
        found.append(str(value))
    if distinct:
        _check_distinct(name, cells)
    return found


def token_texts(tokens: Iterable[Any]) -> list[str]:
    """Return the tokens as texts; those of white space are quoted and escaped as in Python.

    Raises:
        DataError: a token is missing, or neither a text nor a number.
    """
    return [token if token.strip() else repr(token) for token in plain_texts("tokens", tokens)]


def check_same_order(values: Mapping[str, Any]) -> None:
    """Check that columns of pandas are in one order: they are read by place, not by index.

    Args:
        values: arguments by name; those that are not of pandas are not checked.

    Raises:
        DataError: two have the same index in different orders.
    """
    indexes = {name: value.index for name, value in values.items() if hasattr(value, "iloc")}
    first = next(iter(indexes), "")
    for name, index in indexes.items():
        order = indexes[first]
        is_same = index.equals(order) or len(index) != len(order)
        if not is_same and index.isin(order).all():
            raise DataError(
                f"{name} and {first} have the same index in different orders, but rows are read in "
                f"the order in which they stand. Sort one like the other: x.loc[y.index]."
            )


def dataset_of(
    name: str,
    labels: Sequence[str],
    *,
    groups: Sequence[str] | None,
    tokens: Sequence[str] | None,
    sides: Sequence[str] | None,
) -> Dataset:
    """Return one example for each row, named by the index of the row.

    Raises:
        DataError: the lengths differ, or a value is empty.
    """
    for other, values in {"groups": groups, "tokens": tokens, "split": sides}.items():
        if values is not None and len(values) != len(labels):
            raise DataError(
                f"{other} has {len(values):,} entries, but labels has {len(labels):,}. Give one "
                "for each row."
            )
    if groups is not None and len(set(groups)) == 1:
        raise DataError(
            f"all {len(groups):,} rows are in one group, {groups[0]!r}, which cannot be split into "
            "train and test. Give several groups, or leave `groups` out if rows are independent."
        )
    examples = []
    for row, label in enumerate(labels):
        id = f"row {row}"
        try:
            examples.append(
                Example(
                    text=id if tokens is None else tokens[row],
                    label=label,
                    group=id if groups is None else groups[row],
                    id=id,
                    split=None if sides is None else sides[row],
                )
            )
        except DataError as error:
            raise DataError(f"{id}: {error}") from error
    return Dataset(name, tuple(examples))


def _cells(name: str, values: Iterable[Any]) -> list[Any]:
    """Return values as plain Python objects."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(
            f"{name} is of type {type(values).__name__}. Give a list or an array with one value "
            "for each row."
        )
    if isinstance(values, Mapping | set | frozenset):
        remedy = (
            f"Give its values, if they are in the order of the rows: list({name}.values())."
            if isinstance(values, Mapping)
            else "A set has no order: give a list or an array, in the order of the rows."
        )
        raise ConfigError(
            f"{name} is a {type(values).__name__}, but needs one value for each row. {remedy}"
        )
    if hasattr(values, "detach"):  # a tensor, on any device
        values = values.detach().cpu()
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise DataError(
            f"{name} has shape {tuple(shape)}, but needs one axis, with one value for each row."
        )
    cells = values.tolist() if hasattr(values, "tolist") else list(values)
    return [_whole(cell.item() if isinstance(cell, np.generic) else cell) for cell in cells]


def _check_distinct(name: str, cells: Sequence[Any]) -> None:
    """Raise DataError if values of different types have one text, or are equal with two texts."""
    row_of_text: dict[str, int] = {}
    row_of_value: dict[Any, int] = {}
    for row, cell in enumerate(cells):
        for first, fault in (
            (row_of_text.setdefault(str(cell), row), "have the same text"),
            (row_of_value.setdefault(cell, row), "are equal"),
        ):
            if type(cells[first]) is not type(cell):
                raise DataError(
                    f"{name}[{first}] is {cells[first]!r} and {name}[{row}] is {cell!r}, which "
                    f"{fault} but differ in type. Write all {name} with the same type, such as "
                    f"[str(one) for one in {name}] if they are different."
                )


def _whole(cell: Any) -> Any:
    """Return missing values of pandas as None, which cannot be compared; others unchanged."""
    is_missing = type(cell).__name__ in ("NAType", "NaTType")
    return None if is_missing or (isinstance(cell, float) and math.isnan(cell)) else cell
