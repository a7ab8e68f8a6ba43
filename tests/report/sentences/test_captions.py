"""Captions state rows, groups, intervals, choice and seed; descriptions have the numbers."""

import math

import pandas as pd

from probekit.report.figures.layer_curve import chosen_points, layer_curve
from probekit.report.figures.levels import levels
from probekit.report.figures.views import at_shown_position, curve_rows
from probekit.report.maps.maps import chosen_cell, map_cells
from probekit.report.pages.run_page import write_report
from probekit.report.sentences import captions
from probekit.report.sentences.answer import chosen_words
from probekit.report.sentences.captions import (
    NULL_BAND,
    description,
    map_description,
    reliability_caption,
)
from probekit.report.sentences.method import POOLED_RANKING, nested_sentence
from probekit.results.record import Control
from probekit.results.table import only, placed
from tests.report.conftest import judged, seal_run
from tests.report.sentences.cases import BEST, NESTED, with_choices, with_folds, with_metric

NOT_USED = "test rows were not used for the selection"


def caption(table, *others, **options):
    return captions.caption(table, judged(table), *others, **options)


def map_caption(table, *others):
    return captions.map_caption(table, judged(table), *others)


def test_the_caption_states_rows_groups_intervals_and_seed(table):
    text = caption(table)
    facts = "1,039 held-out rows|15 groups|3,000 rows|seed 0|95 % intervals for new"
    assert [fact for fact in facts.split("|") if fact not in text] == []
    assert "resid_pre" not in text
    later = table.assign(
        site=table["site"].replace("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre")
    )
    assert "resid_pre of a block is resid_post of the block before it" in caption(later)
    assert "Bands" not in caption(table.assign(ci_low=math.nan, ci_high=math.nan))


def test_only_the_caption_of_selectivity_explains_the_control(table, heads, sweep):
    control = "The control task assigns a random label to each word at the probed position, or the"
    assert control in caption(table, "selectivity")
    assert control not in caption(table)
    by_group = Control("group")
    for text in (
        caption(table, "selectivity", by_group),
        map_caption(heads, "selectivity", by_group),
    ):
        assert "each group" in text
        assert "to each word at" not in text
    assert "Word identity uses the token" in map_caption(sweep, "accuracy", by_group)


def test_the_page_uses_the_control_and_the_metric_of_its_run(make_run, table, record):
    many = [
        table[table["site"] == "blocks.2.hook_resid_post"].assign(
            site=f"blocks.{layer}.hook_mlp_out", value=lambda rows: rows["value"] - 0.2
        )
        for layer in range(40)
    ]
    numbers = with_metric(pd.concat([table, *many]), "r2")
    page = write_report(make_run(numbers, record | {"control_by": "group"})).read_text("utf-8")
    assert "The control task assigns a random label to each group of rows" in page
    assert "sites with the best cross-validated R²" in page


def test_the_band_of_the_null_takes_the_place_of_a_control(table):
    tested = only(table, target="task", split="test", metric="accuracy").assign(
        metric="p_value", null_low=0.4, null_high=0.6
    )
    both = pd.concat([table, tested], ignore_index=True)
    reason = Control(why_none="No control task: test words are new.")
    assert NULL_BAND not in caption(both)
    without = both[both["target"] != "control"]
    text = caption(without, control=reason)
    assert NULL_BAND in text
    assert reason.why_none in text
    (band,) = [trace for trace in layer_curve(without).data if trace.name == "95 % of the null"]
    assert set(band.y) == {0.4, 0.6}
    assert NULL_BAND not in caption(without, "auroc")


def test_the_description_contains_every_number_of_the_figure(table):
    text = description(table)
    assert "task: embed 0.712, 0 0.801, 1 0.884, 2 0.941, 3 0.922, final norm 0.915;" in text
    assert "majority: 0.500; word identity: 0.710." in text


def test_the_caption_explains_normalised_rows_and_concatenated_sites(heads, table):
    assert "centred" not in caption(table)
    assert "centred and divided" in caption(table.assign(view="normalized"))
    assert "Concatenated" not in caption(table)
    assert "it is never selected" in caption(heads)


def test_the_caption_of_a_map_explains_its_colours(heads):
    text = map_caption(heads)
    assert "Colours range from 0.500 (chance) to 0.900; lower values" in text
    assert "The frame marks" in text
    assert "All offsets" not in text
    assert "from 0.000 (no selectivity) to 0.350" in map_caption(heads, "selectivity")
    heads.loc[heads["metric"] == "selectivity", "value"] -= 0.2
    assert "from −0.150 to 0.150, with 0 in the middle" in map_caption(heads, "selectivity")


def test_the_description_of_a_map_names_its_highest_cells(heads, sweep):
    assert map_description(heads) == (
        "accuracy by layer and head, 4 cells from 0.600 to 0.900. Highest: "
        "blocks.3.attn.hook_z[head=2] 0.900, blocks.3.attn.hook_z[head=0] 0.800, "
        "blocks.1.attn.hook_z[head=2] 0.700, blocks.1.attn.hook_z[head=0] 0.600."
    )
    assert "blocks.2.hook_resid_post at word:last 0.941" in map_description(sweep)
    assert "All offsets have the same examples" in map_caption(sweep)


