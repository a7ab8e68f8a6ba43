import math

import pandas as pd
import pytest

from probekit.report.pages.run_page import write_report
from probekit.report.sentences.answer import answer
from probekit.report.sentences.warnings import warnings
from probekit.report.sentences.words import caption, description, map_caption, map_description
from probekit.results.record import RunRecord


@pytest.fixture
def clean(record):
    """The record of a run in whose data nothing was found."""
    record["data"]["findings"] = []
    return RunRecord.model_validate(record)


def set_value(table, value, **where):
    rows = pd.Series(True, table.index)
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows & (table["split"] == "test") & (table["metric"] == "accuracy"), "value"] = value


def test_the_answer_is_the_numbers_in_words(table):
    assert answer(table) == (
        "Chosen: block 2 (blocks.2.hook_resid_post), by cross-validated accuracy on training rows "
        "0.931 (next: block 3, 0.912): accuracy 0.941 [0.921, 0.961] on 1,039 held-out rows of "
        "15 groups. Beside it: control task 0.547; the words alone 0.710; "
        "a random network 0.736; the majority label 0.500."
    )


def test_the_answer_leaves_out_what_was_not_measured(table):
    assert answer(table[table["target"] == "task"]).endswith("It was measured without company.")
    assert answer(table[table["split"] == "test"]).startswith("No layer was chosen")


def test_the_answer_names_the_ends_by_their_names(table):
    table.loc[(table["split"] == "validation") & table["site"].str.startswith("ln_"), "value"] = 1
    assert answer(table).startswith("Chosen: the final norm (ln_final.hook_normalized)")


def with_heads(table, values):
    """A table of one block, whose head N has the score at place N."""
    one_site = table[table["site"] == "blocks.1.hook_resid_post"]
    heads = [
        one_site.assign(head=float(head), site="blocks.1.attn.hook_z", value=value)
        for head, value in enumerate(values)
    ]
    return pd.concat([*heads, table[table["site"] == ""]], ignore_index=True)


def test_the_answer_names_the_head_and_the_one_that_came_second(table):
    said = answer(with_heads(table, [0.9, 0.8, 0.7]))
    assert said.startswith("Chosen: block 1 (blocks.1.attn.hook_z[head=0])")
    assert "0.900 (next: block 1 attn.z head 1, 0.800)" in said


@pytest.mark.parametrize(
    ("values", "told"),
    [([0.7, 0.9, 0.9], "head 2 has"), ([0.9, 0.9, 0.7, 0.9], "head 1 and 1 more have")],
)
def test_the_answer_tells_of_a_tie(table, values, told):
    said = answer(with_heads(table, values))
    assert f"0.900 (block 1 attn.z {told} the same; of equals the first is taken)" in said


def test_the_only_site_has_none_next_to_it(table):
    said = answer(table[table["site"].isin(["", "blocks.2.hook_resid_post"])])
    assert "on training rows 0.931: accuracy 0.94" in said


def test_a_clean_result_has_no_warning(table, clean):
    assert warnings(table, clean) == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"target": "control"}, "The control task reaches 0.921 there"),
        ({"target": "random_weights"}, "random weights reaches 0.921 there"),
        ({"target": "word_identity"}, "Knowing the word alone gives 0.921"),
        (
            {"target": "task", "site": "blocks.0.hook_resid_pre"},
            "The embedding gives 0.921 already",
        ),
    ],
)
def test_a_rival_inside_the_interval_is_told_and_one_below_it_is_not(table, clean, where, said):
    set_value(table, 0.921, **where)
    (warning,) = warnings(table, clean)
    assert said in warning
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
def test_a_c_at_an_end_of_its_grid_is_told(table, clean, grid, end):
    told = [
        f"C is 0.01 at the chosen site, the {end} of those offered: "
        "a wider grid (probe.C) may move the numbers."
    ]
    found = warnings(table, clean.model_copy(update={"C_grid": grid}))
    assert found == (told if end else [])


def test_only_the_c_of_the_chosen_site_counts(table, clean):
    table.loc[table["site"] != "blocks.2.hook_resid_post", "C"] = 0.1
    assert warnings(table, clean) == []


def test_what_makes_the_data_doubtful_is_told_and_what_only_informs_is_not(table, record):
    record["data"]["findings"] = [
        {"level": level, "code": "code", "message": f"An {level}."}
        for level in ("error", "warning", "info")
    ]
    found = warnings(table, RunRecord.model_validate(record))
    assert found == ["An error.", "An warning."]


def test_another_choice_in_the_record_is_told(table, record, clean):
    best = clean.best.model_copy(update={"head": 2})
    (warning,) = warnings(table, clean.model_copy(update={"best": best}))
    assert "run.json names blocks.2.hook_resid_post[head=2] as the chosen site" in warning


