"""Maps of parts of a network: scores of heads, logit attribution, patches of a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.model.sites.catalogue import describe, layer_of
from probekit.report.figures.style import GREY, TEMPLATE, fixed, format_number, plotly_text
from probekit.report.maps.lens_map import thin_ticks
from probekit.report.maps.maps import LEAST_RANGE
from probekit.report.maps.text_map import (
    MOST_TEXTS,
    Colours,
    cell_text,
    diverging,
    frame_cell,
    map_row,
    name_colours,
    text_map,
)
from probekit.report.texts import HIGH, LOW, token_label


@dataclass(frozen=True)
class HeadScoreText:
    """Title, definition and unit of a head score."""

    title: str
    meaning: str
    unit: str = ""


SCORES = {
    "previous_token": HeadScoreText("Previous token", "mean weight on the previous token"),
    "duplicate_token": HeadScoreText(
        "Duplicate token", "mean weight on earlier occurrences of the same token"
    ),
    "induction": HeadScoreText(
        "Induction", "mean weight on the tokens after earlier occurrences of the same token"
    ),
    "first_token": HeadScoreText("First token", "mean weight on the first token"),
    "entropy": HeadScoreText(
        "Entropy", "mean entropy of the attention weights, in nats", " (nats)"
    ),
    "distance": HeadScoreText(
        "Distance", "mean distance back to the attended tokens, in tokens", " (tokens)"
    ),
}
# Scores that are mean attention weights, and can be compared on one scale.
WEIGHTS = ("previous_token", "duplicate_token", "induction", "first_token")
NOTHING: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})

# Columns of an attribution map to the right of the heads, by part.
OTHER_COLUMNS = {"attn_bias": "bias", "mlp": "MLP"}
NAMES = {
    "embed": "token embedding",
    "pos_embed": "position embedding",
    "final_bias": "bias of the final norm",
}

RESIDUAL = "residual stream"
# Columns that a map of patches can show -> title of its colour bar.
SHOWN = {"recovery": "recovery", "effect": "effect, logits", "estimate": "estimated effect, logits"}
LEAST_REACH = 0.05  # smallest end of a colour scale, so that rounding errors look like 0


def head_score_maps(
    rows: pd.DataFrame, framed: Mapping[str, Sequence[tuple[int, int]]] = NOTHING
) -> go.Figure:
    """Return the maps of all scores that are mean attention weights, in a row on one scale.

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`.
        framed: Heads to frame, as (layer, head), by score.
    """
    end = max(scale_end(rows, score) for score in WEIGHTS)
    return map_row(
        {
            SCORES[score].title: head_score_map(rows, score, framed.get(score, ()), end)
            for score in WEIGHTS
        }
    )


def head_score_map(
    rows: pd.DataFrame, score: str, framed: Sequence[tuple[int, int]] = (), end: float | None = None
) -> go.Figure:
    """Return the map of a head score by layer (down) and head (across).

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`.
        score: A key of `SCORES`.
        framed: Heads to frame, as (layer, head).
        end: Upper end of the colour scale, which starts at 0; by default `scale_end`.
    """
    scored = rows[rows["score"] == score].sort_values(["layer", "head"])
    hovered = ["layer", "head", "value", "sd", "n"]
    layers, heads = scored["layer"].unique(), scored["head"].unique()
    figure = text_map(
        scored["value"].to_numpy().reshape(len(layers), len(heads)),
        scored["value"].map(cell_text).tolist(),
        [_score_hover(score, *row) for row in scored[hovered].itertuples(index=False)],
        Colours(0.0, end or scale_end(rows, score), plotly.colors.sequential.Viridis, False),
        across=[str(head) for head in heads],
        down=[str(layer) for layer in layers],
        title="head",
        most_texts=MOST_TEXTS * 10,
    )
    for layer, head in framed:
        frame_cell(figure, head, layer)
    return figure


def scale_end(rows: pd.DataFrame, score: str) -> float:
    """Return the upper end of the colour scale: the highest score, but at least `LEAST_RANGE`.

    >>> rows = pd.DataFrame({"score": ["induction"] * 2, "value": [0.02, 0.31]})
    >>> scale_end(rows, "induction"), scale_end(rows, "entropy")
    (0.31, 0.05)
    """
    values = rows.loc[rows["score"] == score, "value"]
    return float(max([LEAST_RANGE, *values.dropna()]))


def _score_hover(score: str, layer: int, head: int, value: float, sd: float, n: int) -> str:
    texts = f"{n} text{'s' * (n != 1)}"
    spread = "" if np.isnan(sd) else f" ± {format_number(sd)} (sd)"
    result = "no token could have it" if n == 0 else f"{format_number(value)}{spread}, {texts}"
    return f"<b>L{layer}H{head}</b><br>{SCORES[score].title.lower()}: {result}"


def part_name(part: str, layer: Any, head: Any) -> str:
    """Return the display name of a part.

    >>> part_name("head", 4, 11), part_name("mlp", 3, pd.NA), part_name("embed", pd.NA, pd.NA)
    ('L4H11', 'L3 MLP', 'token embedding')
    """
    if part == "head":
        return f"L{layer}H{head}"
    return NAMES[part] if part in NAMES else f"L{layer} {OTHER_COLUMNS[part]}"


def signed(value: float) -> str:
    """Return a number with sign and two decimals; 0.00 has no sign, and NaN is "–".

    >>> signed(0.254), signed(-3.0), signed(-0.001), signed(float("nan"))
    ('+0.25', '−3.00', '0.00', '–')
    """
    if np.isnan(value):
        return "–"
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
    named = zip(blocks["part"], blocks["layer"], blocks["head"], blocks["value"], strict=True)
    figure = text_map(
        values,
        [fixed(value, 2) for value in values.ravel()],
        [f"<b>{part_name(*part)}</b> {signed(value)}" for *part, value in named],
        diverging(values, 1e-9),
        across=across,
        down=down,
        title="head",
        most_texts=MOST_TEXTS * 4,
    )
    return name_colours(figure, "added to the logit")


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
    figure.add_hline(y=0, line={"color": GREY, "width": 1.5})
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
    """
    down = [patch_label(site) for site in rows["site"].unique()]
    figure = _patch_map(rows, down, list(map(plotly_text, labels)), "token", shown)
    return thin_ticks(figure).update_xaxes(tickangle=-45)


