"""Page of a transfer: scores of each probe on every data set, and cosines between directions."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number, format_p
from probekit.chosen.registry import doors
from probekit.report.elements import page, style
from probekit.report.elements.texts import capitalised, model_title
from probekit.report.figures import maps
from probekit.report.sentences.comparisons import transfer_answer, transfer_question
from probekit.results.comparison import Transfer, matrix
from probekit.results.table import metric_name, only

METHOD = (
    "Rows of a matrix: data set of the training rows. Columns: data set of the test rows. The "
    "diagonal has the scores within one data set and the cosines of a probe with itself.",
    "A score far below chance means that the direction has the opposite sign.",
    "A probe works on another data set if the interval of its score minus chance is above 0, and "
    "less well if the interval of its difference to the data set's own probe is below 0.",
    "A probe shows what can be decoded, not what the model uses.",
)
OTHERS = (
    "The figures above are of the site and kind of probe with the highest mean cross-validated "
    "score on the training rows of all data sets."
)
MOST_TEXTS = 12  # with more data sets, cells are too small for numbers
# Column of a hover text that is not a score -> its format.
FORMATS: dict[str, Callable[..., str]] = {"p": format_p, "n_null": "{:,.0f}".format}
# Space of the features -> title and caption of the map of cosines.
SPACES = {
    "raw": (
        "Cosine of directions, raw",
        "The cosine of the weights of the probes of two data sets, for unscaled activations.",
    ),
    "standardised": (
        "Cosine of directions, standardised",
        "Features are divided by their standard deviation over the training rows of all sets, so "
        "that a weight measures the effect of a feature on the score.",
    ),
}


def transfer_page(transfer: Transfer) -> page.Page:
    """Return a page with the matrices of every site and kind of probe."""

    def matrices(site: str, probe: str) -> page.Group:
        parts = place_parts(transfer, site, probe)
        return page.Group("columns", parts, column=14 + 5 * len(transfer.names))

    others = [place for place in transfer.places() if place != transfer.chosen]
    sections = [page.PageSection("", [matrices(*transfer.chosen)], "first")]
    site, probe = transfer.chosen
    for analysis, section in doors("page", "transferred_section"):
        if analysis.file in transfer.tables:
            rows = only(transfer.tables[analysis.file], site=site, probe=probe)
            sections.append(section(rows))
    if others:
        folds = [page.Fold(f"Site {' · '.join(place)}", [matrices(*place)]) for place in others]
        sections += [
            page.PageSection("All sites", [_summary_part(transfer)]),
            page.PageSection(
                "Other sites and kinds of probe", [page.Paragraph(OTHERS, "note"), *folds]
            ),
        ]
    answer, *more = transfer_answer(transfer)
    parts = ("transfer", model_title(transfer.model), metric_name(transfer.metric))
    return page.Page(
        eyebrow=["probekit", *parts, " · ".join(transfer.chosen)],
        title=transfer_question(transfer.names),
        answer=answer,
        details=[page.Paragraph(page.unbroken(text)) for text in more],
        sections=sections,
        caveats=transfer.notes,
        method=METHOD,
        head=f"Transfer between {', '.join(transfer.names)}",
    )


def place_parts(transfer: Transfer, site: str, probe: str) -> list[page.FigurePart]:
    """Return the figures of one kind of probe at one site: scores and, if available, cosines."""
    scores, *cosines = transfer.maps(site, probe).items()
    metric = metric_name(transfer.metric)
    height = 9 + 3.5 * (max(len(transfer.names), 2) + len(transfer.pooled))
    figure = score_map(scores[1], transfer.names, transfer.metric, transfer.pooled)
    caption = "Brackets: 95 % intervals over groups of test rows. Colours show the distance from "
    caption += "chance, or from its mean if it differs between test rows. Lines: the 95 % interval "
    caption += "of the score minus chance contains 0."
    if transfer.pooled:
        caption += (
            " Lower rows: one probe of the training rows of several data sets. Grey: no test."
        )
    scored = page.FigurePart(
        f"{capitalised(metric)} at {site}",
        page.figure_json(figure),
        caption,
        f"{metric}: {_in_words(scores[1])}",
        height=height,
    )
    figures = [scored]
    for space, rows in cosines:
        title, caption = SPACES[space]
        draws = rows.loc[(rows["train"] != rows["test"]) & (rows["n_null"] > 0), "n_null"]
        if not draws.empty:
            low, high = int(draws.min()), int(draws.max())
            n_draws = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            caption += (
                " Brackets: central 95 % of the cosines with probes of permuted labels; a cosine "
                f"inside them is not significant. They are based on {n_draws} permutations, so p "
                f"cannot be below {format_p(1 / (1 + high))}."
            )
        figure = page.figure_json(cosine_map(rows, transfer.names))
        words = f"{title}: {_in_words(rows)}"
        figures.append(page.FigurePart(title, figure, caption, words, height=height))
    return figures


def _in_words(rows: pd.DataFrame) -> str:
    return "; ".join(
        f"{row['train']} to {row['test']} "
        + format_number(row["value"], row["ci_low"], row["ci_high"])
        for _, row in rows.dropna(subset="value").iterrows()
    )


def score_map(
    rows: pd.DataFrame, names: tuple[str, ...], metric: str, pooled: tuple[str, ...] = ()
) -> go.Figure:
    """Return the heat map of the scores at one site: trained on (down) by tested on (across)."""
    chance = float(np.nan_to_num(rows["chance"].mean()))
    levels = rows["chance"].fillna(chance)
    reach = max([maps.LEAST_RANGE, *(rows["value"] - chance).abs().dropna()])
    hover = {
        metric_name(metric): ("value", "ci_low", "ci_high"),
        "minus the probe trained there": ("difference", "difference_low", "difference_high"),
        "chance": ("chance",),
    }
    colours = maps.Colours(chance - reach, chance + reach, style.SIGNED, is_diverging=True)
    if not (rows["value"] < levels).any():
        scale = ["rgb(255,255,255)", *style.MAGNITUDES[1:]]
        colours = maps.Colours(chance, chance + reach, scale, is_diverging=False)
    figure = _map(rows, names, colours, hover, pooled)
    down = (*names, *pooled)
    near = rows["lead_low"].le(0) & rows["lead_high"].ge(0) & rows["train"].isin(down)
    for _, row in rows[near].iterrows():
        x, y = names.index(row["test"]), down.index(row["train"])
        for step in (-0.8, 0.8):  # diagonals across two corners of a cell, next to its text
            across = {"x0": x - 0.5 + max(step, 0), "x1": x + 0.5 + min(step, 0)}
            ends = across | {"y0": y + 0.5 + min(step, 0), "y1": y - 0.5 + max(step, 0)}
            line = {"width": 1, "color": style.GREY}
            figure.add_shape(type="line", layer="above", line=line, opacity=0.6, **ends)
    if near.any():
        maps.write_above(figure, "lines: lead over chance may be 0")
    return maps.name_colours(figure, metric_name(metric))


def cosine_map(rows: pd.DataFrame, names: tuple[str, ...]) -> go.Figure:
    """Return the heat map of the cosines at one site, with a scale that diverges at 0."""
    hover = {
        "cosine": ("value",),
        "with permuted labels": ("ci_low", "ci_high"),
        "permutations": ("n_null",),
        "p": ("p",),
    }
    figure = _map(rows, names, maps.Colours(-1.0, 1.0, style.SIGNED, is_diverging=True), hover)
    maps.write_above(figure, "brackets: 95 % with permuted labels")
    return figure.update_xaxes(title_text="probe of").update_yaxes(title_text="probe of")


def _map(
    rows: pd.DataFrame,
    names: tuple[str, ...],
    colours: maps.Colours,
    hover: dict[str, tuple[str, ...]],
    pooled: tuple[str, ...] = (),
) -> go.Figure:
    """Return the heat map of the values, trained on (down) by tested on (across).

    Args:
        rows: Rows of `Transfer.maps`.
        names: Names of the data sets.
        colours: Colour scale and the values at its ends.
        hover: Columns of each line of the hover text, by its name.
        pooled: Names of the training rows of several sets, below the sets.
    """
    space = "<br>" if len(names) > 2 else " "  # in narrow columns an interval takes two lines
    cells = {}
    for _, row in rows.dropna(subset="value").iterrows():
        text = fixed(row["value"], 2)
        if not np.isnan(row["ci_low"]):
            text += f"<br>[{fixed(row['ci_low'], 2)},{space}{fixed(row['ci_high'], 2)}]"
        cells[row["train"], row["test"]] = text, _hover(row, hover)
    down = (*names, *pooled)
    in_order = [cells.get(place, ("", "")) for place in product(down, names)]
    values = matrix(rows, names, "value", pooled).to_numpy()
    texts, hovers = (list(part) for part in zip(*in_order, strict=True))
    axes: Any = {"across": [style.short_tick(name) for name in names], "title": "tested on"}
    # Two lines leave room for cells on narrow screens.
    axes |= {"down": [maps.two_line_tick(name) for name in down], "down_title": "trained on"}
    return maps.text_map(values, hovers, colours, texts=texts, **axes, most_texts=MOST_TEXTS**2)


def _hover(row: pd.Series, lines: dict[str, tuple[str, ...]]) -> str:
    """Return the hover text of a cell, without lines whose first number is undefined.

    Args:
        row: Row of the cell.
        lines: Columns of each line, by its name.
    """
    texts = [f"<b>{style.plotly_text(row['train'])} → {style.plotly_text(row['test'])}</b>"]
    for name, columns in lines.items():
        numbers = [row[column] for column in columns]
        if np.isnan(numbers[0]):
            continue
        # A range without a value, or a number or a value with its interval.
        words = FORMATS.get(columns[0], format_number)
        text = " to ".join(map(words, numbers)) if len(numbers) == 2 else words(*numbers)
        texts.append(f"{name}: {text}")
    return "<br>".join(texts)


def _summary_part(transfer: Transfer) -> page.FigurePart:
    """Return the mean score of each site within data sets and across data sets, as a figure.

    Undefined scores are left out of means. The description has no sites without a score.
    """
    rows = only(transfer.scores, metric=transfer.metric)
    rows = rows[rows["train"].isin(transfer.names)]
    is_own = rows["train"] == rows["test"]
    figure = go.Figure(layout={"template": style.TEMPLATE})
    descriptions = []
    for number, probe in enumerate(dict.fromkeys(rows["probe"])):
        of_kind, marker = rows["probe"] == probe, style.series_marker(number, 8)
        for name, side, dash in (("own test rows", is_own, "solid"), ("others'", ~is_own, "dash")):
            mean = rows[of_kind & side].groupby("site", sort=False)["value"].mean()
            means = ", ".join(map(format_number, mean.dropna()))
            descriptions.append(f"{probe}, {name}: {means}")
            line = {"dash": dash, "color": marker["color"]}
            look = {"line": line, "marker": marker, "mode": "lines+markers"}
            title = f"{style.plotly_text(probe)}, {name}"
            sites = list(map(style.plotly_text, mean.index))
            figure.add_scatter(x=sites, y=mean.tolist(), name=title, **look)
    figure.update_xaxes(type="category", tickangle=-40)
    figure.update_yaxes(title_text=metric_name(transfer.metric))
    return page.FigurePart(
        "Scores within and across data sets",
        page.figure_json(figure),
        "Mean score on the test rows of the data set that a probe was trained on (own), and on "
        "those of the other data sets (others').",
        ". ".join(descriptions),
        height=30,
    )
