"""Layer curves: of one run and of several, with undefined scores; curves of norms."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.errors import UnknownNameError
from probekit.probes.targets import HEADLINE
from probekit.report.figures.curves import norm_curve
from probekit.report.figures.layer_curve import curve_facets, layer_curve
from probekit.report.figures.levels import NULL_BAND
from probekit.report.figures.line_labels import LABEL, name_traces
from probekit.report.figures.style import GREY, LEVELS, LINES, SERIES_COLOURS, SERIES_MARKERS
from probekit.report.maps.maps import colours, layer_map, luminance
from probekit.report.sentences.answer import answer
from tests.report.conftest import four_kinds, judged, make_table, row


def traces(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def named_lines(figure):
    return [trace for trace in figure.data if trace.name]


def labels(figure):
    """Return the annotations of a figure by their text, on one line."""
    return {
        note.text.replace("<br>", " ").replace("\u00a0", " "): note
        for note in figure.layout.annotations
    }


def values(table, target, metric="accuracy"):
    rows = table[(table["split"] == "test") & (table["metric"] == metric)]
    return rows.loc[rows["target"] == target, "value"].tolist()


@pytest.mark.parametrize("target", LINES)
def test_lines_hold_the_rows_of_the_table_in_the_order_of_depth(table, target):
    (line,) = traces(layer_curve(table.sample(frac=1, random_state=0)), LINES[target].label)
    assert list(line.y) == values(table, target)
    assert list(line.x) == [-1, 0, 1, 2, 3, 4]
    assert line.line.dash == LINES[target].dash


def test_the_axis_names_every_depth(table):
    axis = layer_curve(table).layout.xaxis
    assert list(axis.tickvals) == [-1, 0, 1, 2, 3, 4]
    assert [text.removeprefix("<br>") for text in axis.ticktext] == ["embed", *"0123", "final norm"]


def test_a_deep_model_keeps_a_tick_at_every_block_and_names_some(table):
    row = table[table["site"] == "blocks.2.hook_resid_post"]
    deep = [row.assign(site=f"blocks.{layer}.hook_resid_post") for layer in range(48)]
    axis = layer_curve(pd.concat(deep)).layout.xaxis
    assert len(axis.tickvals) == 48
    assert [text for text in axis.ticktext if text] == [str(layer) for layer in range(0, 48, 3)]


def test_the_band_of_the_task_is_its_interval(table):
    (band,) = [trace for trace in layer_curve(table).data if trace.fill]
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["target"] == "task"]
    assert list(band.y) == [*rows["ci_high"], *rows["ci_low"][::-1]]
    without_intervals = layer_curve(table.assign(ci_low=math.nan, ci_high=math.nan))
    assert not [trace for trace in without_intervals.data if trace.fill]


@pytest.mark.parametrize(("target", "value"), [("majority", 0.5), ("word_identity", 0.71)])
def test_baselines_are_named_horizontal_lines(table, target, value):
    figure = layer_curve(table)
    (line,) = traces(figure, f"{LEVELS[target].label} {value:.2f}")
    assert list(line.y) == [value, value]
    assert labels(figure)[f"{LEVELS[target].label} {value:.2f}"].y == value


def test_chance_is_drawn_if_no_majority_was_measured(table):
    assert traces(layer_curve(table, "auroc"), "chance 0.50")
    assert not traces(layer_curve(table), "chance 0.50")


def test_the_ring_marks_the_task_at_the_chosen_site(table):
    figure = layer_curve(table)
    (ring,) = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert (ring.x[0], ring.y[0]) == (2, 0.941)
    assert "chosen: 0.94" in labels(figure)
    assert "chosen: 0.94" not in labels(layer_curve(table[table["split"] == "test"]))


@pytest.mark.parametrize(("control", "is_above"), [(0.96, False), (0.92, True)])
def test_the_label_of_the_ring_is_on_the_side_with_more_space(table, control, is_above):
    is_control = table["target"].eq("control") & table["layer"].eq(2)
    table.loc[is_control & table["metric"].eq("accuracy"), "value"] = control
    assert (labels(layer_curve(table))["chosen: 0.94"].ay < 0) == is_above


@pytest.mark.parametrize(
    ("metric", "ends"),
    [("accuracy", (0.5, 1.0)), ("auroc", (0.5, 1.0)), ("selectivity", (0.0, 0.414))],
)
def test_the_axis_ranges_from_chance_to_the_maximum(table, metric, ends):
    low, high = layer_curve(table, metric).layout.yaxis.range
    margin = 0.04 * (ends[1] - ends[0])
    assert (low, high) == pytest.approx((ends[0] - margin, ends[1] + margin))


def test_all_traces_are_inside_the_axes_also_below_chance(table):
    below = table.copy()
    below.loc[table["target"] == "task", ["value", "ci_low"]] = 0.3, 0.2
    assert layer_curve(below).layout.yaxis.range == pytest.approx((0.2 - 0.032, 1.032))
    figure = layer_curve(table)
    low, high = figure.layout.yaxis.range
    left, right = figure.layout.xaxis.range
    assert all(low < y < high for trace in figure.data for y in trace.y)
    assert all(left <= x <= right for trace in figure.data for x in trace.x)


def test_the_hover_shows_value_interval_rows_groups_and_c(table):
    (line,) = traces(layer_curve(table), "task")
    assert line.hovertext[3] == (
        "<b>blocks.2.hook_resid_post</b><br>task: 0.941 [0.921, 0.961]"
        "<br>test rows: 1,039<br>test groups: 15<br>C: 0.01"
    )


def test_chance_of_selectivity_is_0(table):
    figure = layer_curve(table, "selectivity")
    (line,) = traces(figure, "task")
    assert list(line.y) == values(table, "task", "selectivity")
    assert list(traces(figure, "chance 0.00")[0].y) == [0, 0]


def test_a_metric_that_no_site_has_is_refused_with_the_nearest_match(table):
    with pytest.raises(UnknownNameError, match=r"'acuracy' at any site\. Nearest: accuracy"):
        layer_curve(table, "acuracy")
    with pytest.raises(UnknownNameError, match="at any site"):
        layer_curve(table[(table["site"] == "") | (table["metric"] == "auroc")], "accuracy")


def several_lines(table):
    sited = table[table["site"].str.contains("resid_post")]
    names = ["hook_attn_out", "hook_mlp_out", "attn.hook_z", "attn.hook_q", "attn.hook_k"]
    others = [
        sited.assign(site=sited["site"].str.replace("hook_resid_post", name)) for name in names
    ]
    return pd.concat([table, *others])


def test_every_component_is_a_line_with_its_own_marker(table):
    lines = [t for t in layer_curve(several_lines(table)).data if (t.name or "").startswith("task")]
    kinds = ["residual stream", "attn_out", "mlp_out", "attn.z", "attn.q", "attn.k"]
    assert [line.name for line in lines] == [f"task · {kind}" for kind in kinds]
    assert len({line.marker.symbol for line in lines}) == len(lines)


def test_labels_name_each_control_once(table):
    figure = layer_curve(several_lines(table))
    named = [note.text.replace("\u00a0", " ") for note in figure.layout.annotations]
    assert named.count("control task") == named.count("random weights") == 1


def test_of_many_lines_five_are_coloured_and_all_are_in_a_legend(table):
    views = [table.assign(position=f"index:{n}") for n in range(8)]
    figure = layer_curve(pd.concat([several_lines(table), *views]))
    assert figure.layout.showlegend
    assert not [note for note in figure.layout.annotations if note.name == LABEL]
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert named.count("control task") == named.count("random weights") == 1
    lines = [t for t in figure.data if (t.name or "").startswith("task")]
    assert len(lines) > len(SERIES_COLOURS)
    assert {line.line.color for line in lines} == {*SERIES_COLOURS, GREY}


def test_only_what_differs_is_in_a_name(table):
    both = pd.concat([table.assign(position="first"), table])
    names = {t.name for t in layer_curve(both).data if (t.name or "").startswith("task")}
    assert names == {"task · first", "task · last"}


def test_names_are_never_interpreted_as_markup(table, hostile):
    both = pd.concat([table.assign(dataset=hostile), table])
    text = layer_curve(both).to_json()
    assert "%{" not in text
    assert "</script" not in text
    assert "&lt;b&gt;&#37;{x}" in text


def test_colours_have_enough_contrast_on_both_pages():
    styles = [*LINES.values(), *LEVELS.values()]
    colours = [*SERIES_COLOURS, *(style.colour for style in styles if style.colour)]
    parts = [list(bytes.fromhex(colour[1:])) for colour in ("#ffffff", "#14171c", *colours)]
    *pages, lights = np.split(luminance(np.array(parts) / 255) + 0.05, [1, 2])
    for page in pages:
        assert (np.maximum(lights, page) / np.minimum(lights, page) >= 3).all()


def test_colours_and_markers_repeat_at_different_lengths():
    assert math.gcd(len(SERIES_COLOURS), len(SERIES_MARKERS)) == 1


def test_norms_are_drawn_by_depth():
    columns = ["site", "first_position_norm", "other_norm"]
    rows = [("blocks.1.hook_resid_pre", 3000.0, 100.0), ("hook_embed", 60.0, 50.0)]
    norms = pd.DataFrame(rows, columns=columns)
    first, others = named_lines(norm_curve(norms))
    assert (list(first.x), list(first.y)) == ([-1, 0], [60, 3000])
    assert list(others.y) == [50, 100]
    assert first.hovertext[1].endswith("position 0 / others: 30.0")


@pytest.mark.parametrize(
    ("norms", "named"),
    [
        ((60, 70), ["50", "100"]),
        ((50, 3000), ["50", "100", "200", "500", "1,000", "2,000", "5,000"]),
        ((0.3, 20_000), ["1", "10", "100", "1,000", "10,000"]),
    ],
    ids=["near", "far", "decades"],
)
def test_the_axis_of_norms_labels_at_least_two_ticks_around_the_values(norms, named):
    columns = ["site", "first_position_norm", "other_norm"]
    rows = pd.DataFrame([("blocks.0.hook_resid_post", norms[1], norms[0])], columns=columns)
    axis = norm_curve(rows).layout.yaxis
    assert list(axis.ticktext) == named
    low, high = (10**end for end in axis.range)
    assert low <= norms[0] < norms[1] <= high


def test_norms_of_other_parts_are_not_joined_to_the_residual_stream():
    sites = [f"blocks.{n}.hook_{part}" for n in range(2) for part in ("attn_out", "resid_post")]
    norms = pd.DataFrame({"site": sites, "first_position_norm": 9.0, "other_norm": [1, 2, 3, 4]})
    lines = {trace.name: list(trace.y) for trace in named_lines(norm_curve(norms))}
    assert lines["all other positions · attn_out"] == [1, 3]
    assert lines["all other positions · residual stream"] == [2, 4]
    assert len(lines) == 4
    zero = norms.iloc[:1].assign(first_position_norm=0.0, other_norm=0.0)
    assert len(named_lines(norm_curve(zero))) == 2


def test_concatenated_sites_are_a_horizontal_line_and_no_point(table, heads):
    joined = heads[heads["site"].str.contains("+", regex=False)]
    figure = layer_curve(pd.concat([table, joined], ignore_index=True))
    (line,) = traces(figure, "concatenated 0.98")
    assert list(line.y) == [0.98, 0.98]
    assert "blocks.1.attn.hook_z + blocks.3.attn.hook_z" in line.hovertext
    assert list(traces(figure, "task")[0].y) == values(table, "task")


def test_labels_of_close_levels_do_not_overlap_and_those_of_equal_levels_are_one(table):
    table.loc[table["target"] == "word_identity", "value"] = 0.506
    notes = labels(layer_curve(table))
    assert notes["majority 0.50"].ay > 3
    assert notes["word identity 0.51"].ay < -3
    table.loc[table["target"] == "word_identity", "value"] = 0.501
    assert "majority, word identity 0.50" in labels(layer_curve(table))


def test_a_single_layer_has_bands_with_a_width(table):
    one = table[table["site"].isin(["", "blocks.2.hook_resid_post"])]
    tested = one[one["target"].eq("task") & one["split"].eq("test") & one["metric"].eq("accuracy")]
    null = tested.assign(metric="p_value", value=0.01, null_low=0.4, null_high=0.6)
    one = pd.concat([one[~one["target"].eq("control")], null], ignore_index=True)
    bands = [trace for trace in layer_curve(one).data if trace.fill]
    assert [trace.legendgroup for trace in bands] == [NULL_BAND, LINES["task"].label]
    for trace, limits in zip(bands, [(0.4, 0.6), (0.921, 0.961)], strict=True):
        assert max(trace.x) - min(trace.x) > 0.1
        assert (min(trace.y), max(trace.y)) == pytest.approx(limits)
    several = [trace for trace in layer_curve(table).data if trace.fill]
    assert all((min(trace.x), max(trace.x)) == (-1, 4) for trace in several)


def test_labels_have_minus_signs_and_round_like_the_sentence(table):
    own = table["target"].eq("task") & table["split"].eq("test") & table["metric"].eq("accuracy")
    table.loc[own, ["value", "ci_low", "ci_high"]] = 0.175, 0.036, 0.438
    assert "chosen: 0.18" in labels(layer_curve(table))
    assert answer(judged(table)).startswith("Worse than chance: 18 % [4, 44]")
    table.loc[own, "value"] = -0.04
    assert "chosen: −0.04" in labels(layer_curve(table))


RUNS = ["last · folds 5", "last · no folds", "mean · folds 5"]


def three_runs():
    """Return three runs; the first and the third have a nested choice, and equal baselines."""
    tables = []
    for run in RUNS:
        table = make_table().assign(run=run)
        table = table[~table["target"].isin(["control", "random_weights"])]
        if "no folds" in run:
            table.loc[table["target"] == "word_identity", "value"] = 0.62
        else:
            nested = row("", HEADLINE, 0.93, run=run)
            table = pd.concat([table, pd.DataFrame([nested])], ignore_index=True)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def of_runs():
    return layer_curve(three_runs())


def test_lines_of_runs_are_labelled_at_their_ends(of_runs):
    assert not of_runs.layout.showlegend
    named = labels(of_runs)
    assert [named[run].arrowcolor for run in RUNS] == list(SERIES_COLOURS[:3])


def test_a_baseline_of_a_single_run_names_what_only_this_run_has(of_runs):
    assert {"majority 0.50", "word identity 0.71", "word identity of no folds 0.62"} < set(
        labels(of_runs)
    )


def test_each_nested_choice_has_the_colour_of_its_run(of_runs):
    nested = [t for t in of_runs.data if (t.name or "").startswith("fold choice")]
    assert [t.line.color for t in nested] == [SERIES_COLOURS[0], SERIES_COLOURS[2]]
    assert len([n for n in of_runs.layout.annotations if "choice" in n.text]) == 2


def test_panels_of_runs_name_the_run_of_each_fold_choice():
    tables = []
    for run, shift in (("a", 0.0), ("b", 0.07)):
        table = make_table().assign(run=run, value=lambda rows, s=shift: rows["value"] - s)
        own = table[~table["target"].isin(["control", "random_weights"])]
        mlp = own[own["site"].str.contains("resid_post")]
        others = mlp.assign(site=mlp["site"].str.replace("hook_resid_post", "hook_mlp_out"))
        nested = pd.DataFrame([row("", HEADLINE, 0.87 - shift, run=run)])
        tables += [own, others, nested]
    named = {trace.name for trace in curve_facets(pd.concat(tables, ignore_index=True)).data}
    texts = set(labels(curve_facets(pd.concat(tables, ignore_index=True))))
    assert {"majority 0.43", "majority 0.50"} <= named
    choices = {text for text in texts if text.startswith("fold choice")}
    assert choices == {"fold choice of b 0.80", "fold choice of a 0.87"}


def test_many_runs_have_no_bands_and_two_have_one_each(of_runs):
    assert not [t for t in of_runs.data if t.fill]
    table = three_runs()
    two = layer_curve(table[table["run"] != RUNS[1]])
    assert len([t for t in two.data if t.fill]) == 2


def test_the_band_of_the_null_contains_those_of_all_runs():
    table = three_runs()
    tested = table[table["target"].eq("task") & table["split"].eq("test")]
    tested = tested[tested["metric"] == "accuracy"].assign(metric="p_value")
    number = tested["run"].map(RUNS.index)
    tested = tested.assign(null_low=0.4 - 0.1 * number, null_high=0.6 + 0.1 * number)
    figure = layer_curve(pd.concat([table, tested], ignore_index=True))
    (band,) = [t for t in figure.data if t.legendgroup == NULL_BAND]
    assert (np.min(band.y), np.max(band.y)) == pytest.approx((0.2, 0.8))


SCORE = ["value", "ci_low", "ci_high"]


def without(table, is_undefined):
    return table.assign(**{name: table[name].mask(is_undefined) for name in SCORE})


@pytest.mark.parametrize("depth", [0, 2, 5])
def test_an_undefined_score_does_not_change_the_axis_of_a_curve(table, depth):
    is_point = table["target"].eq("task") & table["site"].eq(table["site"].unique()[depth])
    whole, figure = layer_curve(table), layer_curve(without(table, is_point))
    assert figure.layout.yaxis.range == whole.layout.yaxis.range
    assert set(labels(figure)) == set(labels(whole))
    (line,) = [trace for trace in figure.data if trace.name == "task"]
    assert labels(figure)["task, 95 &#37; band"].y == line.y[4 if depth == 5 else 5]


def test_an_undefined_score_does_not_change_the_axis_of_panels():
    kinds = four_kinds()
    facets = curve_facets(without(kinds, kinds["layer"].eq(1)))
    assert facets.layout.yaxis.range == curve_facets(kinds).layout.yaxis.range


def test_the_label_of_a_line_starts_at_its_last_defined_point(table):
    figure = layer_curve(without(table, table["target"].eq("task") & table["layer"].isna()))
    leaders = [trace for trace in figure.data if trace.mode == "lines" and len(trace.x) == 2]
    assert [tuple(trace.y) for trace in leaders if trace.x[0] == 3] == [(0.922, 0.922)]


def test_the_ring_of_an_undefined_score_is_left_out(table):
    chosen = table["target"].eq("task") & table["layer"].eq(2) & table["split"].eq("test")
    figure = layer_curve(without(table, chosen))
    assert not [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert "nan" not in str(figure.layout.annotations)


def test_undefined_baselines_have_no_line(table):
    figure = layer_curve(without(table, table["target"].eq("word_identity")))
    assert not [text for text in labels(figure) if "word identity" in text or "nan" in text]


def test_a_curve_of_undefined_scores_is_empty(table, heads):
    figure = layer_curve(without(table, pd.Series(True, table.index)))
    low, high = figure.layout.yaxis.range
    assert (low, high) == (pytest.approx(0.48), pytest.approx(1.02))
    assert set(labels(figure)) == {"chance 0.50"}
    cells, _ = layer_map(without(heads, pd.Series(True, heads.index))).data
    assert (cells.zmin, cells.zmax) == (0.5, 1.0)
    assert np.isnan(np.array(cells.z)).all()


def test_an_undefined_cell_does_not_change_the_colours_of_a_map(heads):
    is_cell = heads["layer"].eq(1) & heads["head"].eq(0) & heads["target"].eq("task")
    whole, figure = layer_map(heads), layer_map(without(heads, is_cell))
    assert (figure.data[0].zmin, figure.data[0].zmax) == (whole.data[0].zmin, whole.data[0].zmax)
    assert figure.data[1].text[0] == ""
    assert colours([math.nan, -0.3, 0.1], "selectivity", math.nan).low == -0.3
    assert colours([math.nan, 0.2, 0.3], "brier", math.nan).low == 0.2


@pytest.mark.parametrize("bars", [[math.nan] * 3, [0.1, math.nan, 0.1]], ids=["none", "some"])
def test_missing_error_bars_do_not_change_the_axis(bars):
    figure = go.Figure()
    error = {"array": bars, "arrayminus": bars}
    figure.add_scatter(x=[0, 1, 2], y=[0.2, 0.6, math.nan], error_y=error, name="a")
    figure.add_scatter(x=[0, 1, 2], y=[0.3, 0.4, 0.5], name="b")
    figure.add_scatter(x=[0, 1, 2], y=[math.nan] * 3, name="c")
    figure.update_traces(mode="lines+markers", line_color="#000000")
    figure.update_xaxes(range=[0, 2])
    name_traces(figure)
    low = 0.2 if math.isnan(bars[0]) else 0.1
    margin = 0.04 * (0.6 - low)
    assert list(figure.layout.yaxis.range) == pytest.approx([low - margin, 0.6 + margin])
    assert {text: note.y for text, note in labels(figure).items()} == {"a": 0.6, "b": 0.5}
