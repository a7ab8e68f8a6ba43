"""The sentences about the choice are true, for a single split and for a nested cross-validation."""

import pandas as pd
import pytest

from probekit.report.figures.layer_curve import chosen_points, layer_curve
from probekit.report.figures.levels import levels
from probekit.report.figures.views import at_shown_position, curve_rows
from probekit.report.maps.maps import chosen_cell, map_cells
from probekit.report.pages.run_page import report_page
from probekit.report.sentences.answer import answer, comparison_rows
from probekit.report.sentences.choice import (
    POOLED_RANKING,
    chosen_words,
    folds_of_sites,
    nested_sentence,
)
from probekit.report.sentences.confidence import reliability_caption
from probekit.report.sentences.sites_table import site_rows
from probekit.report.sentences.warnings import warnings
from probekit.report.sentences.words import caption, learning_curve_caption, map_caption
from probekit.results.differences import rival_differences
from probekit.results.record import RunRecord
from probekit.results.selection import (
    chosen_row,
    fold_choices,
    headline_row,
    is_nested,
    reported_row,
    single_choice,
)
from probekit.results.table import only, placed

NOT_USED = "test rows were not used for the selection"
BEST = {0: "blocks.2.hook_resid_post", 1: "blocks.2.hook_resid_post", 2: "blocks.1.hook_resid_post"}


def with_folds(table):
    """The rows of the same run as a nested cross-validation of three folds."""
    validation = only(table, target="task", split="validation")
    parts = [table.assign(fold=float("nan"))]
    for fold, site in BEST.items():
        own = validation.assign(fold=float(fold))
        own.loc[own["site"] == site, "value"] = 0.99
        parts.append(own)
    first = only(table, target="task", split="test", metric="accuracy").iloc[[0]]
    place = {"site": "", "layer": None, "component": "", "head": None, "view": "", "fold": None}
    values = {"chosen": 0.9, "chosen_control": 0.6, "chosen_random_weights": 0.7}
    values |= {"chosen_embedding": 0.72}
    for target, value in values.items():
        numbers = {"value": value, "ci_low": value - 0.02, "ci_high": value + 0.02}
        parts.append(first.assign(target=target, probe="chosen", **place, **numbers))
    p = first.assign(target="chosen", probe="chosen", metric="p_value", value=0.01, **place)
    return pd.concat([*parts, p], ignore_index=True)


@pytest.fixture
def nested(table):
    return with_folds(table)


@pytest.fixture
def clean(record):
    record["data"]["findings"] = []
    record["best"] |= {"site": None, "layer": None, "sites": {BEST[0]: 2, BEST[2]: 1}}
    return RunRecord.model_validate(record)


def test_each_fold_has_a_choice_and_the_run_has_one_headline(table, nested):
    assert [row["site"] for row in fold_choices(nested)] == list(BEST.values())
    assert headline_row(nested)["value"] == reported_row(nested)["value"] == 0.9
    assert single_choice(nested) is None
    # Fold rows do not enter the choice over all folds.
    assert chosen_row(nested)["value"] == chosen_row(table)["value"]
    assert (fold_choices(table), headline_row(table), is_nested(table)) == ([], None, False)
    assert single_choice(table)["site"] == reported_row(table)["site"] == BEST[0]


def test_a_fold_without_scores_leaves_no_choice(nested):
    lost = nested[(nested["fold"] != 1)].copy()
    lost.loc[lost["target"] == "control", "fold"] = 1.0
    assert fold_choices(lost) == []


def test_the_answer_is_about_the_folds(nested):
    numbers = "90 % [88, 92] of held-out rows, chance 50 %, p = 0.010"
    assert answer(nested) == f"Best at block 2 in 2 of 3 folds: {numbers}."
    assert answer(nested, question="Is it decodable?") == (
        f"Yes: {numbers}; the folds chose different sites (block 2 in 2 folds and block 1 in 1 "
        "fold)."
    )
    same = nested.copy()
    same.loc[same["fold"].eq(2) & same["site"].eq(BEST[0]), "value"] = 0.995
    assert answer(same) == f"Best at block 2 in all 3 folds: {numbers}."
    assert answer(same, question="Is it decodable?") == (
        f"Yes: {numbers}; block 2 chosen in all 3 folds."
    )


