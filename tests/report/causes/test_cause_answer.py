"""The answer of interventions in one sentence, and the table of verdicts."""

import pandas as pd
import pytest

from probekit.report.causes.findings import MOST_ROWS, cause_answer, directions_in, verdict_tables
from probekit.results.causes import CauseTables
from tests.results.causes.made_causes import (
    attention,
    every_table,
    make_effects,
    make_facts,
    make_verdicts,
    one_head,
    residual,
    verdict_rows,
    write_causes,
)

SIZE = "; n = 432 texts in 30 groups."


@pytest.fixture
def answer_of(tmp_path):
    """A function that returns the answer for tables."""
    return lambda **tables: cause_answer(CauseTables.open(write_causes(tmp_path, **tables)))


def verdicts(*rows):
    return pd.DataFrame([one for group in rows for one in group])


EFFECTS = make_effects()
ANSWERS = {
    "not used, with the patch at the site": (
        every_table(),
        "Decodable but not used at the last token: all 6 directions detect the label, none steers "
        "or silences; patching the residual stream after block 0 recovers 0.028 [−0.022, 0.078] of "
        "the counterfactual's effect",
    ),
    "used, with its effects": (
        every_table(verdicts=make_verdicts(used=(3,))),
        "Decodable and used at the last token: the probe's direction in the residual stream after "
        "block 3 moves the answer by 0.84 [0.82, 0.86] logits per standard deviation, and its "
        "erasure removes 62 % [60, 64] of the difference between labels (both p = 0.008, best of 6 "
        "sites); patching the whole vector there recovers 0.44 [0.39, 0.49] of the "
        "counterfactual's effect",
    ),
    "patches: the block of the transition, and the strongest other site": (
        {"effects": EFFECTS},
        "Patching the residual stream at the last token recovers at least half of the "
        "counterfactual's effect from block 4 on (0.69 [0.64, 0.74]); largest effect of the other "
        "sites: head 2 of block 3 (recovery −0.40 [−0.45, −0.35], p = 0.002, best of 84)",
    ),
    "patches of each token: the tokens by block": (
        {"effects": EFFECTS[EFFECTS["at"] == "each"]},
        "Patching the residual stream recovers most at position 2 (␣doctors) from block 0 on (0.97 "
        "[0.92, 1.02]), at position 6 (␣bus) from block 4 on (0.69 [0.64, 0.74])",
    ),
    "ablations: the unit of the measure": (
        {"effects": EFFECTS[EFFECTS["do"] == "ablate"]},
        "Largest effect of mean ablation at the last token: attn_out of block 5 (change of logit "
        "difference 0.40 [0.20, 0.60] logits, p = 0.002, best of 6)",
    ),
}


@pytest.mark.parametrize(("tables", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer(answer_of, tables, answer):
    assert answer_of(**tables) == answer + SIZE


def test_a_significant_but_small_use_is_named_so(answer_of):
    rows = make_verdicts(used=(3,))
    small = rows["question"].isin(["steers", "silences", "swap"])
    rows.loc[small, ["effect", "low", "high"]] *= 0.05
    assert answer_of(verdicts=rows).startswith("Decodable but hardly used at the last token: ")


def test_a_verdict_that_the_number_of_sites_explains_is_not_enough(answer_of):
    rows = make_verdicts(used=(3,))
    answer = answer_of(verdicts=rows.assign(p_best=0.3))
    assert answer.startswith("Decodable at the last token, use undecided: 6 of 6 directions")
    assert "none to steer or silence, because no use is significant as the best of 6;" in answer


def test_an_undecided_use_has_its_reason(answer_of):
    rows = [verdict_rows(residual(n), "yes undecided no", reason="few draws") for n in range(3)]
    assert "steers undecided, silences no, because few draws;" in answer_of(
        verdicts=verdicts(rows[0])
    )
    rows.append(verdict_rows(residual(3), "yes undecided no", reason="few groups"))
    assert "none to steer or silence, mostly because few draws;" in answer_of(
        verdicts=verdicts(*rows)
    )


def test_the_direction_with_both_uses_precedes_the_one_with_one(answer_of):
    rows = verdicts(
        verdict_rows(residual(1), "yes yes undecided"), verdict_rows(one_head(2, 3), "yes yes yes")
    )
    assert "the probe's direction in head 3 of block 2 moves the answer" in answer_of(verdicts=rows)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("yes no no", "Decodable but not used at the last token: the probe's direction in the "
         "residual stream after block 3 detects the label but neither steers nor silences"),
        ("no no no", "Neither decodable nor used at the last token: the probe's direction in the "
         "residual stream after block 3 neither detects, steers nor silences"),
        ("yes undecided no", "Decodable at the last token, use undecided: the probe's direction in "
         "the residual stream after block 3: detects yes, steers undecided, silences no"),
        ("undecided no no", "Undecided at the last token: the probe's direction in the residual "
         "stream after block 3: detects undecided, steers no, silences no"),
        ("no yes no", "Used at the last token: the probe's direction in the residual stream after "
         "block 3 moves the answer by 0.84 [0.82, 0.86] logits per standard deviation (p = 0.008)"),
    ],
)  # fmt: skip
def test_one_direction(answer_of, answers, expected):
    assert answer_of(verdicts=verdicts(verdict_rows(residual(3), answers))) == expected + SIZE


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_undefined_effects_have_no_answer(answer_of, value):
    rows = make_effects(2).assign(effect=value)
    assert answer_of(effects=rows) == f"No intervention has a defined effect{SIZE}"
    rows = verdicts(verdict_rows(residual(3), "undecided undecided undecided", effect=float("nan")))
    assert answer_of(verdicts=rows).startswith("Undecided at the last token")


