import pandas as pd
import pytest

from probekit.report.causes.cause_answer import MOST_ROWS, verdict_table
from probekit.report.causes.edits import directions_in
from probekit.results.causes.tables import CauseTables
from tests.results.causes.made_causes import (
    make_verdicts,
    one_head,
    residual,
    verdict_rows,
    write_causes,
)


@pytest.fixture
def table_of(tmp_path):
    """A function that returns the table of verdicts in rows."""

    def of(rows):
        tables = CauseTables.open(write_causes(tmp_path, verdicts=pd.DataFrame(rows)))
        return verdict_table(directions_in(tables))

    return of


def test_a_row_has_answer_effect_interval_and_adjusted_p(table_of):
    table = table_of(verdict_rows(residual(3), "yes undecided no"))
    assert table.columns == [
        ("detects", "AUROC − 0.5"),
        ("steers", "logits per SD"),
        ("silences", "share of the effect"),
        ("swap", "recovery"),
    ]
    (row,) = table.rows
    assert (row["site"], row["name"]) == (
        "Residual stream after block 3",
        "blocks.3.hook_resid_post",
    )
    assert [(one["answer"], one["effect"], one["p"]) for one in row["cells"]] == [
        ("yes", "0.42 [0.40, 0.44]", "p = 0.003"),
        ("undecided", "0.10 [−0.10, 0.30]", "p = 1.00"),
        ("no", "0.010 [−0.010, 0.030]", "p = 1.00"),
        ("", "0.10 [−0.10, 0.30]", "p = 1.00"),
    ]
    assert row["summary"] == "Sentence on blocks.3.hook_resid_post."


def test_methods_and_tokens_are_named_if_they_differ(table_of):
    rows = verdict_rows(residual(3)) + verdict_rows(residual(3), along="leace", at="all")
    assert [row["details"] for row in table_of(rows).rows] == [
        "probe, probed token",
        "LEACE, all tokens",
    ]


def test_flags_of_a_direction_are_listed(table_of):
    rows = verdict_rows(one_head(2, 1), "yes yes yes", exceeds_whole=True, kernel_share=0.8)
    (row,) = table_of(rows).rows
    assert row["site"] == "Head 1 of block 2"
    assert list(row["remarks"]) == [
        "Moves more than its whole vector: possible artefact.",
        "80 % is in the kernel of the output matrix.",
        "25 % of texts move the wrong way.",
    ]


def test_a_direction_that_steers_away_from_its_class_is_flagged(table_of):
    rows = verdict_rows(residual(0), "yes yes no", effect=-0.4, low=-0.5, high=-0.3)
    assert "Steers away from the class that it detects." in table_of(rows).rows[0]["remarks"]


def test_an_undefined_effect_has_its_reason(table_of):
    rows = verdict_rows(
        residual(0), "undecided undecided undecided", reason="too few groups",
        **dict.fromkeys(("effect", "low", "high", "p", "p_holm")),
    )  # fmt: skip
    cell = table_of(rows).rows[0]["cells"][0]
    assert (cell["effect"], cell["p"], cell["remark"]) == ("–", "", "too few groups")


def test_an_undecided_effect_above_0_names_the_range_of_permuted_labels(table_of):
    numbers = {"effect": 0.13, "low": 0.12, "high": 0.14, "null_low": -0.2, "null_high": 0.21}
    rows = verdict_rows(residual(0), "yes undecided undecided", reason="p is above 0.05", **numbers)
    remarks = [one["remark"] for one in table_of(rows).rows[0]["cells"][:2]]
    band = "95 % of the directions on permuted labels have an effect of −0.20 to 0.21"
    assert remarks[1] == f"p is above 0.05; {band}"
    assert band not in remarks[0]


def test_of_many_directions_those_that_are_used_come_first(table_of):
    table = table_of(make_verdicts(48, used=(40, 41)).to_dict("records"))
    assert len(table.rows) == MOST_ROWS
    assert len(table.folded) == 48 - MOST_ROWS
    assert [row["site"][-8:] for row in table.rows[:2]] == ["block 40", "block 41"]


def test_a_question_without_a_row_has_an_empty_cell(table_of):
    rows = verdict_rows(residual(0)) + verdict_rows(residual(1))[:3]
    assert [row["cells"][-1] is None for row in table_of(rows).rows] == [False, True]
