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


@pytest.fixture
def comparison():
    """Run x minus run y: 0.8 and 0.6, not significant."""
    return replace(make_comparison("x"), b="y")


def changed(comparison, *, what="chosen", pairing="paired", metric="accuracy", **columns):
    """The comparison with other values in the rows of one kind."""
    rows = comparison.rows.copy()
    for name, value in columns.items():
        rows.loc[rows["what"] == what, name] = value
    return replace(comparison, rows=rows, pairing=pairing, metric=metric)


def test_a_difference_that_is_not_significant(comparison):
    assert comparison_question(comparison) == "Is x better than y?"
    assert comparison_answer(comparison) == (
        "No significant difference: accuracy 0.80 for x, 0.60 for y, difference "
        "+0.20 [−0.10, 0.50], adjusted p = 0.20, on the same 100 test rows in 10 groups. At 2 of 6 "
        "single sites the difference is significant."
    )


def test_the_better_run_is_named(comparison):
    significant = changed(comparison, holds=True, p_adjusted=0.0004)
    assert comparison_answer(significant).startswith("x is better: accuracy 0.80 for x, 0.60 for y")
    assert "p < 0.001" in comparison_answer(significant)
    lower = changed(significant, metric="brier")
    assert comparison_answer(lower).startswith("y is better: Brier score 0.80 for x, 0.60 for y")


def test_unpaired_runs_are_not_called_better(comparison):
    unpaired = changed(comparison, pairing="unpaired", holds=True, difference=-0.2)
    assert comparison_question(unpaired) == "Does x score higher than y?"
    answer = comparison_answer(unpaired)
    assert answer.startswith("y scores higher: ")
    assert "on different rows (100 test rows in 10 groups; 90 test rows in 9 groups)" in answer


def test_too_few_groups(comparison):
    unknown = dict.fromkeys(("p_adjusted", "adjusted_low", "ci_low"), np.nan)
    answer = comparison_answer(changed(comparison, **unknown))
    assert answer.startswith("Too few groups to decide: accuracy 0.80 for x")
    assert "difference +0.200, no p" in answer


def test_a_difference_without_a_test_is_not_called_insignificant(comparison):
    row = changed(comparison, p_adjusted=np.nan).rows.iloc[-1]
    assert result_words(row) == "too few groups"


def test_runs_without_a_selected_probe(comparison):
    bare = replace(comparison, rows=comparison.rows[comparison.rows["what"] != "chosen"])
    assert "no scores that can be compared" in comparison_answer(bare)


def test_a_baseline_that_differs_as_much_is_a_warning(comparison):
    unpaired = changed(comparison, pairing="unpaired", holds=True)
    large = changed(unpaired, what="baseline", pairing="unpaired", holds=True, difference=0.3)
    (warning,) = comparison_warnings(large)
    assert "majority (+0.30 [" in warning
    for changes in ({"difference": 0.1}, {"difference": -0.3}, {"holds": False}):
        assert not comparison_warnings(
            changed(large, what="baseline", pairing="unpaired", **changes)
        )
    assert not comparison_warnings(replace(large, pairing="paired"))


def test_choices_of_the_folds_are_no_single_site(comparison):
    nested = changed(comparison, site_a="chosen", site_b="chosen", probe_a="chosen")
    nested = changed(nested, position_a="mean", position_b="last")
    (row,) = [row for _, row in nested.rows.iterrows() if row["what"] == "chosen"]
    assert both_places(row) == "fold choice"
    answer = comparison_answer(nested)
    assert answer.startswith("No significant difference at the sites that the folds chose: acc")


def test_settings_that_differ_are_a_sentence():
    settings = {"tokens.position.at": ("mean", "last"), "digest of activations (task)": ("1", "2")}
    assert settings_words(("x", "y"), settings) == (
        "Settings that differ: tokens.position.at is mean in x and last in y."
    )
    many = {f"key {n}": ("a", "b") for n in range(5)}
    assert settings_words(("x", "y"), many) == "5 settings differ; see below."
    assert settings_words(("x", "y"), {}) == ""


def test_equal_scores_are_not_called_a_test_result(comparison):
    equal = changed(comparison, difference=0.0, ci_low=0.0, ci_high=0.0, holds=False)
    row = next(row for _, row in equal.rows.iterrows() if row["what"] == "chosen")
    assert result_words(row) == "equal"
