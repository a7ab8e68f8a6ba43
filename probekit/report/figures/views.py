"""Which rows of a table go into which figure, so that each stays readable."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from probekit.results.selection import chosen_row, hidden_kinds
from probekit.results.table import SERIES, concatenated, differs, only, placed

MOST_NEURONS = 4  # lines of single neurons that a curve takes; the table of sites has them all
# Rows that agree in these columns belong to one map over training, and to one cell of it.
_SAME_MAP = ("line", "position", "probe", "view")
_OF_A_CELL = (*_SAME_MAP, "depth", "step")
OFFSET = r"^(?:span|word:[a-z]+)(?P<offset>[+-]\d+)?(?:\+first)?$"


def position_offset(positions: pd.Series[str]) -> pd.Series[float]:
    """Return how many tokens each position lies from its span; NaN where there is no span.

    >>> positions = pd.Series(["word:last-1", "span+2+first", "word:first", "index:-3"])
    >>> position_offset(positions).tolist()
    [-1.0, 2.0, 0.0, nan]
    """
    of_span = positions.str.fullmatch(OFFSET)
    found = positions.str.extract(OFFSET)["offset"].astype(float)
    return found.mask(of_span & found.isna(), 0.0)


def curve_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return what a layer curve can show: no part of several heads, no crowd, one position.

    Of a sweep that is the span itself, or else the position of the chosen site. Baselines stay. Of
    several kinds of probe each has its task, the chosen one alone its control and random weights;
    of a kind with many sizes, as k_sparse, the best one by cross-validation is shown.
    """
    rows = _of_shown_kinds(at_shown_position(table))
    places = placed(rows)
    crowds = places[places["part"].isin(_parts_of_heads(places))].index
    neurons = places[places["site"].str.contains("[neuron=", regex=False)]
    if neurons["line"].nunique() > MOST_NEURONS:
        crowds = crowds.union(neurons.index)
    return rows.drop(index=crowds)


def at_shown_position(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at the one position to show of a sweep; all of them where there is none."""
    position = shown_position(table)
    return table if position is None else only(table, position=position)


def _of_shown_kinds(table: pd.DataFrame) -> pd.DataFrame:
    rows = table[~table["probe"].isin(hidden_kinds(table))]
    chosen = chosen_row(rows)
    if chosen is None:
        return rows
    is_company = rows["target"].isin(["control", "random_weights"])
    shown: pd.DataFrame = rows[~is_company | (rows["probe"] == chosen["probe"])]
    return shown


def head_tables(table: pd.DataFrame) -> Iterator[tuple[str, bool, pd.DataFrame]]:
    """Yield the rows of each map of heads with its name, and whether it is of a shown position."""
    places = placed(table)
    heads = places[places["part"].isin(_parts_of_heads(places)) & places["head"].notna()]
    keys = ["part", *(column for column in SERIES if column != "line")]
    position = shown_position(table)
    for name, rows in _named_groups(heads, keys):
        is_shown = position in (None, rows["position"].iloc[0])
        yield name, is_shown, table.loc[rows.index]


def position_tables(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each map of positions with its name: one a line, but none a head."""
    places = placed(table)
    places = places[~places["part"].isin(_parts_of_heads(places))]
    places = places[position_offset(places["position"]).notna()]
    keys = [column for column in SERIES if column != "position"]
    for name, rows in _named_groups(places, keys):
        if differs(rows["position"]):
            yield name, table.loc[rows.index]


def step_tables(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each map over training with its name: one a line, but none a head.

    The residual stream before a block is the one after the block before, and stands there once.
    """
    places = placed(table)
    places = places[~places["part"].isin(_parts_of_heads(places))]
    places = places.drop_duplicates([*_OF_A_CELL, "split", "metric"])
    for name, rows in _named_groups(places, list(_SAME_MAP)):
        yield name, table.loc[rows.index]


def _parts_of_heads(places: pd.DataFrame) -> list[str]:
    """Return the parts of which several heads were probed."""
    n_heads = places.groupby("part")["head"].nunique()
    return list(n_heads[n_heads > 1].index)


def _named_groups(rows: pd.DataFrame, keys: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the groups of rows that agree in the keys, named by what they differ in."""
    differing = [key for key in keys if differs(rows[key]) or key in ("part", "line")]
    for _, group in rows.groupby(keys, sort=False, dropna=False):
        first = group.iloc[0]
        yield " · ".join(str(first[key]) for key in differing), group


def shown_position(table: pd.DataFrame) -> str | None:
    """Return the one position to show where a map cannot stand for a sweep; None without one."""
    places = pd.concat([placed(table), concatenated(table)])
    offsets = position_offset(places["position"])
    if not differs(places["position"]) or offsets.isna().any():
        return None
    if offsets.eq(0).any():
        return str(places["position"][offsets.eq(0)].iloc[0])
    chosen = chosen_row(table)
    return str(places["position"].iloc[0] if chosen is None else chosen["position"])