def test_unconverged_fits_are_counted_once_and_named(table, clean):
    stopped = table["site"].eq("blocks.1.hook_resid_post") & table["target"].eq("task")
    table.loc[stopped, "converged"] = False
    (warning,) = warnings(table, clean)
    assert warning.startswith("2 of 24 scores rest on fits that stopped before they converged, ")
    assert "at blocks.1.hook_resid_post: " in warning


def test_a_control_that_the_words_do_not_follow_is_told_so(table, clean):
    set_value(table, 0.95, target="control")
    (warning,) = warnings(table, clean)
    assert "learn words by heart" in warning
    assert warning.endswith("Here that does not help: knowing the word alone gives 0.710.")
    set_value(table, 0.95, target="word_identity")
    assert not any("does not help" in warning for warning in warnings(table, clean))


def test_a_search_that_did_not_converge_is_told(table, clean):
    table.loc[table["split"].eq("validation").idxmax(), "converged"] = False
    (warning,) = warnings(table, clean)
    assert warning.startswith("1 of 24 scores")


def test_a_probe_no_better_than_the_majority_is_told(table, clean):
    low = table["target"].eq("task") & table["metric"].eq("accuracy") & table["split"].eq("test")
    table.loc[low, ["value", "ci_low", "ci_high"]] = (0.55, 0.45, 0.65)
    assert any("Always guessing" in warning for warning in warnings(table, clean))


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


def test_only_the_caption_of_selectivity_says_what_the_control_is(table):
    control = "The control task gives each word, at the probed position or the last before it, a "
    assert control in caption(table, "selectivity")
    assert control not in caption(table)


def test_a_control_by_group_is_told_as_one(table, heads, sweep, clean):
    for said in (
        caption(table, "selectivity", "group"),
        map_caption(heads, "selectivity", "group"),
    ):
        assert "each group" in said
        assert "gives each word" not in said
    assert "Word identity goes by the token" in map_caption(sweep, "accuracy", "group")
    set_value(table, 0.95, target="control")
    by_word, by_group = (
        warnings(table, clean.model_copy(update={"control_by": by}))[0] for by in ("word", "group")
    )
    assert "learn groups by heart" in by_group
    assert "knowing the word alone" in by_word
    assert "knowing the word alone" not in by_group


def test_the_page_takes_the_control_and_the_metric_of_its_run(make_run, table, record):
    many = [
        table[table["site"] == "blocks.2.hook_resid_post"].assign(
            site=f"blocks.{layer}.hook_mlp_out", value=lambda rows: rows["value"] - 0.2
        )
        for layer in range(40)
    ]
    numbers = pd.concat([table, *many]).replace({"metric": {"accuracy": "r2"}})
    page = write_report(make_run(numbers, record | {"control_by": "group"})).read_text("utf-8")
    assert "The control task gives each group of rows a random label" in page
    assert "sites with the highest cross-validated R²" in page


def test_the_description_holds_every_number_of_the_figure(table):
    text = description(table)
    assert "task: embed 0.712, 0 0.801, 1 0.884, 2 0.941, 3 0.922, final norm 0.915;" in text
    assert "majority: 0.500; word identity: 0.710." in text


def test_the_answer_says_at_which_position_of_several(sweep, table):
    assert "block 2 (blocks.2.hook_resid_post at word:last), by" in answer(sweep)
    assert "residual stream" not in answer(table)


def test_sites_side_by_side_are_company_and_never_the_answer(heads):
    said = answer(heads)
    assert said.startswith("Chosen: block 3 (blocks.3.attn.hook_z[head=2])")
    assert "several sites side by side 0.980." in said


def test_of_many_unconverged_sites_some_are_named(table, clean):
    site = table[table["site"] == "blocks.1.hook_resid_post"]
    many = [site.assign(site=f"blocks.{layer}.hook_resid_post") for layer in range(20)]
    stopped = pd.concat(many, ignore_index=True).assign(converged=False)
    told = [text for text in warnings(stopped, clean) if "stopped before" in text]
    assert "blocks.11.hook_resid_post and 8 more: they may" in told[0]


def test_the_caption_says_how_rows_were_seen_and_what_is_joined(heads, table):
    assert "centred" not in caption(table)
    assert "centred and divided" in caption(table.assign(view="normalized"))
    assert "Sites joined" not in caption(table)
    assert "never the one chosen" in caption(heads)


def test_the_caption_of_a_map_says_what_its_colours_mean(heads):
    said = map_caption(heads)
    assert "Colours go from 0.500, chance, to 0.900; what lies below" in said
    assert "The frame marks" in said
    assert "All offsets" not in said
    assert "from 0.000, no selectivity, to 0.350" in map_caption(heads, "selectivity")
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
