import math

import pandas as pd
import pytest

from probekit.report.figures.layer_curve import layer_curve
from probekit.report.pages.run_page import write_report
from probekit.report.sentences.warnings import warnings
from probekit.report.sentences.words import (
    NULL_BAND,
    caption,
    description,
    map_caption,
    map_description,
)
from probekit.results.differences import RivalDifference, RivalDifferences
from probekit.results.record import Control, RunRecord
from probekit.results.table import only


@pytest.fixture
def clean(record):
    """Record of a run whose data checks have no findings."""
    record["data"]["findings"] = []
    return RunRecord.model_validate(record)


def set_value(table, value, **where):
    rows = pd.Series(True, table.index)
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows & (table["split"] == "test") & (table["metric"] == "accuracy"), "value"] = value


def test_a_clean_result_has_no_warning(table, clean):
    assert warnings(table, clean) == []


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            {"target": "random_weights"},
            "not clearly better than random weights: the result may not depend",
        ),
        (
            {"target": "word_identity"},
            "not clearly better than word identity: the probe may not use the context",
        ),
        (
            {"target": "task", "site": "blocks.0.hook_resid_pre"},
            "not clearly better than the embedding: the layers may add nothing",
        ),
    ],
)
def test_a_baseline_inside_the_interval_gives_a_warning(table, clean, where, text):
    set_value(table, 0.921, **where)
    (warning,) = warnings(table, clean)
    assert text in warning
    set_value(table, 0.92, **where)
    assert warnings(table, clean) == []


@pytest.mark.parametrize(
    ("grid", "end"),
    [
        ([0.01, 0.1], "smallest"),
        ([0.1, 0.01, 1], "smallest"),
        ([0.001, 0.01], "largest"),
        ([0.001, 0.01, 0.1], None),
        ([0.01], None),
        ([], None),
    ],
)
def test_a_c_at_an_end_of_its_grid_gives_a_warning(table, clean, grid, end):
    expected = [
        f"C is 0.01 at the chosen site, the {end} value of the grid: "
        "a wider grid (probe.C) may change the scores."
    ]
    texts = warnings(table, clean.model_copy(update={"C_grid": grid}))
    assert texts == (expected if end else [])


@pytest.mark.parametrize(
    ("C", "value", "end"),
    [
        (10.0, 0.6, "largest"),
        (10.0, 0.4, "largest"),
        (0.0001, 0.6, "smallest"),
        (0.0001, 1.0, None),
        (0.0001, 0.5, None),  # with a smaller C it becomes the majority, which scores 0.5
        (0.1, 0.6, None),
    ],
)
def test_a_baseline_at_an_end_of_its_grid_gives_a_warning(table, clean, C, value, end):
    words = table[table["target"] == "majority"].assign(target="n_grams", value=value, C=C)
    texts = warnings(pd.concat([table, words], ignore_index=True), clean)
    expected = [
        f"C of the baseline n-grams is {C:g}, the {end} value of its grid: with another value it "
        "might score higher."
    ]
    assert [text for text in texts if text.startswith("C of")] == (expected if end else [])


def test_only_the_c_of_the_chosen_site_counts(table, clean):
    table.loc[table["site"] != "blocks.2.hook_resid_post", "C"] = 0.1
    assert warnings(table, clean) == []


def test_errors_and_warnings_about_the_data_are_shown_but_infos_are_not(table, record):
    record["data"]["findings"] = [
        {"level": level, "code": "code", "message": f"An {level}."}
        for level in ("error", "warning", "info")
    ]
    texts = warnings(table, RunRecord.model_validate(record))
    assert texts == ["An error.", "An warning."]


def test_a_different_site_in_the_record_gives_a_warning(table, record, clean):
    best = clean.best.model_copy(update={"head": 2})
    (warning,) = warnings(table, clean.model_copy(update={"best": best}))
    assert "run.json names blocks.2.hook_resid_post[head=2] as the chosen site" in warning


def test_unconverged_fits_are_counted_once_and_named(table, clean):
    stopped = table["site"].eq("blocks.1.hook_resid_post") & table["target"].eq("task")
    table.loc[stopped, "converged"] = False
    (warning,) = warnings(table, clean)
    assert warning.startswith("2 of 24 scores come from fits that did not converge, ")
    assert "at blocks.1.hook_resid_post: " in warning


def set_control(table, value, ci_low, selectivity):
    """Set the scores of the control task; `selectivity` is the lower limit of its interval."""
    control = table["target"].eq("control") & table["metric"].eq("accuracy")
    table.loc[control, ["value", "ci_low"]] = value, ci_low
    table.loc[table["metric"] == "selectivity", "ci_low"] = selectivity


