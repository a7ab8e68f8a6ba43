"""Figures of a logit attribution: a map of heads and MLPs by layer, and a waterfall of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.report.figures.style import TEMPLATE, fixed
from probekit.report.maps.text_map import MOST_TEXTS, Colours, text_map
from probekit.report.texts.paint import HIGH, LOW

# Columns of the map to the right of the heads, by part.
OTHER_COLUMNS = {"attn_bias": "bias", "mlp": "MLP"}
NAMES = {
    "embed": "token embedding",
    "pos_embed": "position embedding",
    "final_bias": "bias of the final norm",
}


def part_name(part: str, layer: Any, head: Any) -> str:
    """Return the display name of a part.

    >>> part_name("head", 4, 11), part_name("mlp", 3, pd.NA), part_name("embed", pd.NA, pd.NA)
    ('L4H11', 'L3 MLP', 'token embedding')
    """
    if part == "head":
        return f"L{layer}H{head}"
    return NAMES[part] if part in NAMES else f"L{layer} {OTHER_COLUMNS[part]}"


def signed(value: float) -> str:
    """Return a contribution with sign and two decimals; 0.00 has no sign.

    >>> signed(0.254), signed(-3.0), signed(-0.001)
    ('+0.25', '−3.00', '0.00')
    """
    text = fixed(value, 2)
    return f"+{text}" if value > 0 and text != "0.00" else text


def attribution_map(rows: pd.DataFrame) -> go.Figure:
    """Return the map of contributions of heads, attention biases and MLPs to a logit.

    Layers go down, heads across, followed by a column for biases and one for MLPs.

    Args:
        rows: Rows of `probekit.analysis.logits.logit_attribution`.
    """
    blocks = rows[rows["layer"].notna()]
    columns = blocks["head"].astype("string").fillna(blocks["part"].map(OTHER_COLUMNS))
    across = list(dict.fromkeys(columns))
    down = [str(layer) for layer in blocks["layer"].unique()]
    values = blocks["value"].to_numpy().reshape(len(down), len(across))
    reach = max(float(abs(values).max()), 1e-9)
    named = zip(blocks["part"], blocks["layer"], blocks["head"], blocks["value"], strict=True)
    figure = text_map(
        values,
        [fixed(value, 2) for value in values.ravel()],
        [f"<b>{part_name(*part)}</b> {signed(value)}" for *part, value in named],
        Colours(-reach, reach, plotly.colors.diverging.PuOr_r, is_diverging=True),
        across=across,
        down=down,
        title="head",
        most_texts=MOST_TEXTS * 4,
    )
    colorbar = {"title": {"text": "added to the logit", "side": "right"}}
    return figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"})


def attribution_steps(rows: pd.DataFrame) -> go.Figure:
    """Return the waterfall chart of a logit: contributions in the order of the forward pass."""
    steps = step_rows(rows)
    hover = [f"<b>{name}</b> {signed(value)}" for name, value in steps.items()]
    total = float(steps.sum())
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_waterfall(
        x=[*steps.index, "logit"],
        y=[*steps, 0.0],
        measure=["relative"] * len(steps) + ["total"],
        hovertext=[*hover, f"<b>logit</b> {signed(total)}"],
        hoverinfo="text",
        increasing={"marker": {"color": HIGH}},
        decreasing={"marker": {"color": LOW}},
        totals={"marker": {"color": "#6E7F8D"}},
        connector={"line": {"color": "#9aa1ab", "width": 1}},
    )
    figure.add_hline(y=0, line={"color": "#7A7F87", "width": 1.5})
    figure.update_xaxes(type="category", tickangle=-45)
    figure.update_yaxes(title_text="cumulative sum")
    return figure


def step_rows(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the contributions in the order of the forward pass, summed over each attention layer.

    >>> rows = pd.DataFrame({
    ...     "part": ["embed", "head", "head", "attn_bias", "mlp"], "value": [1.0, 2, 3, 4, 5],
    ...     "layer": [None, 0, 0, 0, 0], "head": [None, 0, 1, None, None],
    ... })
    >>> step_rows(rows).to_dict()
    {'token embedding': 1.0, 'L0 attn': 9.0, 'L0 MLP': 5.0}
    """
    kinds = rows["part"].replace({"head": "attn", "attn_bias": "attn", "mlp": "MLP"} | NAMES)
    layers = [f"L{layer:.0f} " if not pd.isna(layer) else "" for layer in rows["layer"]]
    return rows["value"].groupby(np.array(layers) + kinds.to_numpy(), sort=False).sum()
