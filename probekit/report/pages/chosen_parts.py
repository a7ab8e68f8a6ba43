"""Figures of the selected probe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from probekit.report.figures.chosen_figures import (
    confusion_counts,
    confusion_matrix,
    confusion_shares,
    direction_map,
    neuron_ranking,
    ranked_neurons,
    scatter_plane,
)
from probekit.report.figures.style import fixed, format_number
from probekit.report.pages.page import FigurePart, figure_json
from probekit.report.sentences.method import REFITTED, SITE_OF_ALL_FOLDS, pooled_ranking
from probekit.report.texts import class_label
from probekit.results.table import page_table
from probekit.results.verdict import Verdict

MOST_CONFUSED = 6  # pairs named in the description of a matrix


def chosen_parts(run_dir: Path, table: pd.DataFrame, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figures of the selected probe for which the run has saved the data.

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
    confusion, scatter, cosines = (
        page_table(run_dir, name) for name in ("confusion.csv", "scatter.csv", "cosines.csv")
    )
    if confusion is not None:
        yield _confusion_part(confusion, probe)
    if not ranked_neurons(table).empty:
        yield _neuron_part(table, v)
    if scatter is not None and v.score is not None:
        yield from _scatter_parts(scatter, v.best.name, v.score.n, is_nested=v.is_nested)
    if cosines is not None:
        yield _cosine_part(cosines, v.best.probe, REFITTED if v.is_nested else "")


def _confusion_part(rows: pd.DataFrame, probe: str) -> FigurePart:
    counts = confusion_counts(rows)
    shares = confusion_shares(counts)
    wrong = rows[rows["truth"] != rows["guess"]].nlargest(MOST_CONFUSED, "n")
    named = [
        f"{class_label(row['truth'])} predicted as {class_label(row['guess'])}: {row['n']:,} rows "
        f"({shares.loc[row['truth'], row['guess']]:.0%} of that label)"
        for _, row in wrong[wrong["n"] > 0].iterrows()
    ]
    return FigurePart(
        "Confusion matrix",
        figure_json(confusion_matrix(rows)),
        f"True labels (rows) and labels predicted by {probe} (columns), on "
        f"{counts.to_numpy().sum():,} held-out rows. Each row sums to 1; hover for counts.",
        f"Confusion matrix of {probe}. {'; '.join(named) or 'No row is misclassified'}.",
        is_open=False,
        height=10 + 1.9 * max(len(counts), 5),
    )


def _neuron_part(table: pd.DataFrame, v: Verdict) -> FigurePart:
    rows = ranked_neurons(table)
    return FigurePart(
        "Single neurons, ranked",
        figure_json(neuron_ranking(table)),
        "Neurons by layer and index, in descending order of the cross-validated score on training "
        "rows. Markers: scores on held-out rows, with 95 % intervals. Dashed line: chance. "
        f"{pooled_ranking(v)}".rstrip(),
        "Neurons, best first: "
        + "; ".join(f"{row['site']} {format_number(row['value'])}" for _, row in rows.iterrows()),
        is_open=False,
        height=8 + 1.2 * len(rows),
    )


def _scatter_parts(
    rows: pd.DataFrame, site: str, n_test: int, *, is_nested: bool
) -> Iterator[FigurePart]:
    axes = {
        "PCA": "the first two principal components",
        "LDA": "the axes of LDA on the first 50 principal components",
    }
    for method, own in rows.groupby("method", sort=False):
        centroids = own.groupby("label")[["x", "y"]].mean()
        yield FigurePart(
            f"{site} by {method}",
            figure_json(scatter_plane(rows, str(method))),
            f"{len(own):,} of {n_test:,} held-out rows at {site}, projected on "
            f"{axes[str(method)]}. Scaling and projection were fitted on other rows. "
            f"{SITE_OF_ALL_FOLDS if is_nested else ''}The "
            "projection is for illustration only: the probe uses all dimensions.",
            f"{method} of {site}. Centroids of the labels: "
            + "; ".join(
                f"{class_label(str(label))} at {fixed(x, 1)}, {fixed(y, 1)}"
                for label, (x, y) in zip(centroids.index, centroids.to_numpy(), strict=True)
            ),
            is_open=False,
        )


def _cosine_part(rows: pd.DataFrame, probe: str, caveat: str) -> FigurePart:
    n_directions = rows["n_directions"].iloc[0]
    pairs = rows[rows["site_a"] < rows["site_b"]]
    mean = f", mean over {n_directions} labels" if n_directions > 1 else ""
    return FigurePart(
        "Cosine similarity between probe directions",
        figure_json(direction_map(rows)),
        f"Cosine similarity between the weights of the {probe} probes (for unscaled activations) "
        f"at each pair of sites{mean}. {_null_of_cosines(pairs)} {caveat}".rstrip(),
        "Cosine similarities: "
        + "; ".join(
            f"{row['site_a']} and {row['site_b']} {fixed(row['cosine'], 2)}"
            for _, row in pairs.iterrows()
        ),
        is_open=False,
        height=10 + 1.9 * max(rows["site_a"].nunique(), 5),
    )


def _null_of_cosines(pairs: pd.DataFrame) -> str:
    """Return the sentence about cosines of probes on permuted labels."""
    bounds = pairs["null_high"].dropna()
    if bounds.empty:
        return "No probes were fitted on permuted labels to compare with."
    low, high = fixed(bounds.min(), 2), fixed(bounds.max(), 2)
    return (
        "For comparison: of probes fitted on permuted labels at one site (whole groups are "
        "permuted, or rows within groups that have several labels; same penalty), 95 % have an "
        "absolute cosine with the probe of the other site of at most "
        f"{low if low == high else f'{low} to {high}, depending on the sites'}."
    )
