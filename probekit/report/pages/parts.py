"""Figures of a run's page: scores by layer, training, confidence, and the selected probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed, format_number, percent
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.figures import chosen_figures, views
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.figures.maps import layer_map, layer_maps, map_cells
from probekit.report.pages.size_curves import learning_part, share_part, sparse_part
from probekit.report.sentences import captions
from probekit.report.sentences.method import REFITTED, SITE_OF_ALL_FOLDS, pooled_ranking
from probekit.report.sentences.tables import CASCADE
from probekit.report.texts import capitalised, class_label
from probekit.results.record import BY_WORD, Control
from probekit.results.scores import Scores
from probekit.results.table import RESULTS, TableColumn, metric_name, page_table
from probekit.results.verdict import Verdict

LEAST_MAP = 24.0  # height of a map in rem, next to a table of comparisons


def result_parts(scores: Scores, v: Verdict, control: Control = BY_WORD) -> Iterator[FigurePart]:
    """Yield the figures of a run: main metrics, then curves by size, then other metrics, folded.

    Curves by size are those by number of features and by number of training rows, if there are any.
    Each figure is drawn only when the iteration reaches it. The first one is the layer curve of the
    main metric, if there is one.

    Args:
        scores: the scores of the run.
        v: the verdict of the run.
        control: describes the control task.
    """
    drawn = [name for name in METRICS if name in scores.metrics and METRICS[name].is_drawn]
    first = [name for name in v.main_metrics if name in drawn]
    curve, position = views.curve_rows(scores), views.curve_position(scores)
    # One figure has the heads at the shown position, another one, folded, those at all others.
    heads: dict[bool, list[pd.DataFrame]] = {}
    for named, is_shown, rows in views.head_tables(scores):
        heads.setdefault(is_shown, []).append(rows.assign(title=named))
    # Of each map: place, columns, rows, and whether it may be open.
    maps = [
        (f"heads {is_shown}", "head", Scores(pd.concat(heads[is_shown])), is_shown)
        for is_shown in sorted(heads, reverse=True)
    ]
    maps += [
        (named, "offset", Scores(rows.assign(title=named)), True)
        for named, rows in views.position_tables(scores)
    ]

    def of_metric(metric: str, *, is_open: bool) -> Iterator[FigurePart]:
        """Yield the layer curve of a metric, then its maps of heads and of positions."""
        name = title(metric)
        if metric in curve.metrics:
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
        for place, across, drawn_rows, is_shown in maps:
            if metric in drawn_rows.metrics:
                cells = map_cells(drawn_rows, metric, across)
                named = [
                    one for one in drawn_rows.rows["title"].unique() if one in set(cells["title"])
                ]
                unit = "position" if across == "offset" else "head"
                a_map = map_part(
                    f"{name} by layer and {unit} · {', '.join(named)}",
                    layer_maps(cells, across),
                    captions.map_caption(cells, v, control),
                    captions.map_description(cells),
                    is_open=is_open and is_shown,
                    least=LEAST_MAP,
                )
                yield replace(a_map, metric=name, place=place)

    for number, metric in enumerate(first):
        yield from of_metric(metric, is_open=True)
        if number == 0:
            yield from share_part(scores, v)
    yield from sparse_part(scores, v)
    yield from learning_part(scores, v)
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


def reliability_part(bins: pd.DataFrame, scores: Scores, v: Verdict) -> FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of a kind with many sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(scores.hidden_kinds)]
    return FigurePart(
        "Confidence and accuracy",
        figure_json(chosen_figures.reliability_figure(bins)),
        captions.reliability_caption(bins, scores, v),
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


def cascade_part(rows: pd.DataFrame) -> FigurePart:
    """Return the figure of the true positive rate by cost, given the rows of cascade.csv."""
    listed = [
        f"{row['setting']} (FPR {100 * row['fpr']:g} %): share {fixed(row['cost'], 2)}, TPR "
        f"{format_number(row['tpr'])}"
        for _, row in rows.iterrows()
    ]
    return FigurePart(
        "True positive rate by share of the network",
        figure_json(chosen_figures.cascade_figure(rows)),
        f"{CASCADE} Bars: 95 % intervals over groups.",
        f"True positive rate by share of the network: {'; '.join(listed)}.",
    )


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


def load_training(path: Path) -> Scores | None:
    """Return the scores of all checkpoints with an integer column `step`; None if no file exists.

    Raises:
        DataError: The file cannot be read, or `step` is missing or not an integer.
    """
    step = TableColumn("step", "training step of the checkpoint", "count")
    return Scores.load(path, (*RESULTS, step)) if path.is_file() else None


def step_parts(training: Scores | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield a map of the main metric by layer and step for each series that has this metric.

    The scores are those of `load_training`; without any there is no map. A series is a line of the
    layer curve.
    """
    if training is None:
        return
    metric = v.metric
    for name, rows in views.step_tables(training):
        if metric in Scores(rows).metrics:
            cells = map_cells(Scores(rows), metric, "step")
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


def chosen_parts(run_dir: Path, scores: Scores, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figures of the selected probe for which the run has saved data; none without one.

    The ranking of single neurons and the cosines between sites are among them. Scatter plots are
    left out if the selected probe has no score on test rows, from which their caption is made.

    Args:
        run_dir: the folder of the run.
        scores: the scores of the run.
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
    neurons = chosen_figures.ranked_neurons(scores)
    if not neurons.empty:
        named = [f"{row['site']} {format_number(row['value'])}" for _, row in neurons.iterrows()]
        yield FigurePart(
            "Single neurons, ranked",
            figure_json(chosen_figures.neuron_ranking(scores)),
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
        label = class_label(str(scores.rows["positive"].iloc[0]))
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
