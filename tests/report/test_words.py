import math

import pandas as pd
import pytest

from probekit.report.words import answer, caption, description, warnings


def set_value(table, value, **where):
    rows = pd.Series(True, table.index)
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows & (table["split"] == "test") & (table["metric"] == "accuracy"), "value"] = value


def test_the_answer_is_the_numbers_in_words(table):
    assert answer(table) == (
        "Best at block 2 (blocks.2.hook_resid_post), chosen on validation: accuracy 0.94 "
        "[0.92, 0.96] on 1,039 held-out rows of 15 groups. Beside it: control task 0.55; "
        "the words alone 0.71; a random network 0.74; the majority label 0.50."
    )


def test_the_answer_leaves_out_what_was_not_measured(table):
    assert answer(table[table["target"] == "task"]).endswith("It was measured without company.")
    assert answer(table[table["split"] == "test"]).startswith("No layer was chosen")


def test_the_answer_names_the_ends_by_their_names(table):
    table.loc[(table["split"] == "validation") & table["site"].str.startswith("ln_"), "value"] = 1
    assert answer(table).startswith("Best at the final norm (ln_final.hook_normalized")


def test_a_clean_result_has_no_warning(table):
    assert warnings(table) == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"target": "control"}, "The control task reaches 0.921 there"),
        ({"target": "random_weights"}, "random weights reaches 0.921 there"),
        ({"target": "word_identity"}, "Knowing the word alone gives 0.921"),
        (
            {"target": "task", "site": "blocks.0.hook_resid_pre"},
            "flat from the embedding on: 0.921",
        ),
    ],
)
def test_a_rival_inside_the_interval_is_told_and_one_below_it_is_not(table, where, said):
    set_value(table, 0.921, **where)
    (warning,) = warnings(table)
    assert said in warning
    set_value(table, 0.92, **where)
    assert warnings(table) == []


def test_unconverged_fits_are_counted_once_and_named(table):
    stopped = table["site"].eq("blocks.1.hook_resid_post") & table["target"].eq("task")
    table.loc[stopped, "converged"] = False
    (warning,) = warnings(table)
    assert warning.startswith("1 of 18 fits stopped before they converged, at blocks.1.hook_resid_")


def test_few_groups_are_told(table):
    assert "only 9 groups" in warnings(table.assign(n_groups=9))[0]
    assert warnings(table.assign(n_groups=10)) == []


def test_the_caption_says_rows_groups_intervals_and_seed(table):
    text = caption(table)
    for fact in ("1,039 held-out rows", "15 groups", "3,000 rows", "seed 0", "95 % percentile"):
        assert fact in text
    assert "resid_pre" not in text
    later = table.assign(
        site=table["site"].replace("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre")
    )
    assert "resid_pre of a block is resid_post of the block before it" in caption(later)
    assert "Bands" not in caption(table.assign(ci_low=math.nan, ci_high=math.nan))


def test_the_description_holds_every_number_of_the_figure(table):
    text = description(table)
    assert "task: embed 0.712, 0 0.801, 1 0.884, 2 0.941, 3 0.922, final norm 0.915;" in text
    assert "majority: 0.500; word identity: 0.710." in text
