"""The page of a transfer: who can be read with whose probe, and whose directions are alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.report.figures.style import (
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEMPLATE,
    format_number,
    format_p,
    plotly_text,
)
from probekit.report.maps.maps import LEAST_RANGE
from probekit.report.maps.text_map import Colours, text_map
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.template import render
from probekit.results.metrics import metric_name
from probekit.results.table import only
from probekit.results.transfer import Transfer, matrix

MOST_TEXTS = 12  # data sets along a side, beyond which numbers in cells cannot be read
# How the pointer shows what is no score.
FORMATS: dict[str, Callable[[float], str]] = {"p": format_p, "n_null": "{:.0f}".format}
SPACES = {
    "raw": (
        "Cosine of directions, raw features",
        "Each cell compares the weights of two probes. Brackets hold 95 % of the cosines to probes "
        "of permuted labels: within them, a cosine says nothing.",
    ),
    "standardised": (
        "Cosine of directions, standardised features",
        "The same of features divided by their spread over the training rows of all sets. Raw "
        "weights are large where features are small; these say what moves the score.",
    ),
}


@dataclass(frozen=True)
class PlacePart:
    """The figures of one kind of probe at one site."""

    title: str
    figures: tuple[FigurePart, ...]


def transfer_page(found: Transfer) -> str:
    """Return a page of HTML with the matrices of every site; it asks no network."""
    places = found.places()
    places.sort(key=lambda place: place != found.chosen)
    first, *others = [place_part(found, *place) for place in places]
    return render(
        "transfer.html",
        found=found,
        metric=metric_name(found.metric),
        summary=_summary_part(found) if len(places) > 1 else None,
        first=first,
        others=others,
    )


def place_part(found: Transfer, site: str, probe: str) -> PlacePart:
    """Return the matrices of one kind of probe at one site: scores, and cosines where there are."""
    scores, cosines = found.at(site, probe)
    figures = [_score_part(only(scores, metric=found.metric), found)]
    for space, (title, caption) in SPACES.items():
        rows = only(cosines, space=space)
        if not rows.empty:
            figures.append(_cosine_part(rows, found, title, caption))
    return PlacePart(f"{site} · {probe}", tuple(figures))


def _score_part(rows: pd.DataFrame, found: Transfer) -> FigurePart:
    metric = metric_name(found.metric)
    return FigurePart(
        f"{metric[0].upper()}{metric[1:]} on the test rows",
        figure_json(score_map(rows, found.names, found.metric)),
        "Rows: what the probe was trained on. Columns: whose test rows it is scored on. The "
        "diagonal is the ordinary number; colours begin at chance, or at the least score below it. "
        "Far below chance the direction is read the other way round. Brackets hold 95 % intervals "
        "over the groups of the test rows.",
        f"{metric}: " + _in_words(rows, "value", "ci_low", "ci_high"),
        height=_height(found),
    )


def _cosine_part(rows: pd.DataFrame, found: Transfer, title: str, caption: str) -> FigurePart:
    return FigurePart(
        title,
        figure_json(cosine_map(rows, found.names)),
        f"{caption}{_null_words(rows)}",
        f"{title}: " + _in_words(rows, "cosine", "null_low", "null_high"),
        height=_height(found),
    )


def _null_words(rows: pd.DataFrame) -> str:
    """Return from how many permutations the brackets come, and the least p that they allow."""
    beside = rows[(rows["train"] != rows["test"]) & (rows["n_null"] > 0)]
    if beside.empty:
        return ""
    low, high = int(beside["n_null"].min()), int(beside["n_null"].max())
    told = f"{low}" if low == high else f"{low} to {high}"
    return (
        f" Off the diagonal they come from {told} permutations, so that no p is below "
        f"{format_p(1 / (1 + high))}. On the diagonal a probe meets itself, and there is no p."
    )


def _height(found: Transfer) -> float:
    return 9 + 3.5 * max(len(found.names), 2)


def _in_words(rows: pd.DataFrame, value: str, low: str, high: str) -> str:
    return "; ".join(
        f"{row['train']} to {row['test']} {format_number(row[value], row[low], row[high])}"
        for _, row in rows.iterrows()
    )


def score_map(rows: pd.DataFrame, names: tuple[str, ...], metric: str) -> go.Figure:
    """Return the figure of the scores of one site: trained on (down) by tested on (across)."""
    low = float(min(rows["chance"].min(), rows["value"].min()))
    top = float(max(rows["value"].max(), low + LEAST_RANGE))
    return _map(
        rows,
        names,
        ("value", "ci_low", "ci_high"),
        scale=plotly.colors.sequential.Viridis,
        ends=(low, top),
        hover={
            metric_name(metric): ("value", "ci_low", "ci_high"),
            "less the probe trained there": ("difference", "difference_low", "difference_high"),
            "chance": ("chance",),
        },
    )


def cosine_map(rows: pd.DataFrame, names: tuple[str, ...]) -> go.Figure:
    """Return the figure of the cosines of one site, diverging from 0."""
    return _map(
        rows,
        names,
        ("cosine", "null_low", "null_high"),
        scale=plotly.colors.diverging.PuOr_r,
        ends=(-1.0, 1.0),
        hover={
            "cosine": ("cosine",),
            "of random labels": ("null_low", "null_high"),
            "permutations": ("n_null",),
            "p": ("p",),
        },
    )


def _map(
    rows: pd.DataFrame,
    names: tuple[str, ...],
    cell: tuple[str, str, str],
    *,
    scale: list[str],
    ends: tuple[float, float],
    hover: dict[str, tuple[str, ...]],
) -> go.Figure:
    texts = rows.assign(
        text=[_cell(*(row[name] for name in cell)) for _, row in rows.iterrows()],
        hover=[_hover(row, hover) for _, row in rows.iterrows()],
    )
    cells = texts.set_index(["train", "test"]).loc[list(product(names, names))]
    labels = [plotly_text(name) for name in names]
    return text_map(
        matrix(rows, names, cell[0]).to_numpy(),
        cells["text"].tolist(),
        cells["hover"].tolist(),
        Colours(*ends, scale, is_diverging=ends[0] < 0),
        across=labels,
        down=labels,
        title="tested on",
        most_texts=MOST_TEXTS**2,
        down_title="trained on",
    )


def _cell(value: float, low: float, high: float) -> str:
    text = format_number(value)
    if np.isnan(low):
        return text
    return f"{text}<br>[{low:.2f}, {high:.2f}]".replace("-", "−")


def _hover(row: pd.Series, lines: dict[str, tuple[str, ...]]) -> str:
    head = f"<b>{plotly_text(row['train'])} → {plotly_text(row['test'])}</b>"
    told = [
        f"{name}: {_told(row, *keys)}" for name, keys in lines.items() if not np.isnan(row[keys[0]])
    ]
    return "<br>".join([head, *told])


def _told(row: pd.Series, *keys: str) -> str:
    numbers = [row[key] for key in keys]
    if len(numbers) == 2:
        return f"{format_number(numbers[0])} to {format_number(numbers[1])}"
    if len(numbers) == 1 and keys[0] in FORMATS:
        return FORMATS[keys[0]](numbers[0])
    return format_number(*numbers)


def _summary_part(found: Transfer) -> FigurePart:
    """Return the figure of all sites: own test rows against those of others, on average."""
    rows = only(found.scores, metric=found.metric)
    own = rows["train"] == rows["test"]
    figure = go.Figure(layout={"template": TEMPLATE})
    told = []
    for number, probe in enumerate(dict.fromkeys(rows["probe"])):
        of_kind = rows["probe"] == probe
        for name, side, dash in (("own test rows", own, "solid"), ("others'", ~own, "dash")):
            mean = rows[of_kind & side].groupby("site", sort=False)["value"].mean()
            told.append(f"{probe}, {name}: {', '.join(map(format_number, mean))}")
            figure.add_trace(
                go.Scatter(
                    x=list(map(plotly_text, mean.index)),
                    y=mean.tolist(),
                    mode="lines+markers",
                    line={"dash": dash, "color": SERIES_COLOURS[number % len(SERIES_COLOURS)]},
                    marker={"symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": 8},
                    name=f"{plotly_text(probe)}, {name}",
                )
            )
    figure.update_xaxes(type="category", tickangle=-40)
    figure.update_yaxes(title_text=metric_name(found.metric))
    return FigurePart(
        "Own and others' test rows",
        figure_json(figure),
        "Mean over the data sets of the score on their own test rows, and on those of the others.",
        ". ".join(told),
        height=30,
    )
