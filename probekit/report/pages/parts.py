"""Figures of a run's page: scores by layer, training, confidence, and the selected probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed, format_number, percent
from probekit.chosen.registry import doors
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures import chosen_figures, curves, views
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.maps.maps import head_maps, layer_map, map_cells
from probekit.report.pages.page import FigurePart, PageSection, Paragraph, figure_json
from probekit.report.sentences import captions
from probekit.report.sentences.method import REFITTED, SITE_OF_ALL_FOLDS, pooled_ranking
from probekit.report.sentences.tables import RULES, rules_table
from probekit.report.texts import capitalised, class_label
from probekit.results.record import BY_WORD, Control, Norms
from probekit.results.selection import hidden_kinds, measured_metrics
from probekit.results.table import RESULTS, TableColumn, load_table, metric_name, page_table, placed
from probekit.results.verdict import Verdict

LEAST_MAP = 24.0  # height of a map in rem, next to a table of comparisons


def result_parts(
    table: pd.DataFrame, v: Verdict, control: Control = BY_WORD
) -> Iterator[FigurePart]:
    """Yield the figures of a run: main metrics, then curves by size, then other metrics, folded.

    Curves by size are those by number of features and by number of training rows, if there are any.
    Each figure is drawn only when the iteration reaches it. The first one is the layer curve of the
    main metric, if there is one.

    Args:
        table: rows of results.csv.
        v: the verdict of the run.
        control: describes the control task.
    """
    measured = measured_metrics(table)
    drawn = [name for name in METRICS if name in measured and METRICS[name].is_drawn]
    first = [name for name in v.main_metrics if name in drawn]
    curve, position = views.curve_rows(table), views.curve_position(table)
    # One figure has the heads at the shown position, another one, folded, those at all others.
    heads: dict[bool, list[pd.DataFrame]] = {True: [], False: []}
    for part, is_shown, rows in views.head_tables(table):
        heads[is_shown].append(placed(rows.assign(title=part)))
    positions = [(part, placed(rows)) for part, rows in views.position_tables(table)]
    of_curve = measured_metrics(curve)

    def of_metric(metric: str, *, is_open: bool) -> Iterator[FigurePart]:
        """Yield the layer curve of a metric, then its maps of heads and of positions."""
        name = title(metric)
        maps = []  # of each map: place, heading, figure, cells, whether it is open
        if metric in of_curve:
            figure = curve_figure(curve, metric)
            yield FigurePart(
                f"{name} by layer{f' · {views.position_words(position)}' if position else ''}",
                figure_json(figure),
                captions.caption(curve, v, metric, control),
                captions.description(curve, metric),
                is_open=is_open,
                height=facets_height(figure),
                metric=name,
                place="curve",
            )
        for is_shown, of_parts in heads.items():
            tables = [rows for rows in of_parts if metric in measured_metrics(rows)]
            if tables:
                cells = map_cells(pd.concat(tables), metric, "head")
                named = ", ".join(rows["title"].iloc[0] for rows in tables)
                heading = f"{name} by layer and head · {named}"
                opened = is_open and is_shown
                maps.append((f"heads {is_shown}", heading, head_maps(cells), cells, opened))
        for part, rows in positions:
            if metric in measured_metrics(rows):
                cells = map_cells(rows, metric, "offset")
                heading = f"{name} by layer and position · {part}"
                maps.append((part, heading, layer_map(cells, "offset"), cells, is_open))
        for place, heading, figure, cells, opened in maps:
            caption = captions.map_caption(cells, v, control)
            description = captions.map_description(cells)
            a_map = map_part(heading, figure, caption, description, is_open=opened, least=LEAST_MAP)
            yield replace(a_map, metric=name, place=place)

    for number, metric in enumerate(first):
        yield from of_metric(metric, is_open=True)
        if number == 0 and (lines := curves.share_lines(table)):
            yield FigurePart(
                f"{title(v.metric)} by share of the reply",
                figure_json(curves.share_curve(lines)),
                captions.share_caption(lines),
                captions.share_description(lines),
            )
    if not curves.sparse_rows(table).empty:
        yield FigurePart(
            f"{title(v.metric)} by number of features",
            figure_json(curves.sparse_curve(table)),
            captions.sparse_caption(table, v),
            captions.sparse_description(table, v),
        )
    if list(curves.learning_curve_lines(table)):
        yield FigurePart(
            f"{title(v.metric)} by number of training rows",
            figure_json(curves.learning_curve(table)),
            captions.learning_curve_caption(table, v),
            captions.learning_curve_description(table, v),
        )
    for metric in drawn:
        if metric not in first:
            yield from of_metric(metric, is_open=False)


def with_choices(figures: Sequence[FigurePart]) -> list[FigurePart]:
    """Return the figures, in which folded ones become choices of the open one in their place."""
    shown = {part.place: part for part in reversed(figures) if part.place and part.is_open}
    others = {place: [p for p in figures if p.place == place and not p.is_open] for place in shown}
    return [
        replace(part, others=others[part.place]) if part is shown.get(part.place) else part
        for part in figures
        if part.is_open or part.place not in shown
    ]


def reliability_part(bins: pd.DataFrame, table: pd.DataFrame, v: Verdict) -> FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of a kind with many sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(hidden_kinds(table))]
    return FigurePart(
        "Confidence and accuracy",
        figure_json(chosen_figures.reliability_figure(bins)),
        captions.reliability_caption(bins, table, v),
        captions.reliability_description(bins),
        is_open=False,
    )


def source_parts(rows: pd.DataFrame | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figure of the scores by source; none without sources.csv, whose rows are given."""
    if rows is None or v.sources is None:
        return
    listed = [
        f"{row['source']} {format_number(row['value'])} (inside {format_number(row['within'])})"
        for _, row in rows.iterrows()
    ]
    yield FigurePart(
        f"{title(v.metric)} by {v.sources.column}, each left out whole",
        figure_json(chosen_figures.source_figure(rows, v.sources)),
        "Filled: score of all rows of a source, by probes whose fit, site, kind and penalty used "
        "the other sources only. Open: score of the same rows in a nested cross-validation whose "
        "folds mix the sources. Bars: 95 % intervals over groups. Line and band: mean over "
        f"{counted(v.sources.n, 'source')}, with its interval over sources if there are at least "
        "3. Nominally 95 %, it contained the expected score on a new source in 89 % of simulations "
        "or more where sources differ by degrees, but in as few as 47 % where one source in ten "
        "fails: then read the worst source, not the mean.",
        f"{metric_name(v.metric)} by source, worst first: {'; '.join(listed)}.",
        height=7 + 2.2 * max(len(rows), 3),
    )


