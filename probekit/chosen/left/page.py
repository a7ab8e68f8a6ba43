"""What the selected probe adds to the confounds, on a page."""

from collections.abc import Iterator

import numpy as np

from probekit.amounts import LEVEL
from probekit.chosen.page import Columns, Shown, sentence, written_table
from probekit.report.elements.page import PageSection, Paragraph
from probekit.report.sentences.answer import p_words

CLASSES = (
    "The label is modelled from these columns alone: {known}. A logistic probe is fitted to what "
    "their held-out log odds do not explain; a strong enough penalty switches it off. One-sided p: "
    "random signs of groups of what the probe adds times the residual of the label, both without "
    "the columns. Gain: bits of the probability of the true label, with its 95 % interval over "
    "groups. The two AUROCs have no interval of their difference, which would be too narrow near "
    "zero."
)
NUMBERS = (
    "Ranks of the label are modelled from these columns alone: {known}. A ridge regression on the "
    "activations is fitted to the rest. One-sided p: random signs of groups of what it adds times "
    "this rest, both without the columns. The partial rank correlation of the selected probe is a "
    "description without p: it removes straight lines of ranks only."
)
MATCHED = (
    " Matched: AUROC of the selected probe where each label weighs equally in each combination of "
    "categories, so that these alone have 0.5; {rows:,.0f} of {of:,} rows have a weight, and count "
    "as {effective:,.0f} of equal weight."
)
STRATA: Columns = {"matched AUROC of the probe": "matched_score"}
CAUSAL = (
    " Name only columns that neither the label nor the activations influence: otherwise too "
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
        (confounds,), (p,) = rows["confounds"], rows["p"]
        yield sentence(beyond(confounds, p), is_useless=not p < LEVEL)


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section of a run that has confounds."""
    rows = run.rows("left.csv")
    if rows is None:
        return
    row, has_strata = rows.iloc[0], rows["n_matched"].notna().all()
    text = NUMBERS if row["metric"] == "spearman" else CLASSES
    columns: Columns = {**COLUMNS[row["metric"]], **(STRATA if has_strata else {})}
    table = written_table("Table of the probe beyond the confounds", columns, rows)
    text += (MATCHED if has_strata else "") + CAUSAL
    counts = {"rows": row["n_matched"], "of": row["n_test"], "effective": row["n_effective"]}
    note = Paragraph(text.format(known=row["known"], **counts), "note")
    yield PageSection(f"Beyond {row['confounds']}", [table, note])


def beyond(confounds: str, p: float) -> str:
    """Return the conclusion from a p-value.

    >>> beyond("length and source", 0.31)
    'Beyond length and source, activations are not shown to predict the label (p = 0.31).'
    """
    if np.isnan(p):
        return f"There are too few groups to test what activations add to {confounds}."
    shown = "predict" if p < LEVEL else "are not shown to predict"
    return f"Beyond {confounds}, activations {shown} the label ({p_words(p)})."