def test_without_a_patch_at_the_site_the_strongest_one_is_named(answer_of):
    rows = verdicts(verdict_rows(attention(0), along="leace", at="all"))
    answer = answer_of(verdicts=rows, effects=make_effects())
    assert answer.startswith(
        "Decodable but not used at all tokens: the LEACE direction in attn_out"
    )
    assert "recovers at least half of the counterfactual's effect from block 4 on" in answer


def test_the_probed_position_is_in_words(tmp_path):
    facts = make_facts(position="word:last-1")
    tables = CauseTables.open(write_causes(tmp_path, facts, verdicts=make_verdicts()))
    assert "not used at the 1 token before the word" not in cause_answer(tables)
    assert "not used 1 token before the word" in cause_answer(tables)


@pytest.fixture
def tables_of(tmp_path):
    """A function that returns the tables of verdicts in rows, with the verdicts in words."""

    def of(rows):
        tables = CauseTables.open(write_causes(tmp_path, verdicts=pd.DataFrame(rows)))
        return verdict_tables(directions_in(tables))

    return of


@pytest.fixture
def rows_of(tables_of):
    """A function that returns the rows of the first of `tables_of`."""
    return lambda rows: tables_of(rows)[0][0].rows


def texts(cell):
    """Answer, effect, p and remark of a cell."""
    return (cell.lead, cell.text, *(text for text, _ in cell.small))


def remarks(row):
    return [text for text, css in row[0].small if css == "remark"]


def test_a_row_has_answer_effect_interval_and_adjusted_p(tables_of):
    ((table, words),) = tables_of(verdict_rows(residual(3), "yes undecided no"))
    assert [(column.name, column.unit) for column in table.columns[1:]] == [
        ("detects", "AUROC − 0.5"),
        ("steers", "logits per SD"),
        ("silences", "share of the effect"),
        ("swap", "recovery"),
    ]
    ((place, *cells),) = table.rows
    assert (place.text, place.hint) == ("Residual stream after block 3", "blocks.3.hook_resid_post")
    assert [texts(cell)[:3] for cell in cells] == [
        ("yes", "0.42 [0.40, 0.44]", "p = 0.003"),
        ("undecided", "0.10 [−0.10, 0.30]", "p = 1.00"),
        ("no", "0.010 [−0.010, 0.030]", "p = 1.00"),
        ("", "0.10 [−0.10, 0.30]", "p = 1.00"),
    ]
    assert [summary for _, summary in words.rows] == ["Sentence on blocks.3.hook_resid_post."]


def test_methods_and_tokens_are_named_if_they_differ(rows_of):
    rows = verdict_rows(residual(3)) + verdict_rows(residual(3), along="leace", at="all")
    assert [row[0].small[0][0] for row in rows_of(rows)] == [
        "probe, probed token",
        "LEACE, all tokens",
    ]


def test_flags_of_a_direction_are_listed(rows_of):
    rows = verdict_rows(one_head(2, 1), "yes yes yes", exceeds_whole=True, kernel_share=0.8)
    (row,) = rows_of(rows)
    assert row[0].text == "Head 1 of block 2"
    assert remarks(row) == [
        "Moves more than its whole vector: possible artefact.",
        "80 % is in the kernel of the output matrix.",
        "25 % of texts move the wrong way.",
    ]
    rows = verdict_rows(residual(0), "yes yes no", effect=-0.4, low=-0.5, high=-0.3)
    assert "Steers away from the class that it detects." in remarks(rows_of(rows)[0])


def test_an_undefined_effect_has_its_reason(rows_of):
    rows = verdict_rows(
        residual(0), "undecided undecided undecided", reason="too few groups",
        **dict.fromkeys(("effect", "low", "high", "p", "p_holm")),
    )  # fmt: skip
    assert texts(rows_of(rows)[0][1])[1:] == ("–", "", "too few groups")


def test_an_undecided_effect_above_0_names_the_range_of_permuted_labels(rows_of):
    numbers = {"effect": 0.13, "low": 0.12, "high": 0.14, "null_low": -0.2, "null_high": 0.21}
    rows = verdict_rows(residual(0), "yes undecided undecided", reason="p is above 0.05", **numbers)
    detects, steers = (texts(cell)[-1] for cell in rows_of(rows)[0][1:3])
    band = "95 % of the directions on permuted labels have an effect of −0.20 to 0.21"
    assert steers == f"p is above 0.05; {band}"
    assert band not in detects


def test_of_many_directions_those_that_are_used_come_first(tables_of):
    (table, _), (others, _) = tables_of(make_verdicts(48, used=(40, 41)).to_dict("records"))
    assert len(table.rows) == MOST_ROWS
    assert len(others.rows) == 48 - MOST_ROWS
    assert [row[0].text[-8:] for row in table.rows[:2]] == ["block 40", "block 41"]


def test_a_question_without_a_row_has_an_empty_cell(rows_of):
    rows = verdict_rows(residual(0)) + verdict_rows(residual(1))[:3]
    assert [row[-1] == "–" for row in rows_of(rows)] == [False, True]