class Shown(NamedTuple):
    """The numbers of a run that its page shows.

    Attributes:
        folder: the folder of the run.
        table: rows of results.csv.
        verdict: the verdict of the run.
    """

    folder: Path
    table: pd.DataFrame
    verdict: Verdict

    def rows(self, file: str) -> pd.DataFrame | None:
        """Return the rows of another file, see `page_table`; None if the run has none."""
        return page_table(self.folder, file)


def of_analyses(door: str, run: Shown) -> Iterator[Any]:
    """Yield what the analyses of the selected probe show at a place of the page.

    Args:
        door: the name of the place; see `probekit.chosen.registry`.
        run: the numbers of the run.
    """
    for _, shown in doors("page", door):
        yield from shown(run)


def rule_sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the rules that score a text, if there are any."""
    rules = run.rows("aggregation.csv")
    if rules is not None:
        note = Paragraph(RULES.format(n_texts=rules["n_texts"].iloc[0]), "note")
        yield PageSection("Rules that score a text", [rules_table(rules), note])


def title(metric: str) -> str:
    """Return the name of a metric with a capital first letter."""
    return capitalised(metric_name(metric))


def map_part(
    heading: str,
    figure: go.Figure,
    caption: str,
    description: str,
    is_open: bool = True,
    least: float = 0.0,
) -> FigurePart:
    """Return a heat map as a part of the page, with a height that fits its number of rows.

    The height is at least `least` rem, and at least that of a map with four rows.
    """
    height = max(7 + 1.75 * max(len(figure.data[0].z), 4), least)
    return FigurePart(heading, figure_json(figure), caption, description, is_open, height)


def norms_part(norms: list[Norms]) -> FigurePart:
    """Return the figure that compares activation norms at position 0 with those elsewhere."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return FigurePart(
        "Norm of position 0",
        figure_json(curves.norm_curve(rows)),
        "Median norm of the activations at position 0 and at all other positions. Models may use "
        "the first position as an attention sink, and later tokens too: if their norms are much "
        "larger, means and scalers that include them do not represent the other tokens.",
        "Ratio of the norm at position 0 to that at other positions. "
        + ", ".join(f"{site} {r:.1f}" for site, r in zip(rows["site"], ratios, strict=True)),
    )


