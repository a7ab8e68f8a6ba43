"""Scores without the cues on a page."""

from collections.abc import Iterator

import numpy as np

from probekit.amounts import fixed, format_difference
from probekit.chosen.page import TESTED, Columns, Shown, estimate, sentence, written_table
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, PageSection, Paragraph
from probekit.report.pages.further_figures import scores_part
from probekit.report.sentences.answer import p_words

NOTE = (
    "The selected probe is not fitted again. It reads the test texts without their cues and, to "
    "compare, without as many random other words (mean of {n_draws} draws). {n_changed:,} of the "
    "{n_test:,} texts have cues; {n_left_out:,} more are left out, because a cue is at the probed "
    "token, the token would change, or there are too few other words. If the score is worse "
    "without the cues than without other words, it depends more on the cues."
)
COLUMNS: Columns = {
    "metric": "metric",
    "all words": "value",
    "without cues": "without_cues",
    "without other words": "without_others",
    **TESTED,
}


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield whether the probe depends on the cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is None:
        return
    row, metric = rows.iloc[0], METRICS[str(rows["metric"].iloc[0])]
    smallest, largest = sorted(metric.sign * x for x in estimate(row, "difference")[1:])
    opening = "No evidence that the probe depends on the cues ({})"
    if np.isnan(smallest):
        opening = "Too few groups to test whether the probe depends on the cues ({})"
    elif smallest > 0:
        opening = "The probe depends less on the cues ({}) than on other words"
    elif largest < 0:
        opening = "The probe depends on the cues ({})"
    test = "" if np.isnan(row["p"]) else f", {p_words(row['p'])}"
    yield sentence(
        f"{opening.format(row['cues'])}: {metric.title} is {fixed(row['value'], 3)}, "
        f"{fixed(row['without_cues'], 3)} without them and {fixed(row['without_others'], 3)} "
        "without as many other words, difference "
        f"{format_difference(*estimate(row, 'difference'))}{test}.",
        is_useless=largest < 0,
    )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the scores with and without cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is not None:
        table = written_table("Table of scores without cues", COLUMNS, rows)
        note = Paragraph(NOTE.format(**rows.iloc[0]), "note")
        yield PageSection("Scores without the cues", [table, note])


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores with and without cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is not None:
        row = rows.iloc[0]
        yield scores_part(
            row["metric"],
            "with and without the cues",
            {
                "cues dropped": estimate(row, "without_cues"),
                "others dropped": estimate(row, "without_others"),
                "nothing dropped": estimate(row, "value"),
            },
            {"cues minus others": estimate(row, "difference")},
            f"n = {row['n_test']:,} test texts. Others: as many random words as there are cues "
            f"({row['cues']}), mean of {row['n_draws']} draws.",
            np.nan if run.verdict.score is None else run.verdict.score.chance,
        )
