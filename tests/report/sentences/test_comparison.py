"""The summary of a comparison: which run is better, and when that cannot be concluded."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.report.sentences.comparisons import (
    comparison_answer,
    comparison_question,
    comparison_warnings,
    result_words,
    settings_words,
)
from probekit.results.comparison import both_places
from tests.report.pictures import make_comparison


def changed(comparison, *, what="chosen", pairing="paired", metric="accuracy", **columns):
    """The comparison with other values in the rows of one kind."""
    rows = comparison.rows.copy()
    for name, value in columns.items():
        rows.loc[rows["what"] == what, name] = value
    return replace(comparison, rows=rows, pairing=pairing, metric=metric)


MADE = replace(make_comparison("x"), b="y")  # x minus y: 0.8 and 0.6, not significant
BETTER = changed(MADE, holds=True, p_adjusted=0.0004)
UNPAIRED = changed(MADE, pairing="unpaired", holds=True)
BASELINE = {"what": "baseline", "pairing": "unpaired"}
LARGE = changed(UNPAIRED, **BASELINE, holds=True, difference=0.3)
FOLDS = changed(MADE, site_a="chosen", site_b="chosen", probe_a="chosen")
COMPARISONS = {
    "a difference that is not significant": MADE,
    "the better run is named": BETTER,
    "a lower score is better": changed(BETTER, metric="brier"),
    "unpaired runs are not called better": changed(UNPAIRED, pairing="unpaired", difference=-0.2),
    "too few groups": changed(
        MADE, **dict.fromkeys(("p_adjusted", "adjusted_low", "ci_low"), np.nan)
    ),
    "calibration errors are not tested": replace(
        MADE,
        rows=MADE.rows.assign(
            **dict.fromkeys(("p_adjusted", "adjusted_low", "ci_low", "ci_high"), np.nan),
            metric="ece",
            holds=False,
        ),
        metric="ece",
    ),
    "runs without a selected probe": replace(MADE, rows=MADE.rows[MADE.rows["what"] != "chosen"]),
    "equal scores are not called a test result": changed(
        MADE, difference=0.0, ci_low=0.0, ci_high=0.0, holds=False
    ),
    "a baseline that differs as much is a warning": LARGE,
    "a baseline that differs less is none": changed(LARGE, **BASELINE, difference=0.1),
    "a baseline that differs the other way is none": changed(LARGE, **BASELINE, difference=-0.3),
    "a baseline without a significant difference is none": changed(LARGE, **BASELINE, holds=False),
    "a baseline of paired runs is none": replace(LARGE, pairing="paired"),
    "choices of the folds are no single site": changed(FOLDS, position_a="mean"),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_question_answer_and_warnings_are_those_that_are_stored(snapshot, name):
    made = COMPARISONS[name]
    chosen = [row for _, row in made.rows.iterrows() if row["what"] == "chosen"]
    places = [f"{both_places(row)}: {result_words(row)}" for row in chosen]
    lines = [comparison_question(made), comparison_answer(made), *comparison_warnings(made)]
    assert "\n".join([*lines, *places]) == snapshot


def test_settings_that_differ_are_a_sentence(snapshot):
    settings = {"tokens.position.at": ("mean", "last"), "digest of activations (task)": ("1", "2")}
    for given in (settings, {f"key {n}": ("a", "b") for n in range(5)}, {}):
        assert settings_words(("x", "y"), given) == snapshot