def patch_head_map(rows: pd.DataFrame, shown: str = "recovery") -> go.Figure:
    """Return the map of patches of heads at all positions: layers down, heads across.

    Args:
        rows: rows of `PatchedPair.of_heads`.
        shown: column that colours show; a key of `SHOWN`.
    """
    across = [str(head) for head in range(int(rows["head"].max()) + 1)]
    return _patch_map(rows, list(map(str, rows["layer"].unique())), across, "head", shown)


def _patch_map(
    rows: pd.DataFrame, down: list[str], across: list[str], title: str, shown: str
) -> go.Figure:
    """Return the map of patches in forward order, with verified ones framed among estimated."""
    values = rows[shown].to_numpy(dtype=float, na_value=np.nan).reshape(len(down), len(across))
    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        [_patch_hover(row) for row in rows.to_dict("records")],
        diverging(values, LEAST_REACH),
        across=across,
        down=down,
        title=title,
        most_texts=MOST_TEXTS * 5,
    )
    if rows["estimate"].notna().any():
        verified: Iterable[int] = np.flatnonzero(rows["effect"].notna()).tolist()
        for number in verified:
            frame_cell(figure, number % len(across), number // len(across))
    return name_colours(figure, SHOWN[shown])


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
        hovertext=[_patch_hover(row) for row in known.to_dict("records")],
        hoverinfo="text",
    )
    figure.update_xaxes(title_text=SHOWN["estimate"], range=ends)
    figure.update_yaxes(title_text="effect by patching, logits", range=ends)
    return figure


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


def _patch_hover(row: dict[Any, Any]) -> str:
    place = "all positions" if pd.isna(row["position"]) else f"position {row['position']}"
    lines = [f"<b>{plotly_text(row['site'])}</b> at {place}"]
    lines += [
        f"{title.partition(',')[0]}: {format_number(row[name])}"
        for name, title in SHOWN.items()
        if not pd.isna(row[name])
    ]
    return "<br>".join(lines)
