"""The one-line answer of a run: its outcome, and the numbers that belong to it."""

import numpy as np
import pandas as pd
import pytest

from probekit.report.sentences.verdict import score_text, verdict
from probekit.results.differences import RivalDifference, RivalDifferences
from tests.report.conftest import SITES, row

SITE = SITES[3]


def scores(p=None, **others):
    """The rows of a run with one site, with its p-value if there is one."""
    common = {"ci_low": 0.905, "ci_high": 0.968} | others
    rows = [row(SITE, "task", 0.93, split="validation"), row(SITE, "task", 0.94, **common)]
    if p is not None:
        rows += [row(SITE, "task", p, metric="p_best", chance=None)]
    return pd.DataFrame(rows)


def compared(p, key="word_identity", difference=0.3, low=0.2):
    rival = RivalDifference(key, "a name", 0.94 - difference, difference, low, low + 0.2, p)
    return RivalDifferences((rival,))


@pytest.mark.parametrize(
    ("p", "comparisons", "n_groups", "answer"),
    [
        (0.0002, None, 15, "Yes: 94 % [90, 97], chance 50 %, p < 0.001"),
        (0.0002, compared(0.01), 15, "Yes: 94 % [90, 97], chance 50 %, p < 0.001"),
        (0.31, compared(0.01), 15, "No evidence: 94 % [90, 97], chance 50 %, p = 0.31"),
        (
            0.0002,
            compared(0.4, difference=0.01, low=-0.1),
            15,
            "Decodable, but not significantly better than the words alone (93 %): "
            "94 % [90, 97], chance 50 %, p < 0.001",
        ),
        (
            0.0002,
            compared(0.001, "random_weights", difference=-0.02, low=-0.03),
            15,
            "Decodable, but worse than a random network (96 %): "
            "94 % [90, 97], chance 50 %, p < 0.001",
        ),
        # Other kinds at the same site, and neighbouring sites, do not change the answer.
        (0.0002, compared(0.4, "", low=-0.1), 15, "Yes: 94 % [90, 97], chance 50 %, p < 0.001"),
        (None, compared(np.nan), 5, "Too few groups to tell: 94 % [90, 97], chance 50 %"),
        # Differences were tested, so that only the arrangements of labels were too few.
        (None, compared(0.01), 15, "Too few groups to tell: 94 % [90, 97], chance 50 %"),
        (None, compared(np.nan), 15, "Not tested: 94 % [90, 97], chance 50 %"),
        (
            0.01,
            compared(np.nan, low=-0.1),
            5,
            "Too few groups to tell: 94 % [90, 97], chance 50 %, p = 0.010",
        ),
    ],
)
def test_the_outcome_follows_from_the_tests(p, comparisons, n_groups, answer):
    assert verdict(scores(p, n_groups=n_groups), comparisons) == answer


def test_the_p_value_is_that_of_the_reported_score():
    """The maximum over all sites for a single split; the choice's own for nested folds."""
    table = scores(0.0002)
    other = row(SITES[1], "task", 0.9, metric="p_best")
    assert "p < 0.001" in verdict(pd.concat([pd.DataFrame([other]), table]))
    nested = [
        row(SITE, "task", 0.9, split="validation", fold=0),
        row(SITE, "task", 0.99),
        row(SITE, "task", 0.0002, metric="p_best"),
        row("", "chosen", 0.8, ci_low=0.7, ci_high=0.9, probe="chosen"),
        row("", "chosen", 0.2, metric="p_value", probe="chosen"),
    ]
    answer = "No evidence: 80 % [70, 90], chance 50 %, p = 0.20"
    assert verdict(pd.DataFrame(nested)) == answer


def test_a_run_without_a_selection_has_no_answer():
    assert verdict(scores()[1:]).startswith("No answer: ")


def test_other_metrics_are_named():
    table = scores(0.0002, metric="auroc").assign(main_metric="auroc")
    table.loc[0, "metric"] = "auroc"
    assert verdict(table) == "Yes: AUROC 0.94 [0.91, 0.97], chance 0.50, p < 0.001"


def test_rounding_never_reaches_the_ends():
    assert score_text(0.999, "accuracy", 0.98, 1.0) == "99.9 % [98.0, 100.0]"
    assert score_text(1.0, "accuracy", 0.92, 1.0) == "100 % [92, 100]"
