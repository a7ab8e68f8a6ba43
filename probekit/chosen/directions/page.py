"""Directions and features on a page: planes of test rows, cosines, k-sparse and single features."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed, format_number
from probekit.chosen.page import Columns, Shown, written_table
from probekit.report.elements import page, style
from probekit.report.elements.page import FigurePart, PageSection, Paragraph, figure_json
from probekit.report.elements.style import TEMPLATE, plotly_text, series_marker
from probekit.report.elements.table import Column
from probekit.report.elements.texts import class_label
from probekit.report.figures.maps import MOST_TEXTS, diverging, text_map
from probekit.report.pages.further_figures import pooled_ranking
from probekit.results.scores import Scores
from probekit.results.table import by_depth, only, ticks

MOST_NAMED = 10  # labels in a scatter plot; rarer labels are merged into `OTHERS`
OTHERS = "other labels"
AXES = {
    "PCA": "the first two principal components",
    "LDA": "the axes of LDA on the first 50 principal components (with two labels: "
    "its axis, and the first component)",
}
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
MOST_NEURONS = 30
LEAST_NEURONS = 5  # fewer neurons are drawn as lines in the layer curve
MOST_FEATURES = 20  # shown without unfolding the table
OF_FEATURES = (
    "At {site}, where k-sparse probes have their best cross-validated score{over_folds}; a probe "
    "of k features{on_all} uses the first k of this ranking. Share explained: share of a feature's "
    "variance over {rows} rows that is between labels. Highest mean for: the label with the "
    "highest mean. The model does not necessarily use a feature that separates the labels."
)
COLUMNS: Columns = {
    "rank": "rank",
    Column("feature", "site", "code"): "feature",
    "smallest k": "k",
    "share explained": "share",
    Column("highest mean for", "site"): "label",
}


def details(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the features of k-sparse probes, best first, if there are any."""
    features, is_nested = run.rows("features.csv"), run.verdict.is_nested
    if features is None:
        return
    note = OF_FEATURES.format(
        site=features["site"].iloc[0],
        over_folds=" over all outer folds" if is_nested else "",
        on_all=", fitted on all rows," if is_nested else "",
        rows="all" if is_nested else "the training",
    )
    best, others = (
        written_table(f"Table of the {title} features", COLUMNS, shown, is_sortable=True, head=1)
        for title, shown in (("best", features[:MOST_FEATURES]), ("next", features[MOST_FEATURES:]))
    )
    n = len(others.rows)
    fold = page.Fold(f"The next {'feature' if n == 1 else f'{n:,} features'}", [others])
    items: Sequence[page.Item] = [best, Paragraph(note, "note"), fold]
    yield PageSection("Features used by the k-sparse probes", items if n else items[:2])


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the ranking of single neurons, the planes and the map of cosines that the run has.

    Planes are left out if the selected probe has no score on test rows, which their captions state.
    """
    neurons = ranked_neurons(run.scores)
    if len(neurons):
        named = [f"{row['site']} {format_number(row['value'])}" for _, row in neurons.iterrows()]
        yield FigurePart(
            "Single neurons, ranked",
            figure_json(neuron_ranking(neurons)),
            "Neurons by layer and index, in descending order of the cross-validated score on "
            "training rows. Markers: scores on held-out rows, with 95 % intervals. Dashed line: "
            f"chance.{pooled_ranking(run.verdict)}",
            f"Neurons, best first: {'; '.join(named)}",
            is_open=False,
            height=8 + 1.2 * len(neurons),
        )
    v, scatter, cosines = run.verdict, run.rows("scatter.csv"), run.rows("cosines.csv")
    assert v.best is not None or (scatter is None and cosines is None)
    if scatter is not None and v.best is not None and v.score is not None:
        for method, points in scatter.groupby("method", sort=False):
            centroids = points.groupby("label")[["x", "y"]].mean()
            selected = "The site was selected by validation scores that include these rows. "
            selected = selected if v.is_nested else ""
            yield FigurePart(
                f"{v.best.name} by {method}",
                figure_json(scatter_plane(scatter, str(method))),
                f"{len(points):,} of {v.score.n:,} held-out rows at {v.best.name}, projected on "
                f"{AXES[str(method)]}. Scaling and projection were fitted on other rows. {selected}"
                "The projection is for illustration only: the probe uses all dimensions.",
                f"{method} of {v.best.name}. Centroids of the labels: "
                + "; ".join(
                    f"{class_label(str(label))} at {fixed(x, 1)}, {fixed(y, 1)}"
                    for label, (x, y) in zip(centroids.index, centroids.to_numpy(), strict=True)
                ),
                is_open=False,
            )
    if cosines is not None and v.best is not None:
        caveat = "These probes were fitted on all rows, so that no row is left to test them."
        yield _cosine_part(cosines, v.best.probe, caveat if v.is_nested else "")


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
        figure_json(direction_map(rows)),
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


def scatter_plane(rows: pd.DataFrame, method: str) -> go.Figure:
    """Return the scatter plot of the test rows in a PCA or LDA plane, coloured by label.

    Args:
        rows: `method`, coordinates `x` and `y`, `label`, and axis titles `axis_x` and `axis_y`.
        method: `PCA` or `LDA`.
    """
    rows = only(rows, method=method)
    frequent = list(rows["label"].value_counts().index)
    # If labels are merged, `OTHERS` takes the place of one.
    named = sorted(frequent if len(frequent) <= MOST_NAMED else frequent[: MOST_NAMED - 1])
    shown_labels = rows["label"].where(rows["label"].isin(named), OTHERS)
    figure = go.Figure(layout={"template": TEMPLATE})
    # The named labels in order, then `OTHERS` if any label is merged.
    for number, label in enumerate(dict.fromkeys([*named, *sorted(shown_labels)])):
        points = rows[shown_labels == label]
        figure.add_scatter(
            x=points["x"].tolist(),
            y=points["y"].tolist(),
            mode="markers",
            name=plotly_text(class_label(label)),
            marker={**series_marker(number + 1, 7), "opacity": 0.75},
            hovertext=[plotly_text(class_label(text)) for text in points["label"]],
            hoverinfo="text",
        )
    figure.update_xaxes(title_text=rows["axis_x"].iloc[0])
    figure.update_yaxes(title_text=rows["axis_y"].iloc[0])
    if method == "PCA":  # both axes in one unit
        figure.update_yaxes(scaleanchor="x")
    return figure


def direction_map(rows: pd.DataFrame) -> go.Figure:
    """Return the map of cosine similarities between probe directions at each pair of sites.

    Args:
        rows: `site_a`, `site_b` and `cosine` for every pair of sites of one component; optionally
            `null_high`, the 95 % quantile of absolute cosines on permuted labels, or NaN.
    """
    order = by_depth(pd.DataFrame({"site": rows["site_a"].unique(), "head": np.nan}))
    sites, labels = list(order["site"]), ticks(order)
    values = rows.pivot_table("cosine", "site_a", "site_b").loc[sites, sites]
    bounds = rows["null_high"] if "null_high" in rows else [np.nan] * len(rows)
    null_lines = {
        (a, b): "" if np.isnan(bound) else f"<br>95 % of permuted labels: ±{format_number(bound)}"
        for a, b, bound in zip(rows["site_a"], rows["site_b"], bounds, strict=True)
    }
    hover = [
        f"<b>{a}</b><br><b>{b}</b><br>cosine {format_number(values.loc[a, b])}{null_lines[a, b]}"
        for a in sites
        for b in sites
    ]
    names, most = [labels[int(depth)] for depth in order["depth"]], 2 * MOST_TEXTS
    return text_map(
        values, hover, diverging(1.0), across=names, down=names, title="layer", most_texts=most
    )


def ranked_neurons(scores: Scores) -> pd.DataFrame:
    """Return the test rows of single neurons, best cross-validated score first.

    Each neuron has the row of its best probe and position. The result has at most `MOST_NEURONS`
    rows, and none if fewer than `LEAST_NEURONS` neurons were probed.
    """
    ranked = scores.ranked
    ranked = ranked[ranked["site"].str.contains("[neuron=", regex=False)]
    ranked = ranked.drop_duplicates("site").head(MOST_NEURONS)
    if len(ranked) < LEAST_NEURONS:
        return ranked.iloc[:0]
    test = only(scores.sited, target="task", metric=scores.metric, split="test")
    keys = ["site", "probe", "position"]
    return ranked[keys].merge(test, on=keys)


def neuron_ranking(rows: pd.DataFrame) -> go.Figure:
    """Return the figure of test scores of single neurons, given `ranked_neurons`."""
    # Layer and neuron, such as "3 · 17" of blocks.3.mlp.hook_post[neuron=17].
    names = rows["site"].str.replace(r"^\w+\.(\d+)\..*=(\d+)\]$", r"\1 · \2", regex=True).tolist()
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_scatter(
        x=rows["value"].tolist(),
        y=list(range(len(rows))),
        mode="markers",
        error_x={**style.error_bars(rows, "value", 1.5), "symmetric": False},
        marker={"color": style.SERIES_COLOURS[0], "size": 8},
        hovertext=[
            f"<b>{row['site']}</b><br>{format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for _, row in rows.iterrows()
        ],
        hoverinfo="text",
    )
    figure.add_vline(x=rows["chance"].min(), line=style.CHANCE_LINE)
    figure.update_xaxes(title_text=style.axis_title(str(rows["metric"].iloc[0])))
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(rows))), ticktext=names, autorange="reversed"
    )
    return figure
