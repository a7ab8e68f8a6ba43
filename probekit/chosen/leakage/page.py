"""Scores without the cues on a page."""

from collections.abc import Iterator

from probekit.chosen.page import TESTED, Columns, Shown, written_table
from probekit.report.elements.page import PageSection, Paragraph

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
    "without others": "without_others",
    **TESTED,
}


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the scores with and without cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is not None:
        table = written_table("Table of scores without cues", COLUMNS, rows)
        note = Paragraph(NOTE.format(**rows.iloc[0]), "note")
        yield PageSection("Scores without the cues", [table, note])
