"""What the selected probe adds to the confounds, on a page."""

from collections.abc import Iterator

import numpy as np

from probekit.amounts import LEVEL, format_p
from probekit.chosen.page import Columns, Shown, written_table
from probekit.report.elements.page import PageSection, Paragraph

CLASSES = (
    "The label is modelled from these columns alone: {known}. A probe of the activations is fitted "
    "to what their held-out log odds do not explain; a strong enough penalty switches it off. p: "
    "random signs of groups of what the probe adds times the residual of the label, both without "
    "the columns. Gain: bits of the probability of the true label, with its 95 % interval over "
    "groups. The two AUROCs have no interval of their difference, which would be too narrow near "
    "zero."
)
NUMBERS = (
    "Ranks of the label are modelled from these columns alone: {known}. A probe of the activations "
    "is fitted to the rest. p: random signs of groups of what the probe adds times this rest, both "
    "without the columns. The partial rank correlation of the selected probe is a description "
    "without p: it removes straight lines of ranks only."
)
CAUSAL = (
    " What is left is meaningful only for columns that neither the label nor the activations "
    "influence."
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


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section of a run with confounds."""
    rows = run.rows("left.csv")
    if rows is None:
        return
    row = rows.iloc[0]
    text = NUMBERS if row["metric"] == "spearman" else CLASSES
    table = written_table("Table of what is left", COLUMNS[row["metric"]], rows)
    note = Paragraph(text.format(known=row["known"]) + CAUSAL, "note")
    yield PageSection("Beyond the confounds", [Paragraph(sentence(run, row["p"])), table, note])


def sentence(run: Shown, p: float) -> str:
    """Return what the p-value shows."""
    names = "the confounds"
    if np.isnan(p):
        return f"There are too few groups to test what {run.probe} adds to {names}."
    if p < LEVEL:
        return f"At {run.probe}, activations add to {names} (p = {format_p(p)})."
    return f"It is not shown that {run.probe} reads more than {names} (p = {format_p(p)})."