def test_other_choices_of_a_fold_are_named(nested):
    other = nested[nested["target"] == "task"].assign(probe="mass_mean", value=0.1)
    text = nested_sentence(pd.concat([nested, other], ignore_index=True))
    assert text.startswith("Nested choice: each of 3 outer folds chose its own site and kind of pr")


def test_many_sites_are_counted():
    rows = {"target": "task", "split": "validation", "metric": "accuracy", "head": None}
    rows |= {"probe": "logistic", "position": "last", "value": 0.9}
    table = pd.DataFrame(
        [rows | {"site": f"blocks.{n}.hook_resid_post", "fold": float(n)} for n in range(7)]
        + [rows | {"site": "blocks.0.hook_resid_post", "fold": None}]
    )
    assert folds_of_sites(table).endswith("blocks.3.hook_resid_post and other sites in 3 folds")
    again = [rows | {"site": "blocks.0.hook_resid_post", "fold": float(n)} for n in (7, 8)]
    more = pd.concat([table, pd.DataFrame(again)])
    assert folds_of_sites(more).startswith("blocks.0.hook_resid_post in 3 folds, blocks.1")


def test_no_site_is_called_the_best_if_the_folds_disagree(nested):
    different = nested.copy()
    different.loc[different["fold"].eq(1) & different["site"].eq(BEST[0]), "value"] = 0.1
    different.loc[different["fold"].eq(1) & different["site"].str.startswith("ln_"), "value"] = 1
    numbers = "90 % [88, 92] of held-out rows, chance 50 %, p = 0.010"
    sites = "the folds chose 3 different sites"
    assert answer(different) == f"Decodable: {numbers}; {sites}."
    assert answer(different, question="Is it decodable?") == f"Yes: {numbers}; {sites}."
    assert chosen_words(different).startswith("different sites in 3 folds: blocks.2.hook_resid")
    tied = different[different["fold"] != 2]
    assert "Best at" not in answer(tied)


def test_only_the_curve_of_a_single_split_says_that_test_rows_were_not_used(table, nested):
    assert NOT_USED in caption(table)
    assert "Fold choice" not in caption(table)
    assert NOT_USED not in caption(nested)
    assert "Fold choice: each outer fold predicts its test rows at the site that it" in caption(
        nested
    )
    # The line is drawn only where it was measured.
    assert "Fold choice" not in caption(nested, "balanced_accuracy")


def test_the_nested_choice_is_a_line_and_no_point_of_the_curve(table, nested):
    drawn = dict(levels(only(nested, metric="accuracy", split="test")))
    assert drawn["chosen"]["value"] == 0.9
    assert {"chosen_control", "chosen_random_weights"}.isdisjoint(drawn)
    names = [trace.name for trace in layer_curve(nested).data]
    assert "fold choice 0.90" in names
    assert chosen_points(nested, placed(nested)) == []
    assert len(chosen_points(table, placed(only(table, split="test", metric="accuracy")))) == 1
    texts = [one.text for one in layer_curve(nested).layout.annotations]
    assert not any("chosen by" in text for text in texts)


def test_the_line_stands_in_the_curve_of_a_sweep_too(sweep):
    nested = with_folds(sweep).assign(
        position=lambda rows: rows["position"].mask(rows["target"].str.startswith("chosen"), "")
    )
    assert set(at_shown_position(nested)["position"]) == {"word:last", ""}
    assert "chosen" in dict(levels(only(curve_rows(nested), metric="accuracy", split="test")))


def test_no_cell_of_a_map_is_framed(heads):
    assert NOT_USED in map_caption(heads)
    validation = only(heads, target="task", split="validation")
    nested = pd.concat([heads.assign(fold=None), validation.assign(fold=0.0)], ignore_index=True)
    assert chosen_cell(nested, map_cells(nested, "accuracy")) is None
    assert NOT_USED not in map_caption(nested)
    assert "No cell is framed, because each outer fold chose its own." in map_caption(nested)
    assert "No cell" not in map_caption(heads)