def massive_words(norms: Norms) -> str:
    """Return where the massive activations of a site are; "" if there are none.

    >>> facts = {"n_texts": 64, "massive": [("", 64, 0, 0), (" the", 45, 2, 12)]}
    >>> massive_words(Norms(site="x", layer=2, first_position_norm=9, other_norm=1, **facts))
    "any token at position 0 in 64 of 64 texts; ' the' at positions 2 to 12 in 45 of 64 texts"
    """
    return "; ".join(
        f"{repr(token) if token else 'any token'} at position{'s' * (low < high)} {low}"
        f"{f' to {high}' * (low < high)} in {n:,} of {norms.n_texts:,} texts"
        for token, n, low, high in norms.massive
    )


def load_training(path: Path) -> pd.DataFrame | None:
    """Return the rows of all checkpoints with an integer column `step`; None if no file exists.

    Raises:
        DataError: The file cannot be read, or `step` is missing or not an integer.
    """
    step = TableColumn("step", "training step of the checkpoint", "count")
    return load_table(path, (*RESULTS, step)) if path.is_file() else None


def step_parts(table: pd.DataFrame | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield a map of the main metric by layer and step for each series that has this metric.

    The table is that of `load_training`; without one there is no map. A series is a line of the
    layer curve.
    """
    if table is None:
        return
    metric = v.metric
    for name, rows in views.step_tables(table):
        if metric in measured_metrics(rows):
            cells = map_cells(rows, metric, "step")
            highest = cells.sort_values("value", kind="stable", na_position="first").iloc[-1]
            yield map_part(
                f"{title(metric)} by layer and step of training · {name}",
                layer_map(cells, "step"),
                "Each column is a checkpoint, labelled with its training step. "
                + captions.map_caption(cells, v),
                f"{metric_name(metric)} by layer and step of training, {cells['step'].nunique()} "
                f"checkpoints, from {format_number(cells['value'].min())} to "
                f"{format_number(highest['value'])}; the highest is at {highest['site']} after "
                f"{highest['step']:,} steps.",
            )


NO_NULL = "No probes were fitted on permuted labels to compare with."
NULL_OF_COSINES = (
    "For comparison: of probes fitted on permuted labels at one site (whole groups are permuted, "
    "or rows within groups that have several labels; same penalty), 95 % have an absolute cosine "
    "with the probe of the other site of at most {most}."
)
HALVES_OF_GROUPS = (
    " Two probes, each of one half of the groups, have a mean cosine of {low} to {high}, depending "
    "on the site, over {n} random divisions. Certainty, the expected cosine of the probe of all "
    "groups with that of unlimited groups: {certainty}."
)
NO_CERTAINTY = "none at {sites}, where the probe is not significantly better than chance"
MOST_CONFUSED = 6  # pairs named in the description of a matrix


def chosen_parts(run_dir: Path, table: pd.DataFrame, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figures of the selected probe for which the run has saved data; none without one.

    The ranking of single neurons and the cosines between sites are among them. Scatter plots are
    left out if the selected probe has no score on test rows, from which their caption is made.

    Args:
        run_dir: the folder of the run.
        table: rows of results.csv.
        v: the verdict of the run.

    Raises:
        DataError: A file of the run cannot be read.
    """
    if v.best is None:
        return
    probe = f"the {v.best.probe} probe at {v.best.name}"
    if v.is_nested:
        probe = "the probes that the folds chose"
    confusion = page_table(run_dir, "confusion.csv")
    scatter = page_table(run_dir, "scatter.csv")
    cosines = page_table(run_dir, "cosines.csv")
    if confusion is not None:
        counts = chosen_figures.confusion_counts(confusion)
        shares = chosen_figures.confusion_shares(counts)
        wrong = confusion[confusion["truth"] != confusion["guess"]].nlargest(MOST_CONFUSED, "n")
        named = [
            f"{class_label(row['truth'])} predicted as {class_label(row['guess'])}: {row['n']:,} "
            f"rows ({percent(shares.loc[row['truth'], row['guess']])} of that label)"
            for _, row in wrong[wrong["n"] > 0].iterrows()
        ]
        yield FigurePart(
            "Confusion matrix",
            figure_json(chosen_figures.confusion_matrix(confusion)),
            f"True labels (rows) and labels predicted by {probe} (columns), on "
            f"{counts.to_numpy().sum():,} held-out rows. Each row sums to 1; hover for counts.",
            f"Confusion matrix of {probe}. {'; '.join(named) or 'No row is misclassified'}.",
            is_open=False,
            height=10 + 1.9 * max(len(counts), 5),
        )
    neurons = chosen_figures.ranked_neurons(table)
    if not neurons.empty:
        named = [f"{row['site']} {format_number(row['value'])}" for _, row in neurons.iterrows()]
        yield FigurePart(
            "Single neurons, ranked",
            figure_json(chosen_figures.neuron_ranking(table)),
            "Neurons by layer and index, in descending order of the cross-validated score on "
            "training rows. Markers: scores on held-out rows, with 95 % intervals. Dashed line: "
            f"chance.{pooled_ranking(v)}",
            f"Neurons, best first: {'; '.join(named)}",
            is_open=False,
            height=8 + 1.2 * len(neurons),
        )
    if scatter is not None and v.score is not None:
        site = v.best.name
        axes = {
            "PCA": "the first two principal components",
            "LDA": "the axes of LDA on the first 50 principal components (with two labels: "
            "its axis, and the first component)",
        }
        for method, points in scatter.groupby("method", sort=False):
            centroids = points.groupby("label")[["x", "y"]].mean()
            yield FigurePart(
                f"{site} by {method}",
                figure_json(chosen_figures.scatter_plane(scatter, str(method))),
                f"{len(points):,} of {v.score.n:,} held-out rows at {site}, projected on "
                f"{axes[str(method)]}. Scaling and projection were fitted on other rows. "
                f"{SITE_OF_ALL_FOLDS if v.is_nested else ''}The "
                "projection is for illustration only: the probe uses all dimensions.",
                f"{method} of {site}. Centroids of the labels: "
                + "; ".join(
                    f"{class_label(str(label))} at {fixed(x, 1)}, {fixed(y, 1)}"
                    for label, (x, y) in zip(centroids.index, centroids.to_numpy(), strict=True)
                ),
                is_open=False,
            )
    if cosines is not None:
        yield _cosine_part(cosines, v.best.probe, REFITTED if v.is_nested else "")
    flagged = page_table(run_dir, "flagged.csv")
    if flagged is not None:
        label = class_label(str(table["positive"].iloc[0]))
        yield FigurePart(
            "Score by token, and texts flagged",
            figure_json(chosen_figures.flagged_curves(flagged)),
            f"Held-out texts, by {probe}. Above: median score of the texts of a label up to each "
            "token. Below: share of them that are flagged within this number of tokens: whose "
            f"score up to one of these tokens is above 0 and predicts {label}.",
            "; ".join(
                f"{class_label(str(name))}: {percent(points['share'].iloc[-1])} of "
                f"{points['n_texts'].iloc[0]:,} texts within {points['tokens'].iloc[-1]:,} tokens"
                for name, points in flagged.groupby("label", sort=False)
            ),
            height=24,
        )


def _cosine_part(rows: pd.DataFrame, probe: str, caveat: str) -> FigurePart:
    """Return the map of cosines between sites; `caveat` ends its caption, "" if there is none."""
    n_directions = rows["n_directions"].iloc[0]
    pairs = rows[rows["site_a"] < rows["site_b"]]  # the rows have each pair in both orders
    bounds, null = pairs["null_high"].dropna(), NO_NULL
    if not bounds.empty:
        low, high = fixed(bounds.min(), 2), fixed(bounds.max(), 2)
        most = low if low == high else f"{low} to {high}, depending on the sites"
        null = NULL_OF_COSINES.format(most=most)
    of_halves = rows[rows["half_cosine"].notna()]
    if not of_halves.empty:
        low, high = (fixed(of_halves["half_cosine"].agg(end), 2) for end in ("min", "max"))
        certain, n = of_halves["certainty"].dropna(), of_halves["n_halvings"].iloc[0]
        ranges = [f"{fixed(certain.min(), 2)} to {fixed(certain.max(), 2)}"] * (len(certain) > 0)
        if len(certain) < len(of_halves):
            ranges.append(NO_CERTAINTY.format(sites=counted(len(of_halves) - len(certain), "site")))
        null += HALVES_OF_GROUPS.format(n=n, low=low, high=high, certainty="; ".join(ranges))
    mean = f", mean over {n_directions} labels" if n_directions > 1 else ""
    return FigurePart(
        "Cosine similarity between probe directions",
        figure_json(chosen_figures.direction_map(rows)),
        f"Cosine similarity between the weights of the {probe} probes (for unscaled activations) "
        f"at each pair of sites{mean}. {null} {caveat}".rstrip(),
        "Cosine similarities: "
        + "; ".join(
            f"{row['site_a']} and {row['site_b']} {fixed(row['cosine'], 2)}"
            for _, row in pairs.iterrows()
        ),
        is_open=False,
        height=10 + 1.9 * max(rows["site_a"].nunique(), 5),
    )
