"""Captions state rows, groups, intervals, choice and seed; descriptions have the numbers."""

import math

import pandas as pd
import pytest

from probekit.report.figures.line_labels import levels
from probekit.report.figures.maps import map_cells, map_description
from probekit.report.figures.views import at_shown_position, curve_rows
from probekit.report.pages.further_figures import learning_part, reliability_caption
from probekit.report.sentences import captions
from probekit.report.sentences.answer import nested_sentence
from probekit.report.sentences.captions import description
from probekit.report.sentences.comparisons import chosen_words
from probekit.results.record import Control
from probekit.results.scores import Scores
from probekit.results.table import only
from tests.report.conftest import judged, make_heads, make_sweep, make_table
from tests.report.sentences.cases import BEST, BINS, NESTED, with_choices, with_folds

TABLE, HEADS, SWEEP = make_table(), make_heads(), make_sweep()
BY_GROUP = Control("group")
REASON = Control(why_none="No control task: test words are new.")
TASK = only(TABLE, target="task", split="test", metric="accuracy")
WITH_NULL = pd.concat(
    [TABLE, TASK.assign(metric="p_value", null_low=0.4, null_high=0.6)], ignore_index=True
)
NULL_ALONE = WITH_NULL[WITH_NULL["target"] != "control"]
LATER = TABLE.replace({"site": {"blocks.0.hook_resid_post": "blocks.1.hook_resid_pre"}})
UNCERTAIN = TABLE.assign(ci_low=math.nan, ci_high=math.nan)
NEGATIVE = HEADS.assign(value=HEADS["value"] - 0.2 * (HEADS["metric"] == "selectivity"))
FOLDS_OF_HEADS = pd.concat(
    [HEADS.assign(fold=None), only(HEADS, target="task", split="validation").assign(fold=0.0)],
    ignore_index=True,
)
DIFFERENT = with_choices(BEST[0], "ln_final", BEST[2])
CALIBRATION = {"metric": {"macro_f1": "brier", "auroc": "ece"}}
CALIBRATED_FOLDS = NESTED.replace(CALIBRATION)


def caption(table, *others, **options):
    return captions.caption(Scores.of(table), judged(table), *others, **options)


def described(table):
    return map_description(map_cells(Scores.of(table), "accuracy"))


def map_caption(table, metric="accuracy", *control):
    return captions.map_caption(map_cells(Scores.of(table), metric), judged(table), *control)


def reliability(table):
    return reliability_caption(BINS, Scores.of(table), judged(table))


def learning(table):
    grown = only(table, target="task", split="test", metric="accuracy")
    both = pd.concat([table, grown.assign(split="learning", n_train=100)], ignore_index=True)
    return next(learning_part(Scores.of(both), judged(both))).caption


def words_of_choices(*layers):
    """The words for outer folds that chose sites in these layers."""
    v = judged(NESTED)
    names = [f"blocks.{layer}.hook_resid_post" for layer in layers]
    choices = tuple(v.best.model_copy(update={"site": name}) for name in names)
    return chosen_words(v.model_copy(update={"choices": choices}))


TEXTS = {
    "resid_pre of a later block is explained": lambda: caption(LATER),
    "without intervals there are no bands": lambda: caption(UNCERTAIN),
    "selectivity explains the control": lambda: caption(TABLE, "selectivity"),
    "a control by group": lambda: caption(TABLE, "selectivity", BY_GROUP),
    "a control by group in a map": lambda: map_caption(HEADS, "selectivity", BY_GROUP),
    "a null next to a control has no band": lambda: caption(WITH_NULL),
    "the band of a null replaces a control": lambda: caption(NULL_ALONE, control=REASON),
    "a null is of the main metric": lambda: caption(NULL_ALONE, "auroc"),
    "normalised rows": lambda: caption(TABLE.assign(view="normalized")),
    "concatenated sites": lambda: caption(HEADS),
    "a map of selectivity": lambda: map_caption(HEADS, "selectivity"),
    "a map with numbers below 0": lambda: map_caption(NEGATIVE, "selectivity"),
    "a map of positions": lambda: map_caption(SWEEP, "accuracy", BY_GROUP),
    "a description has every number": lambda: description(Scores.of(TABLE)),
    "the description of a map names its highest cells": lambda: described(HEADS),
    "the description of a map of positions": lambda: described(SWEEP),
    "outer folds do not claim unused test rows": lambda: caption(NESTED),
    "no choice where none was measured": lambda: caption(NESTED, "balanced_accuracy"),
    "a map of outer folds has no frame": lambda: map_caption(FOLDS_OF_HEADS),
    "choices of two sites": lambda: nested_sentence(judged(NESTED)),
    "a single choice": lambda: chosen_words(judged(TABLE)),
    "the same choice in all folds": lambda: chosen_words(judged(with_choices(*[BEST[0]] * 3))),
    "another choice in each fold": lambda: chosen_words(judged(DIFFERENT)),
    "many choices": lambda: words_of_choices(*range(7)),
    "many choices, one of them in three folds": lambda: words_of_choices(*range(7), 0, 0),
    "reliability has the scores of its probe": lambda: reliability(TABLE.replace(CALIBRATION)),
    "reliability: a biased ranking over folds": lambda: reliability(CALIBRATED_FOLDS),
    "a learning curve": lambda: learning(TABLE),
    "a learning curve over folds: the ranking is biased": lambda: learning(NESTED),
}


@pytest.mark.parametrize("name", TEXTS)
def test_captions_are_those_that_are_stored(snapshot, name):
    text = TEXTS[name]()
    assert text == text.strip()
    assert text.replace(". ", ".\n") == snapshot


def test_the_line_is_in_the_curve_of_a_sweep_too():
    nested = with_folds(SWEEP).assign(
        position=lambda rows: rows["position"].mask(rows["target"].str.startswith("chosen"), "")
    )
    nested = Scores.of(nested)
    assert set(at_shown_position(nested).rows["position"]) == {"word:last", ""}
    assert "chosen" in dict(levels(curve_rows(nested).measured("accuracy")))
