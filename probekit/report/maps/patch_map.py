"""Maps of patches of one pair of texts: sites by token, heads by layer, estimates by effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import UnknownNameError, nearest
from probekit.model.sites.catalogue import describe, layer_of
from probekit.report.figures.style import GREY, TEMPLATE, fixed, format_number, plotly_text
from probekit.report.maps.lens_map import MOST_TICKS
from probekit.report.maps.text_map import Colours, cell_text, frame_cell, text_map
from probekit.report.texts.glyphs import token_label
from probekit.report.texts.paint import HIGH

RESIDUAL = "residual stream"
# Columns that a map can show -> title of its colour bar.
SHOWN = {
    "recovery": "recovery",
    "effect": "effect, logits",
    "estimate": "estimated effect, logits",
}
MOST_TEXTS = 1_000  # cells with numbers
LEAST_REACH = 0.05  # smallest end of a colour scale, so that rounding errors look like 0


def site_family(site: str) -> str:
    """Return the name of the sites that share a map with a site.

    >>> site_family("blocks.2.hook_resid_post"), site_family("blocks.2.attn.hook_z[head=1]")
    ('residual stream', 'attn.z')
    """
    component = describe(site.partition("[")[0]).component
    return RESIDUAL if component.startswith("resid_") else component


def patch_label(site: str) -> str:
    """Return the label of a site, head or neuron in a map of its family.

    >>> [patch_label(f"blocks.0.{name}") for name in ("hook_resid_pre", "hook_resid_post")]
    ['embed', '0']
    >>> patch_label("blocks.3.attn.hook_z[head=2]"), patch_label("blocks.3.mlp.hook_post[neuron=7]")
    ('L3H2', 'L3N7')
    """
    name, _, part = site.partition("[")
    layer, component = layer_of(name), describe(name).component
    if part:
        axis, _, index = part.removesuffix("]").partition("=")
        return f"L{layer}{axis[0].upper()}{index}"
    if component in ("resid_pre", "resid_mid"):
        return "embed" if (layer, component) == (0, "resid_pre") else f"{layer} {component}"
    return component if layer is None else str(layer)


def pair_labels(clean: Sequence[str], corrupt: Sequence[str]) -> list[str]:
    """Return the label of each position: its token, or both tokens where the texts differ.

    >>> pair_labels(["The", " key"], ["The", " keys"])
    ['The', '␣key → ␣keys']
    """
    return [
        token_label(a) if a == b else f"{token_label(a)} → {token_label(b)}"
        for a, b in zip(clean, corrupt, strict=True)
    ]


def patch_position_map(
    rows: pd.DataFrame, labels: Sequence[str], shown: str = "recovery"
) -> go.Figure:
    """Return the map of patches of a family of sites: sites down, positions across.

    If patches are estimated, those that are verified are framed.

    Args:
        rows: rows of `PatchedPair.of_positions` of one family.
        labels: label of each position, from `pair_labels`.
        shown: column that colours show; a key of `SHOWN`.

    Raises:
        UnknownNameError: there is no such column.
    """
    sites = list(dict.fromkeys(rows["site"]))
    values, hover = _cells(rows, len(sites), len(labels), shown)
    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        hover,
        patch_colours(values),
        across=[plotly_text(label) for label in labels],
        down=[patch_label(site) for site in sites],
        title="token",
        most_texts=MOST_TEXTS,
    )
    if len(labels) > MOST_TICKS:
        step = len(labels) // MOST_TICKS + 1
        axis = figure.layout.xaxis
        figure.update_xaxes(tickvals=axis.tickvals[::step], ticktext=axis.ticktext[::step])
    figure.update_xaxes(tickangle=-45)
    return _finished(figure, rows, len(labels), shown)


def patch_head_map(rows: pd.DataFrame, shown: str = "recovery") -> go.Figure:
    """Return the map of patches of heads at all positions: layers down, heads across.

    Args:
        rows: rows of `PatchedPair.of_heads`.
        shown: column that colours show; a key of `SHOWN`.

    Raises:
        UnknownNameError: there is no such column.
    """
    n_heads = int(rows["head"].max()) + 1
    layers = list(dict.fromkeys(rows["layer"]))
    values, hover = _cells(rows, len(layers), n_heads, shown)
    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        hover,
        patch_colours(values),
        across=[str(head) for head in range(n_heads)],
        down=[str(layer) for layer in layers],
        title="head",
        most_texts=MOST_TEXTS,
    )
    return _finished(figure, rows, n_heads, shown)


def estimate_scatter(rows: pd.DataFrame) -> go.Figure:
    """Return estimated against verified effects, with the diagonal of equality.

    Args:
        rows: rows of `PatchedPair.rows` with estimates; those without an effect are left out.
    """
    known = rows.dropna(subset="effect")
    both = known[["estimate", "effect"]].to_numpy()
    low, high = float(both.min(initial=0.0)), float(both.max(initial=0.0))
    margin = 0.05 * max(high - low, LEAST_REACH)
    ends = [low - margin, high + margin]
    figure = go.Figure(layout={"template": TEMPLATE, "showlegend": False})
    figure.add_scatter(
        x=ends, y=ends, mode="lines", hoverinfo="skip", line={"color": GREY, "dash": "dash"}
    )
    figure.add_scatter(
        x=known["estimate"].tolist(),
        y=known["effect"].tolist(),
        mode="markers",
        marker={"size": 9, "color": HIGH},
        hovertext=[_hover(row) for row in known.to_dict("records")],
        hoverinfo="text",
    )
    figure.update_xaxes(title_text=SHOWN["estimate"], range=ends)
    figure.update_yaxes(title_text="effect by patching, logits", range=ends)
    return figure


def patch_colours(values: Any) -> Colours:
    """Return the colour scale of effects: diverging, with 0 in the middle.

    >>> patch_colours(np.array([0.5, -1.0, np.nan])).low
    -1.0
    """
    reach = max(LEAST_REACH, float(np.nanmax(np.abs(values), initial=0.0)))
    return Colours(-reach, reach, plotly.colors.diverging.PuOr_r, is_diverging=True)


def patch_name(site: str, labels: Sequence[str], position: Any) -> str:
    """Return the name of a patch: site label, and token with its position unless it is missing.

    >>> patch_name("blocks.3.attn.hook_z[head=2]", [], pd.NA)
    'L3H2'
    >>> patch_name("blocks.3.hook_resid_post", ["The", "␣key"], 1)
    'layer 3 at ␣key [1]'
    """
    family, label = site_family(site), patch_label(site)
    if family == RESIDUAL:
        named = label if label == "embed" else f"layer {label}"
    else:
        named = label if family == label or "[" in site else f"{family} {label}"
    return named if pd.isna(position) else f"{named} at {labels[position]} [{position}]"


def _cells(rows: pd.DataFrame, n_rows: int, n_columns: int, shown: str) -> tuple[Any, list[str]]:
    """Return the values (n_rows, n_columns) of a map in forward order, and its hover texts."""
    if shown not in SHOWN:
        raise UnknownNameError(f"Unknown column {shown!r}. {nearest(shown, SHOWN)}")
    values = rows[shown].to_numpy(dtype=float, na_value=np.nan).reshape(n_rows, n_columns)
    return values, [_hover(row) for row in rows.to_dict("records")]


def _hover(row: dict[Any, Any]) -> str:
    place = "all positions" if pd.isna(row["position"]) else f"position {row['position']}"
    lines = [f"<b>{plotly_text(row['site'])}</b> at {place}"]
    lines += [
        f"{title.partition(',')[0]}: {format_number(row[name])}"
        for name, title in SHOWN.items()
        if not pd.isna(row[name])
    ]
    return "<br>".join(lines)


def _finished(figure: go.Figure, rows: pd.DataFrame, n_columns: int, shown: str) -> go.Figure:
    """Frame the verified patches among estimated ones, and name the colours."""
    if rows["estimate"].notna().any():
        verified: Iterable[int] = np.flatnonzero(rows["effect"].notna()).tolist()
        for number in verified:
            frame_cell(figure, number % n_columns, number // n_columns)
    colorbar = {"title": {"text": SHOWN[shown], "side": "right"}}
    return figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"})


def signed_number(value: float) -> str:
    """Return a value with two decimals and, if it is positive, a plus sign; "–" for NaN.

    >>> signed_number(0.254), signed_number(float("nan"))
    ('+0.25', '–')
    """
    if np.isnan(value):
        return "–"
    text = fixed(value, 2)
    return f"+{text}" if value > 0 and text != "0.00" else text
