"""Maps of patches and ablations by layer and token or head, on a scale with 0 in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.report.causes.edits import EditSet, edit_hover
from probekit.report.figures.style import plotly_text
from probekit.report.maps.maps import LEAST_RANGE
from probekit.report.maps.text_map import (
    MOST_TEXTS,
    Colours,
    cell_text,
    frame_cell,
    text_map,
    thin_ticks,
    write_above,
)
from probekit.report.texts import short_label, token_label
from probekit.results.causes import CausesRecord
from probekit.results.table import n_blocks, tick

MOST_HEADS = 20  # rows of a map of heads and tokens
STRONGEST = "framed: largest"


def colour_scale(rows: pd.DataFrame) -> Colours:
    """Return a diverging scale that contains all values, with 0 in the middle.

    >>> colour_scale(pd.DataFrame({"value": [0.2, -0.7]})).low
    -0.7
    """
    reach = max(float(rows["value"].abs().max()), LEAST_RANGE)
    return Colours(-reach, reach, plotly.colors.diverging.PuOr_r, is_diverging=True)


def token_maps(one: EditSet, record: CausesRecord) -> Iterator[tuple[str, go.Figure]]:
    """Yield name and map of each kind of site that is edited at each token, on one colour scale.

    Of attention heads only the `MOST_HEADS` with the largest values have a row.
    """
    rows, scale = one.rows, colour_scale(one.rows)
    blocks = n_blocks(rows)
    for part, own in rows[rows["head"].isna()].groupby("line", sort=False):
        cells = own.assign(name=[tick(int(depth), blocks) for depth in own["depth"]])
        yield str(part), _token_map(one, cells, scale, record)
    for part, own in one.of_heads.groupby("part", sort=False):
        reach = own["value"].abs().groupby([own["depth"], own["head"]]).max()
        kept = reach.nlargest(MOST_HEADS).index
        of_head = pd.MultiIndex.from_frame(own[["depth", "head"]])
        cells = own[of_head.isin(kept)].sort_values(["depth", "head"], kind="stable")
        names = [f"L{row['depth']}H{row['head']:.0f}" for _, row in cells.iterrows()]
        figure = _token_map(one, cells.assign(name=names), scale, record)
        yield f"{part} heads", figure.update_yaxes(title_text="head")


def _token_map(
    one: EditSet, cells: pd.DataFrame, scale: Colours, record: CausesRecord
) -> go.Figure:
    positions = sorted(int(position) for position in cells["position"].dropna().unique())
    labels = [token_tick(position, record) for position in positions]
    shown = [position_label(position, record) for position in positions]
    of_cell = dict(zip(positions, shown, strict=True))
    columns = {position: number for number, position in enumerate(positions)}
    cells = cells.dropna(subset="position")
    figure = _map(
        cells,
        list(dict.fromkeys(cells["name"])),
        cells["position"].map(columns),
        labels,
        [edit_hover(one, row, of_cell[int(row["position"])]) for _, row in cells.iterrows()],
        scale,
        "token" if record.tokens else "position",
    )
    if record.tokens:
        figure.update_xaxes(autotickangles=[0, -90])
    return thin_ticks(figure)


def token_tick(position: int, record: CausesRecord) -> str:
    """Return the label of a position: its token, in italics if the token differs between texts."""
    if position >= len(record.tokens):
        return str(position)
    token = plotly_text(short_label(record.tokens[position]))
    differs = position < len(record.same_tokens) and not record.same_tokens[position]
    return f"<i>{token}</i>" if differs else token


def position_label(position: int, record: CausesRecord) -> str:
    """Return a position with its token for hover texts and sentences."""
    if position >= len(record.tokens):
        return f"position {position}"
    return f"position {position} ({token_label(record.tokens[position])})"


def head_map_of(one: EditSet, part: str) -> go.Figure:
    """Return the map of the heads of one kind of site, with the largest value framed."""
    cells = one.of_heads[one.of_heads["part"] == part]
    heads = sorted(cells["head"].unique())
    columns = {head: number for number, head in enumerate(heads)}
    named = cells.assign(name=[str(depth) for depth in cells["depth"]])
    return _map(
        named,
        list(dict.fromkeys(named["name"])),
        named["head"].map(columns),
        [f"{head:.0f}" for head in heads],
        [edit_hover(one, row) for _, row in named.iterrows()],
        colour_scale(one.of_heads),
        "head",
    )


def _map(
    cells: pd.DataFrame,
    down: Sequence[str],
    columns: pd.Series[int],
    across: list[str],
    hover: Sequence[str],
    scale: Colours,
    title: str,
) -> go.Figure:
    """Return the map of cells whose rows are named by the column `name`; the largest is framed."""
    rows = cells["name"].map({name: number for number, name in enumerate(down)})
    at = (rows.to_numpy(), columns.to_numpy())
    values = np.full((len(down), len(across)), np.nan)
    values[at] = cells["value"]
    texts = np.full(values.shape, "", dtype=object)
    texts[at] = list(hover)
    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        texts.ravel().tolist(),
        scale,
        across=across,
        down=list(down),
        title=title,
        most_texts=MOST_TEXTS,
    )
    if values.size > 1:
        row, column = divmod(int(np.nanargmax(np.abs(values))), len(across))
        frame_cell(figure, column, row)
        write_above(figure, STRONGEST)
    return figure