def test_only_the_curve_of_a_single_split_says_that_test_rows_were_not_used(table):
    assert NOT_USED in caption(table)
    assert "Fold choice" not in caption(table)
    text = caption(NESTED)
    assert NOT_USED not in text
    assert "Fold choice: each outer fold predicts its test rows at the site that it" in text
    # The line is drawn only where it was measured.
    assert "Fold choice" not in caption(NESTED, "balanced_accuracy")


def test_the_nested_choice_is_a_line_and_no_point_of_the_curve(table):
    drawn = dict(levels(only(NESTED, metric="accuracy", split="test")))
    assert drawn["chosen"]["value"] == 0.9
    assert {"chosen_control", "chosen_random_weights"}.isdisjoint(drawn)
    assert "fold choice 0.90" in [trace.name for trace in layer_curve(NESTED).data]
    assert chosen_points(NESTED, placed(NESTED)) == []
    assert len(chosen_points(table, placed(only(table, split="test", metric="accuracy")))) == 1
    texts = [one.text for one in layer_curve(NESTED).layout.annotations]
    assert not any("chosen by" in text for text in texts)


def test_the_line_is_in_the_curve_of_a_sweep_too(sweep):
    nested = with_folds(sweep).assign(
        position=lambda rows: rows["position"].mask(rows["target"].str.startswith("chosen"), "")
    )
    assert set(at_shown_position(nested)["position"]) == {"word:last", ""}
    assert "chosen" in dict(levels(only(curve_rows(nested), metric="accuracy", split="test")))


def test_no_cell_of_a_map_is_framed_for_outer_folds(heads):
    assert NOT_USED in map_caption(heads)
    validation = only(heads, target="task", split="validation")
    nested = pd.concat([heads.assign(fold=None), validation.assign(fold=0.0)], ignore_index=True)
    assert chosen_cell(nested, map_cells(nested, "accuracy")) is None
    assert NOT_USED not in map_caption(nested)
    assert "No cell is framed, because each outer fold chose its own." in map_caption(nested)
    assert "No cell" not in map_caption(heads)


def test_the_choices_of_the_folds_are_in_words(table):
    assert nested_sentence(judged(NESTED)) == (
        "Nested choice: each of 3 outer folds chose its own site by cross-validated accuracy on "
        f"its own training rows ({BEST[0]} in 2 folds and {BEST[2]} in 1 fold)."
    )
    assert chosen_words(judged(table)) == BEST[0]
    assert chosen_words(judged(with_choices(*[BEST[0]] * 3))) == f"{BEST[0]} in all 3 folds"
    different = with_choices(BEST[0], "ln_final", BEST[2])
    assert chosen_words(judged(different)).startswith(f"different sites in 3 folds: {BEST[0]}")
    v = judged(NESTED)
    names = [f"blocks.{n}.hook_resid_post" for n in (0, 1, 2, 3, 4, 5, 6)]
    many = [v.best.model_copy(update={"site": name}) for name in names]
    text = chosen_words(v.model_copy(update={"choices": tuple(many)}))
    assert text.endswith("blocks.3.hook_resid_post and other sites in 3 folds")
    again = (*many, many[0], many[0])
    text = chosen_words(v.model_copy(update={"choices": again}))
    assert "blocks.0.hook_resid_post in 3 folds, blocks.1" in text


def test_the_page_says_what_held_rows_out(make_run, table):
    table = table[table["metric"] == "accuracy"]
    page = write_report(make_run(NESTED[NESTED["metric"] == "accuracy"])).read_text("utf-8")
    assert "C was selected in each outer fold by cross-validation on its own training rows" in page
    assert "C and the site were selected by cross-validation on training rows." not in page
    assert NOT_USED not in page
    single = write_report(make_run(table)).read_text("utf-8")
    assert "C and the site were selected by cross-validation on training rows." in single
    assert NOT_USED in single


def bins():
    place = {"probe": "logistic", "site": BEST[0], "head": None, "position": "last"}
    return pd.DataFrame(
        [
            place
            | {"low": low, "high": low + 0.1, "n_rows": 20, "confidence": low + 0.05}
            | {"accuracy": low, "ci_low": low - 0.1, "ci_high": low + 0.1}
            for low in (0.5, 0.9)
        ]
    )


def test_the_reliability_diagram_has_the_scores_of_its_probe_and_is_folded(make_run, table):
    scored = table.replace({"metric": {"macro_f1": "brier", "auroc": "ece"}})
    text = reliability_caption(bins(), scored, judged(scored))
    assert (
        "logistic at blocks.2.hook_resid_post: Brier score 0.911 [0.891, 0.931], calibration error "
        "0.981 [0.961, 1.001]." in text
    )
    run = make_run(table[table["metric"] == "accuracy"])
    bins().to_csv(run / "reliability.csv", index=False)
    page = write_report(seal_run(run)).read_text("utf-8")
    assert "<summary>Confidence and accuracy</summary>" in page


def test_a_ranking_over_all_folds_is_said_to_be_biased(table):
    for rows, is_said in ((table, False), (NESTED, True)):
        grown = only(rows, target="task", split="test", metric="accuracy")
        both = pd.concat([rows, grown.assign(split="learning", n_train=100)], ignore_index=True)
        v = judged(both)
        for text in (
            captions.learning_curve_caption(both, v),
            reliability_caption(bins(), rows, v),
        ):
            assert (POOLED_RANKING in text) == is_said
            assert not text.endswith(" ")