@pytest.mark.parametrize(
    ("ci_low", "selectivity", "warns"), [(0.9, -0.01, True), (0.9, 0.01, False), (0.4, -0.2, False)]
)
def test_a_control_above_chance_without_selectivity_gives_a_warning(
    table, clean, ci_low, selectivity, warns
):
    set_control(table, 0.95, ci_low, selectivity)
    texts = warnings(table, clean)
    assert len(texts) == warns
    assert all("The control task is learnt, and selectivity is not above 0" in t for t in texts)


def test_a_control_warning_says_if_memorised_words_do_not_explain_the_score(table, clean):
    set_control(table, 0.95, 0.9, -0.01)
    (warning,) = warnings(table, clean)
    assert "memorise labels of individual words" in warning
    assert warning.endswith(
        "Memorised words do not explain the task score, because the probe is better than word "
        "identity."
    )
    set_value(table, 0.95, target="word_identity")
    assert not any("do not explain" in warning for warning in warnings(table, clean))


def test_unknown_limits_are_no_evidence_of_memorising(table, clean):
    set_control(table, 0.95, 0.9, -0.01)
    for metric in ("selectivity", "accuracy"):
        unknown = table.copy()
        is_control = unknown["target"].eq("control") | unknown["metric"].eq("selectivity")
        unknown.loc[is_control & unknown["metric"].eq(metric), ["ci_low", "ci_high"]] = float("nan")
        assert not any("memorise" in warning for warning in warnings(unknown, clean))


def test_a_constant_prediction_that_scores_as_much_is_named(table, clean):
    majority = RivalDifference("majority", "majority", 0.5, 0.01, -0.01, 0.03, 0.001)
    (warning, *_) = warnings(table, clean, comparisons=RivalDifferences((majority,)))
    assert "its predictions are associated with the labels" in warning


def test_an_unconverged_validation_fit_gives_a_warning(table, clean):
    table.loc[table["split"].eq("validation").idxmax(), "converged"] = False
    (warning,) = warnings(table, clean)
    assert warning.startswith("1 of 24 scores")


def test_a_probe_no_better_than_the_majority_gives_a_warning(table, clean):
    low = table["target"].eq("task") & table["metric"].eq("accuracy") & table["split"].eq("test")
    table.loc[low, ["value", "ci_low", "ci_high"]] = (0.55, 0.45, 0.65)
    assert any("than the majority class" in warning for warning in warnings(table, clean))


def test_the_caption_states_rows_groups_intervals_and_seed(table):
    text = caption(table)
    for fact in (
        "1,039 held-out rows",
        "15 groups",
        "3,000 rows",
        "seed 0",
        "95 % intervals for new",
    ):
        assert fact in text
    assert "resid_pre" not in text
    later = table.assign(
        site=table["site"].replace("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre")
    )
    assert "resid_pre of a block is resid_post of the block before it" in caption(later)
    assert "Bands" not in caption(table.assign(ci_low=math.nan, ci_high=math.nan))


def test_only_the_caption_of_selectivity_explains_the_control(table):
    control = "The control task assigns a random label to each word at the probed position, or the"
    assert control in caption(table, "selectivity")
    assert control not in caption(table)


def test_a_control_by_group_is_described_as_one(table, heads, sweep, clean):
    for text in (
        caption(table, "selectivity", Control("group")),
        map_caption(heads, "selectivity", Control("group")),
    ):
        assert "each group" in text
        assert "to each word at" not in text
    assert "Word identity uses the token" in map_caption(sweep, "accuracy", Control("group"))
    set_control(table, 0.95, 0.9, -0.01)
    by_word, by_group = (
        warnings(table, clean.model_copy(update={"control_by": by}))[0] for by in ("word", "group")
    )
    assert "memorise labels of individual groups" in by_group
    assert "better than word identity" in by_word
    assert "better than word identity" not in by_group


def test_the_page_uses_the_control_and_the_metric_of_its_run(make_run, table, record):
    many = [
        table[table["site"] == "blocks.2.hook_resid_post"].assign(
            site=f"blocks.{layer}.hook_mlp_out", value=lambda rows: rows["value"] - 0.2
        )
        for layer in range(40)
    ]
    numbers = pd.concat([table, *many]).replace({"metric": {"accuracy": "r2"}})
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


def test_of_many_unconverged_sites_the_first_are_named(table, clean):
    site = table[table["site"] == "blocks.1.hook_resid_post"]
    many = [site.assign(site=f"blocks.{layer}.hook_resid_post") for layer in range(20)]
    stopped = pd.concat(many, ignore_index=True).assign(converged=False)
    texts = [text for text in warnings(stopped, clean) if "did not converge" in text]
    assert "blocks.11.hook_resid_post and 8 more: they may" in texts[0]


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
