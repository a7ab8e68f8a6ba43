"""Page of a saved probe on several networks: AUROC, drift of its score, rates at its threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import LEVEL, fixed, format_difference, format_number, format_p, percent
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

MOST_NAMED = 3  # networks in the answer


def short_names(networks: Sequence[str]) -> list[str]:
    """Return the networks by their shortest names that differ.

    >>> short_names(["mini", "runs/a/step-1"]), short_names(["a/last", "b/last"])
    (['mini', 'step-1'], ['a/last', 'b/last'])
    >>> short_names(["mini", "mini"])
    ['mini', 'mini (2)']
    """
    short = [PurePath(network).name for network in networks]
    names = short if len(set(short)) == len(set(networks)) else list(networks)
    repeats = [names[:end].count(name) for end, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, repeats, strict=True)]


def over_answer(rows: pd.DataFrame, positive: str, threshold: str) -> tuple[str, str]:
    """Return by how much the AUROC falls on which networks, then rates of false positives.

    Rates are those of the first network, and of the one that differs most from it.

    Args:
        rows: a row for each network; see `OverNetworks`.
        positive: the label that rates refer to.
        threshold: the threshold in words.
    """
    names, fpr = short_names(rows["network"].tolist()), rows["fpr"]
    answer, far = f"AUROC {_auroc(rows.iloc[0])} on {names[0]}", 0
    falls = rows["difference"].lt(0) & rows["p_adjusted"].lt(LEVEL)
    fallen = np.flatnonzero(falls).tolist()
    if len(rows) > 1:
        low, far = 1 + int(rows["auroc"][1:].argmin()), 1 + int(np.abs(fpr[1:] - fpr[0]).argmax())
        is_tested, least = rows["p_adjusted"][1:].notna().any(), "at least " * (len(rows) > 2)
        lead = "No loss shown" if is_tested else "Too few groups to test a loss"
        answer = f"{lead}: {answer} and {least}{_auroc(rows.iloc[low])} on {names[low]}"
    if fallen:
        fallen.sort(key=lambda n: rows["difference"][n])
        losses = [f"by {_loss(rows.iloc[n])} on {names[n]}" for n in fallen[:MOST_NAMED]]
        losses += [f"less on {len(fallen) - MOST_NAMED} more"] * (len(fallen) > MOST_NAMED)
        start = f"the AUROC of {format_number(rows['auroc'][0])} on {names[0]}"
        answer = f"Less well: {start} falls {' and '.join(losses)} (adjusted p < 0.05)"
    rates = " and ".join(f"{_rate(rows.iloc[n])} on {names[n]}" for n in dict.fromkeys((0, far)))
    detail = f"False positives for {positive} at the {threshold}: {rates}."
    return f"{answer}.", detail


def _loss(row: pd.Series) -> str:
    return format_number(*(-row[f"difference{end}"] for end in ("", "_high", "_low")))


def _auroc(row: pd.Series) -> str:
    return format_number(row["auroc"], row["auroc_low"], row["auroc_high"])


def _rate(row: pd.Series) -> str:
    low, high = fixed(100 * row["fpr_low"], 0), fixed(100 * row["fpr_high"], 0)
    return f"{percent(row['fpr'])} [{low}, {high}]" if low != "nan" else percent(row["fpr"])


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
        "AUROC retrained": numbers("retrained"),
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
    answer, detail = over_answer(rows, positive, threshold)
    ranks = page.FigurePart(
        "AUROC by network",
        page.figure_json(
            _curves(rows, {"auroc": "fixed probe", "retrained": "retrained probe"}, "AUROC")
        ),
        "Error bars: 95 % intervals over groups; dashed: chance. Where the fixed probe falls and "
        "the retrained one does not, the network represents the label along another direction.",
        answer,
        height=22,
    )
    titles = {"tpr": f"rate of {positive}, TPR", "fpr": "rate of others, FPR"}
    rates = page.FigurePart(
        f"Rows called {positive} at the {threshold}",
        page.figure_json(_curves(rows, titles, "share of rows")),
        "The threshold is the same on all networks. Error bars: 95 % intervals over groups.",
        detail,
        height=22,
    )
    files = page.Files([("All numbers", "networks.csv", csv_text(rows))])
    return page.Page(
        ("probekit", "fixed probe"),
        "Does the probe still work on other networks?",
        answer,
        [
            page.PageSection("", [ranks, rates], "screen"),
            page.PageSection("All networks", [over_table(rows), files]),
        ],
        details=[page.Paragraph(page.unbroken(detail))],
        caveats=[*notes, CAVEAT],
        method=METHOD,
        facts={"": facts},
        aside=[f"n = {facts['rows']}"],
    )


def _curves(rows: pd.DataFrame, titles: Mapping[str, str], title: str) -> go.Figure:
    """Return a figure of columns by network, given by their titles, with their intervals."""
    figure = go.Figure(layout={"template": style.TEMPLATE})
    names = [style.plotly_text(name) for name in short_names(rows["network"].tolist())]
    places = np.arange(len(rows))
    bounds = [0.5] if title == "AUROC" else [0.0, 1.0]
    if title == "AUROC":
        figure.add_hline(0.5, line=style.CHANCE_LINE, annotation_text="chance")
    for number, (column, label) in enumerate(titles.items()):
        columns = [column, f"{column}_low", f"{column}_high"]
        points = rows[columns].set_axis(["value", "ci_low", "ci_high"], axis=1)
        bounds += points.to_numpy().ravel().tolist()
        figure.add_scatter(
            x=places + 0.08 * (2 * number - 1), y=points["value"], mode="markers+text",
            text=[fixed(value, 2) for value in points["value"]],
            textposition=f"middle {('left', 'right')[number]}", customdata=names,
            name=style.plotly_text(label), marker=style.series_marker(number, 8),
            hovertemplate="%{customdata}: %{y:.3f}", error_y=style.error_bars(points, "value", 1.5),
        )  # fmt: skip
    figure.update_xaxes(tickvals=places, ticktext=names, range=[-0.5, len(rows) - 0.5])
    figure.update_yaxes(title_text=title, range=style.with_margin(*style.finite_ends(bounds)))
    return figure
