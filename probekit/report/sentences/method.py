"""How a run was measured, in sentences: size, choice of the site, intervals, p-values."""

from __future__ import annotations

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.sentences.answer import comparison_rows
from probekit.report.sentences.choice import NESTED_LINE, nested_sentence
from probekit.report.sentences.warnings import grid_name
from probekit.report.sentences.words import unit_of
from probekit.results.differences import RivalDifferences
from probekit.results.metrics import metric_name
from probekit.results.record import RunRecord
from probekit.results.selection import (
    chosen_row,
    is_nested,
    main_metrics,
    ranked_rows,
    reported_row,
    site_with_head,
)
from probekit.results.table import only

INTERVALS = (
    "Scores are those on held-out rows. Intervals are 95 % intervals over groups: they apply to "
    "these fitted probes on new groups of rows, not to retraining."
)
P_VALUE = (
    "The p-value of a probe is that of a one-sided test of association between predictions and "
    "labels, by a t statistic over groups{null}. The p-values of single sites are "
    "adjusted for the maximum over all sites and kinds of probe; that of a nested choice is not, "
    "because it did not use the test rows."
)
DIFFERENCES = (
    "Differences are paired, on the same test rows. Their two-sided p-values come from exchanging "
    "the signs of whole groups or, for a metric that depends on a label of few groups, from "
    "Welch's t by class. An interval excludes 0 exactly if its p < 0.05. Stars are adjusted for "
    "the comparisons of the first table, which were fixed before the test rows were used."
    "{majority} The difference from the control task is the selectivity."
)
OF_MAJORITY = (
    " The p-value of the majority class is one-sided: that of the association between the probe's "
    "predictions and the labels; whether the probe is better is decided by the interval of the "
    "difference (t over groups), and whether it is worse than chance by the interval of its score."
)
ONE_SITE = (
    "{name} was selected in each outer fold by cross-validation on its own training rows. To pick "
    "the highest row of the table of sites would be a selection on test rows."
)
NOT_USE = (
    "A probe shows what can be decoded at a site, not that the model uses it; to test that, erase, "
    "ablate or steer there and measure the effect on the model."
)
COMPRESSION = (
    "Compression is the length of a {reference} divided by the description length of the training "
    "labels given the activations."
)


def size_words(table: pd.DataFrame) -> str:
    """Return the number of test rows and groups of the reported score; "" without a test row.

    For runs that chose no site, these are the largest numbers of rows and groups of a site.
    """
    chosen = reported_row(table)
    rows = only(table, target="task", split="test")
    rows = rows[rows["metric"].isin(main_metrics(table))]
    if chosen is not None:
        task = comparison_rows(chosen, table).get("task")
        rows = rows[:0] if task is None else task.to_frame().T
    if rows.empty:
        return ""
    n_rows, n_groups = rows["n_test"].max(), rows["n_groups"].max()
    return f"n = {n_rows:,.0f} test {unit_of(rows)} in {n_groups:,.0f} groups"


def method(table: pd.DataFrame, record: RunRecord, comparisons: RivalDifferences) -> list[str]:
    """Return the paragraphs on choice, intervals and tests, for the end of the page."""
    nulls = [str(name) for name in table["null"] if not pd.isna(name) and name]
    has_p = bool(table["metric"].isin(["p_value", "p_best"]).any())
    has_compression = bool(table["metric"].eq("compression").any())
    reference = "uniform code" if record.code_reference == "uniform" else _LABEL_CODE
    paragraphs = {
        _choice(table): True,
        INTERVALS: True,
        P_VALUE.format(null=f" ({nulls[0]})" if nulls else ""): has_p,
        DIFFERENCES.format(majority=OF_MAJORITY * has_p): bool(comparisons.named),
        COMPRESSION.format(reference=reference): has_compression,
        NOT_USE: True,
    }
    return [text for text, holds in paragraphs.items() if text and holds]


_LABEL_CODE = "code of the label frequencies"


def _choice(table: pd.DataFrame) -> str:
    chosen = chosen_row(table)
    if chosen is None:
        return "No site was chosen: the results contain no cross-validated scores of the task."
    name = grid_name(chosen["probe"])
    if is_nested(table):
        return (
            f"{nested_sentence(table)} {NESTED_LINE.format(kind='')} {ONE_SITE.format(name=name)}"
        )
    several = len(ranked_rows(table)) > 1
    selected = f"{name} and the site were" if several else f"{name} was"
    return (
        f"{selected} selected by cross-validation on training rows. "
        f"{site_with_head(chosen['site'], chosen['head'])} has the best cross-validated "
        f"{metric_name(chosen['metric'])}, {format_number(chosen['value'])}."
    )