def test_comparisons_are_with_other_nested_choices(nested):
    compared = comparison_rows(headline_row(nested), nested)
    values = {name: row["value"] for name, row in compared.items()}
    assert values["task"] == 0.9
    assert (values["control"], values["random_weights"], values["embedding"]) == (0.6, 0.7, 0.72)
    assert values["majority"] == 0.5
    assert "chosen" not in comparison_rows(chosen_row(nested), nested)


def test_differences_of_the_nested_choice_are_named(nested):
    names = ("majority", "chosen_random_weights", "blocks.1.hook_resid_post last logistic task")
    numbers = {"metric": "accuracy", "value_a": 0.9, "value_b": 0.5, "difference": 0.4}
    numbers |= {"ci_low": 0.3, "ci_high": 0.5, "p": 0.002, "p_adjusted": 0.01}
    numbers |= {"adjusted_low": 0.2, "adjusted_high": 0.6}
    found = rival_differences(
        nested, pd.DataFrame([{"a": "chosen", "b": name} | numbers for name in names])
    )
    assert [one.key for one in found.named] == ["majority", "random_weights"]
    assert [one.name for one in found.others] == [names[2]]


def test_the_table_of_sites_counts_the_folds(table, nested):
    badges = {row.site: row.badge for row in site_rows(nested) if row.badge}
    assert badges == {
        "blocks.1.hook_resid_post": "chosen by 1 of 3 outer folds",
        "blocks.2.hook_resid_post": "chosen by 2 of 3 outer folds",
    }
    assert [row.badge for row in site_rows(table) if row.chosen] == ["chosen by cross-validation"]
    assert chosen_words(table) == BEST[0]
    # The cross-validated column holds the score of all folds.
    assert [row.cross_validated for row in site_rows(nested)] == [
        row.cross_validated for row in site_rows(table)
    ]


def test_a_penalty_at_the_edge_is_counted_over_the_folds(nested, clean):
    at_edge = nested["fold"].eq(2) & nested["site"].eq(BEST[2])
    nested.loc[at_edge, "C"] = 0.1
    assert warnings(nested, clean) == [
        "C is 0.1 in 1 of 3 outer folds, the largest value of the grid: a wider grid (probe.C) may "
        "change the scores."
    ]


def test_a_record_of_other_choices_gives_a_warning(nested, clean):
    best = clean.best.model_copy(update={"sites": {BEST[0]: 3}})
    (warning,) = warnings(nested, clean.model_copy(update={"best": best}))
    assert "names blocks.2.hook_resid_post in 3 folds as the chosen site, but the" in warning


def test_random_weights_of_a_nested_choice_are_at_no_single_site(nested, clean):
    nested.loc[nested["target"] == "chosen_random_weights", "value"] = 0.95
    (warning,) = warnings(nested, clean)
    assert warning.startswith("The probe is not clearly better than random weights: ")


def test_a_ranking_over_all_folds_is_said_to_be_biased(table, nested):
    learning = {"split": "learning", "n_train": 100}
    bins = pd.DataFrame(
        {"series": ["logistic"], "probe": ["logistic"], "site": [BEST[0]], "position": ["last"]}
    ).assign(head=None)
    for rows, is_said in ((table, False), (nested, True)):
        grown = only(rows, target="task", split="test", metric="accuracy").assign(**learning)
        both = pd.concat([rows, grown], ignore_index=True)
        for text in (learning_curve_caption(both), reliability_caption(bins, rows)):
            assert (POOLED_RANKING in text) == is_said
            assert not text.endswith(" ")


def test_the_page_says_what_held_rows_out(make_run, table, nested, clean):
    page = report_page(make_run(nested, clean.model_dump(mode="json")))
    assert "C was selected in each outer fold by cross-validation on its own training rows" in page
    assert "C and the site were selected by cross-validation on training rows." not in page
    assert NOT_USED not in page
    single = report_page(make_run(table))
    assert "C and the site were selected by cross-validation on training rows." in single
    assert NOT_USED in single
