"""What the selected probe adds to the confounds, on a page."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL, fixed
from probekit.chosen.page import Columns, Shown, estimate, estimate_words, sentence, written_table
from probekit.report.elements.page import FigurePart, Item, PageSection, Paragraph
from probekit.report.pages.further_figures import scores_part
from probekit.report.sentences.answer import p_words
from probekit.results.table import metric_name

TERMS = (
    "the normal scores of the ranks of numbers, their squares, cubic splines and products of two, "
    "and indicators of categories and of numbers with at most 10 values"
)
CLASSES = (
    "The label is modelled from these columns alone: {known}. The model is a penalised logistic "
    "regression on {terms}. A logistic probe is fitted to what its held-out log odds do not "
    "explain; a strong enough penalty switches it off. One-sided p: "
    "random signs of groups of what the probe adds times the residual of the label, both without "
    "the columns. Gain: bits of the probability of the true label, with its 95 % interval over "
    "groups. The two AUROCs have no interval of their difference, which would be too narrow near "
    "zero."
)
NUMBERS = (
    "Ranks of the label are modelled from these columns alone: {known}. The model is a ridge "
    "regression on {terms}. Another one on the activations is fitted to the rest. One-sided p: "
    "random signs of groups of what it adds times this rest, both without the columns. The partial "
    "rank correlation of the selected probe is a description without p: it removes straight lines "
    "of ranks only."
)
MATCHED = (
    "Matched: AUROC of the selected probe where each label weighs equally in each combination of "
    "categories, so that these alone have 0.5; {rows:,.0f} of {of:,} rows have a weight, and count "
    "as {effective:,.0f} of equal weight."
)
WITHIN = (
    "Within each value: the score in each combination of categories, averaged by rows; one-sided "
    "p by t over groups of scores and labels that are centred in each group and combination or, "
    "where these have one label each, in each combination."
)
STRATA: Columns = {"matched AUROC of the probe": "matched_score"}
CAUSAL = (
    "Name only columns that neither the label nor the activations influence: otherwise too "
    "much, or too little, is taken out."
)
COLUMNS: dict[str, Columns] = {
    "auroc": {
        "AUROC of the columns": "known_score",
        "with the probe": "joint_score",
        "gain in bits": "gain",
        "p": "p",
    },
    "spearman": {
        "rank correlation of the columns": "known_score",
        "with the probe": "joint_score",
        "partial rank correlation": "partial",
        "p": "p",
    },
}


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield whether the probe adds anything to the confounds, if there are any."""
    rows = run.rows("left.csv")
    if rows is not None:
        row = rows.iloc[0]
        joint, known = (fixed(row[name], 2) for name in ("joint_score", "known_score"))
        size = f"{metric_name(row['metric'])} {joint} instead of {known}"
        if not np.isnan(row["gain"]):
            size += f", a gain of {estimate_words(row, 'gain')} bits a row"
        yield sentence(beyond(row["confounds"], row["p"], size), is_useless=not row["p"] < LEVEL)


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores of the confounds alone and with the probe, if there are any."""
    rows = run.rows("left.csv")
    if rows is None:
        return
    row, is_rank = rows.iloc[0], rows["metric"].iloc[0] == "spearman"
    yield scores_part(
        row["metric"],
        "of the confounds, alone and with activations",
        {
            "with activations": estimate(row, "joint_score"),
            f"{row['confounds']} alone": estimate(row, "known_score"),
        },
        {} if is_rank else {"gain with activations": estimate(row, "gain")},
        f"n = {row['n_test']:,} held-out rows in {row['n_groups']:,} groups. Confounds: "
        f"{row['known']}. Gain: of the log probability of the label.",
        0.0 if is_rank else 0.5,
        "bits a row",
    )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section of a run that has confounds."""
    rows = run.rows("left.csv")
    if rows is None:
        return
    row, has_strata = rows.iloc[0], bool(rows["n_matched"].notna().all())
    has_categories, model = bool(row["categories"]), COLUMNS[row["metric"]]
    text = NUMBERS if row["metric"] == "spearman" else CLASSES
    columns: Columns = {**model, **(STRATA if has_strata else {})}
    table = written_table("Table of the probe beyond the confounds", columns, rows)
    counts = {"rows": row["n_matched"], "of": row["n_test"], "effective": row["n_effective"]}
    of_categories = [MATCHED.format(**counts)] * has_strata + [WITHIN] * has_categories
    notes = [text.format(known=row["known"], terms=TERMS), " ".join(of_categories), CAUSAL]
    section: list[Item] = [Paragraph(within_sentence(row))] * has_categories
    section += [table, *(Paragraph(text, "note") for text in notes if text)]
    yield PageSection(f"Beyond {row['confounds']}", section)


def within_sentence(row: Mapping[str, Any] | pd.Series) -> str:
    """Return the score within strata of all categories.

    >>> row = {"categories": "source", "metric": "auroc", "within": 0.71, "p_within": 0.002}
    >>> within_sentence(row)
    'Within each value of source, the AUROC of the selected probe is 0.71 (p = 0.002).'
    """
    names = row["categories"]
    if np.isnan(row["within"]):
        return f"No value of {names} has several labels: the two cannot be separated here."
    if np.isnan(row["p_within"]):
        return f"There are too few groups to test the probe within each value of {names}."
    score = f"{metric_name(row['metric'])} of the selected probe is {fixed(row['within'], 2)}"
    return f"Within each value of {names}, the {score} ({p_words(row['p_within'])})."


def beyond(confounds: str, p: float, size: str) -> str:
    """Return the conclusion from a p-value, with the scores.

    >>> beyond("length and source", 0.31, "AUROC 0.61 instead of 0.60")
    'Beyond length and source, activations are not shown to predict the label: AUROC 0.61 instead \
of 0.60, p = 0.31.'
    """
    if np.isnan(p):
        return f"There are too few groups to test what activations add to {confounds}."
    shown = "predict" if p < LEVEL else "are not shown to predict"
    return f"Beyond {confounds}, activations {shown} the label: {size}, {p_words(p)}."
