"""Page of a saved probe on several networks: AUROC, drift of its score, rates at its threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed, format_difference, format_number, format_p, percent
from probekit.files import csv_text
from probekit.report.elements import page, style
from probekit.report.elements.table import Cell, ResultTable

CAVEAT = (
    "A threshold that is set again on each network has the same false positive rate there by "
    "construction, and a retrained probe has its score back if the network still represents the "
    "label. Both hide that the probe in use has drifted."
)
METHOD = (
    "All networks read the same rows, so that differences to the first network are paired. "
    "Intervals are over groups and hold for one network; p-values are adjusted for all networks.",
    "The shift is the mean score on a network minus that on the first one, in standard deviations "
    "of the scores on the first one. An AUROC does not change if all scores shift alike; the rates "
    "at a fixed threshold do.",
    "The retrained probe has the same kind, grid, folds and rows as the saved one, as the network "
    "represents them. Its cosine is that of the two weights of raw activations.",
)


def short_names(networks: Sequence[str]) -> list[str]:
    """Return the networks by their shortest names that differ.

    >>> short_names(["mini", "runs/a/step-1"]), short_names(["a/last", "b/last"])
    (['mini', 'step-1'], ['a/last', 'b/last'])
    """
    short = [PurePath(network).name for network in networks]
    return short if len(set(short)) == len(set(networks)) else list(networks)


def over_answer(rows: pd.DataFrame, positive: str, threshold: str) -> str:
    """Return AUROC and false positive rate on the first network, and the worst, in a sentence.

    Args:
        rows: a row for each network; see `OverNetworks`.
        positive: the label that rates refer to.
        threshold: the threshold in words.
    """
    names, auroc, fpr = short_names(rows["network"].tolist()), rows["auroc"], rows["fpr"]
    text = (
        f"On {names[0]} the AUROC of the fixed probe is {fixed(auroc[0], 2)}, and "
        f"{percent(fpr[0])} of the rows that are not {positive} are called {positive} at its "
        f"{threshold}."
    )
    if len(rows) == 1:
        return text
    if len(rows) == 2:
        return f"{text} On {names[1]} they are {fixed(auroc[1], 2)} and {percent(fpr[1])}."
    low, far = 1 + int(auroc[1:].argmin()), 1 + int(np.abs(fpr[1:] - fpr[0]).argmax())
    return (
        f"{text} Of {counted(len(rows) - 1, 'other network')}, the lowest AUROC is "
        f"{fixed(auroc[low], 2)} ({names[low]}), and that rate is furthest away on {names[far]}: "
        f"{percent(fpr[far])}."
    )


def over_table(rows: pd.DataFrame) -> ResultTable:
    """Return the table of all networks."""

    def numbers(name: str, written: Callable[..., str] = format_number) -> list[Cell | str]:
        ends = rows[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        return [Cell.number(written(*one)) for one in ends]

    columns: dict[str, list[Cell | str]] = {
        "network": [*short_names(rows["network"].tolist())],
        "AUROC": numbers("auroc"),
        "minus first": numbers("difference", format_difference),
        "adjusted p": ["–" if np.isnan(p) else format_p(p) for p in rows["p_adjusted"]],
        "shift, sd": [fixed(shift, 2) for shift in rows["shift"]],
        "FPR": numbers("fpr"),
        "TPR": numbers("tpr"),
        "cosine": ["–" if np.isnan(one) else fixed(one, 2) for one in rows["cosine"]],
        "AUROC retrained": [format_number(one) for one in rows["retrained"]],
    }
    return ResultTable.of("All networks", columns)


def over_page(
    rows: pd.DataFrame,
    positive: str,
    threshold: str,
    notes: Sequence[str],
    facts: Mapping[str, str],
) -> page.Page:
    """Return the page; for the arguments see `over_answer`.

    `notes` are reasons to doubt the numbers, and `facts` names and values that the page ends with.
    """
    answer = over_answer(rows, positive, threshold)
    ranks = page.FigurePart(
        "AUROC by network",
        page.figure_json(
            _curves(rows, {"auroc": "fixed probe", "retrained": "retrained probe"}, "AUROC")
        ),
        "Error bars of the fixed probe: 95 % intervals over groups. Where it falls and the "
        "retrained one does not, the network represents the label along another direction.",
        answer,
    )
    titles = {"tpr": f"rate of {positive}, TPR", "fpr": "rate of others, FPR"}
    rates = page.FigurePart(
        f"Rows called {positive} at the {threshold}",
        page.figure_json(_curves(rows, titles, "share of rows")),
        "The threshold is the same on all networks. Error bars: 95 % intervals over groups.",
        answer,
    )
    files = page.Files([("All numbers", "networks.csv", csv_text(rows))])
    return page.Page(
        ("fixed probe",),
        "Does the probe still work on other networks?",
        answer,
        [
            page.PageSection("", [page.Group("columns", [ranks, rates], 24)], "first"),
            page.PageSection("All networks", [over_table(rows), files]),
        ],
        caveats=[*notes, CAVEAT],
        method=METHOD,
        facts={"": facts},
    )


def _curves(rows: pd.DataFrame, titles: Mapping[str, str], title: str) -> go.Figure:
    """Return a figure of columns by network, given by their titles, with their intervals."""
    figure = go.Figure(layout={"template": style.TEMPLATE})
    names = [style.plotly_text(name) for name in short_names(rows["network"].tolist())]
    for number, (column, label) in enumerate(titles.items()):
        bars = {}
        if f"{column}_low" in rows:
            ends = rows.rename(columns={f"{column}_low": "ci_low", f"{column}_high": "ci_high"})
            bars = {"error_y": style.error_bars(ends, column, 1.5)}
        figure.add_scatter(
            x=[*range(len(rows))], y=rows[column], mode="lines+markers",
            name=style.plotly_text(label), marker=style.series_marker(number, 8),
            line={"dash": ("solid", "dash")[number]}, text=names,
            hovertemplate="%{text}: %{y:.3f}", **bars,
        )  # fmt: skip
    figure.update_xaxes(tickvals=[*range(len(rows))], ticktext=names)
    figure.update_yaxes(title_text=title, range=[-0.02, 1.02])
    return figure
