"""The thresholds of a monitor on a page."""

from collections.abc import Iterator, Sequence

import pandas as pd

from probekit.amounts import percent
from probekit.chosen.page import TEST_RATES, Columns, Shown, estimate_words, sentence, written_table
from probekit.report.elements.page import PageSection, Paragraph
from probekit.report.elements.texts import class_label
from probekit.report.sentences.answer import score_texts, unit_of
from probekit.report.sentences.caveats import Caveat
from probekit.results.judging import ACHIEVED
from probekit.results.verdict import Verdict

NOTE = (
    "With 95 % confidence, the false positive rate (FPR) on new negatives of the same kind is at "
    "most the upper bound, and therefore at most the requested rate. The thresholds are fixed on "
    "negatives that are not among the data; each group counts once. Test rows were not used for "
    "them, and their rates have 95 % intervals over groups. A test FPR above the bound means that "
    "the negatives of the test rows are of another kind."
)


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield the detection rate of the monitor at its first rate, and whether it is too loud."""
    rows = run.rows("monitor.csv")
    if rows is None or run.verdict.score is None:
        return
    row, label = rows.iloc[0], class_label(str(run.scores.rows["positive"].iloc[0]))
    unit, negatives = unit_of([run.verdict.score.probe]), run.rows("negatives.csv")
    detected, rate = (estimate_words(row, one, in_percent=True) for one in ("tpr", "test_fpr"))
    is_loud = row["test_fpr_low"] > row["fpr_bound"]
    # Alarms at random would detect as many as there are false positives.
    is_useless = is_loud or min(row["tpr"], row["tpr_low"]) <= row["fpr"]
    text = (
        f"The monitor detects {'only ' if is_useless > is_loud else ''}{detected} of the "
        f"{row['n_positive']:,.0f} test {unit} labelled {label}, at a threshold for at "
        f"most {100 * row['fpr']:g} % false positives (95 % confidence, "
        f"{row['n_negatives']:,.0f} separate negatives)"
    )
    others = f"{row['n_test_negative']:,.0f} other test {unit}"
    if is_loud:
        text += f", but also raises an alarm on {rate} of the {others}"
    yield sentence(f"{text}.", is_useless=is_useless)
    share = 0.0 if negatives is None else (negatives["score"] > 0).mean()
    if share > row["fpr"] and len(run.record.data.training_labels) == 2:
        text = f"{percent(share)} of these negatives are predicted as {label}"
        text += f"; {rate} of the {others} exceed this threshold" * (not is_loud)
        yield sentence(f"{text}.")


def doubts(v: Verdict) -> Iterator[Caveat]:
    """Yield a warning if the threshold of the metric raises too many alarms on test rows."""
    if v.false_positives is not None and v.score is not None:
        allowed = ACHIEVED[v.score.metric][1]
        (value, low, high, _), unit = score_texts((*v.false_positives, allowed), in_percent=True)
        # An undefined interval is written as "nan".
        interval = "" if low == "nan" else f" [{low}, {high}]"
        yield Caveat(
            "achieved-fpr",
            f"The false positive rate on the test rows is {value}{unit}{interval}, above the "
            f"{100 * allowed:g} % that the threshold allows on training rows: a threshold for "
            f"{100 * allowed:g} % on the test rows would detect fewer positive rows.",
        )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section of a run, if it has thresholds."""
    rows = run.rows("monitor.csv")
    if rows is not None:
        yield transferred_section(rows, ())


def transferred_section(
    rows: pd.DataFrame, places: Sequence[str] = ("train", "test")
) -> PageSection:
    """Return the thresholds of a monitor with their bounds and rates.

    Args:
        rows: rows of monitor.csv.
        places: columns that the table also shows, such as the training and test set.
    """
    counts: Columns = {"false positives": "false_positives", "upper bound": "fpr_bound"}
    own: Columns = {"requested FPR": "fpr", "threshold": "threshold", **counts}
    columns: Columns = {**dict(zip(places, places, strict=True)), **own, **TEST_RATES}
    found = zip(rows["false_positives"], rows["n_negatives"], rows["n_groups"], strict=True)
    texts = [f"{n:,} of {n_all:,} in {n_groups:,} groups" for n, n_all, n_groups in found]
    table = written_table("Table of thresholds", columns, rows.assign(false_positives=texts))
    return PageSection("Thresholds of the monitor", [table, Paragraph(NOTE, "note")])
