"""Curves, maps and panels of interventions; their order, titles, captions and sizes."""

import html
import math

import numpy as np
import pandas as pd
import pytest

from probekit.report.causes.cause_figures import (
    MATCHED,
    PERMUTED,
    cause_curve,
    dose_figure,
    dose_panels,
    head_map_of,
    refit_figure,
    refit_panels,
    steepest,
    token_maps,
)
from probekit.report.causes.findings import edit_sets
from probekit.report.figures.figure_files import CENTIMETRE, file_names, on_paper
from probekit.report.figures.line_labels import LABEL
from probekit.report.pages.causes_page import FEW_GROUPS, cause_parts
from probekit.results.causes import CauseTables
from tests.results.causes.made_causes import (
    TOKENS,
    effect_row,
    every_table,
    make_doses,
    make_downstream,
    make_effects,
    make_facts,
    one_head,
    residual,
    write_causes,
)


def sets(effects):
    return {(one.do, one.at, one.measure): one for one in edit_sets(effects)}


def opened(folder, facts=None, **tables):
    return CauseTables.open(write_causes(folder, facts, **tables))


def texts(figure):
    labels = [note.text for note in figure.layout.annotations if note.name == LABEL]
    return [html.unescape(text).replace("<br>", " ").replace("\xa0", " ") for text in labels]


def test_the_curve_has_a_line_with_its_interval_for_each_kind_of_site():
    figure = cause_curve(sets(make_effects())["patch", "probed", "logit_difference"])
    lines = {line.name: line for line in figure.data if line.mode == "lines+markers"}
    assert list(lines) == ["residual stream", "attn_out"]
    assert lines["residual stream"].x == (0, 1, 2, 3, 4, 5)
    np.testing.assert_allclose(lines["residual stream"].y, (np.arange(1, 7) / 6) ** 2)
    assert sum(trace.fill == "toself" for trace in figure.data) == 2
    assert texts(figure) == ["residual stream, 95 % band", "attn_out, 95 % band"]
    assert figure.layout.yaxis.title.text == "recovery"
    low, high = figure.layout.yaxis.range
    assert low < 0 < 1 < high


def test_many_lines_have_error_bars_and_the_colour_of_the_stream_is_the_first():
    parts = ("hook_mlp_out", "hook_resid_mid", "hook_attn_out", "hook_resid_post")
    rows = [
        effect_row({"site": f"blocks.{n}.{part}", "layer": n, "head": None}, 0.1 * n)
        for part in parts
        for n in range(3)
    ]
    figure = cause_curve(next(edit_sets(pd.DataFrame(rows))))
    lines = [line for line in figure.data if line.mode == "lines+markers"]
    assert lines[0].name == "residual stream"
    assert all(line.error_y.array == pytest.approx([0.05] * 3) for line in lines)
    assert len({line.line.color for line in lines}) == 4


def test_effects_replace_a_recovery_that_is_undefined():
    effects = make_effects()
    undefined = effects.assign(recovery=math.nan, recovery_low=math.nan, recovery_high=math.nan)
    one = sets(undefined)["patch", "probed", "logit_difference"]
    figure = cause_curve(one)
    assert figure.layout.yaxis.title.text == "change of logit difference (logits)"
    assert min(one.rows["value"]) == -4


def test_the_layer_axis_is_that_of_the_run():
    one = sets(make_effects(3))["patch", "probed", "logit_difference"]
    layers = {-1: "embed", 0: "0", 1: "1", 2: "2", 3: "final norm"}
    assert cause_curve(one, layers).layout.xaxis.tickvals == (-1, 0, 1, 2, 3)
    # The run probed blocks 0 and 1 only, so that its final norm is where the edits have block 2.
    shorter = {0: "0", 1: "1", 2: "final norm"}
    assert cause_curve(one, shorter).layout.xaxis.ticktext == ("0", "1", "2")


def test_a_single_site_is_drawn():
    one = next(edit_sets(pd.DataFrame([effect_row(residual(3), 0.066)])))
    figure = cause_curve(one)
    assert [line.y for line in figure.data if line.mode == "lines+markers"] == [(0.066,)]


def test_the_map_of_tokens_names_them_and_marks_those_that_differ(tmp_path):
    tables = opened(tmp_path, effects=make_effects())
    one = sets(tables.effects)["patch", "each", "logit_difference"]
    ((part, figure),) = token_maps(one, tables.record)
    assert part == "residual stream"
    heat = figure.data[0]
    assert np.shape(heat.z) == (6, len(TOKENS))
    assert heat.z[0][2] == pytest.approx(35 / 36)
    assert heat.zmin == -heat.zmax == -1
    assert figure.layout.xaxis.ticktext[1:3] == ("␣old", "<i>␣doctors</i>")
    assert "position 2 (␣doctors)" in heat.hovertext[0][2]


def test_without_tokens_of_all_texts_the_map_has_positions(tmp_path):
    tables = opened(tmp_path, make_facts(tokens=(), same_tokens=()), effects=make_effects())
    one = sets(tables.effects)["patch", "each", "logit_difference"]
    ((_, figure),) = token_maps(one, tables.record)
    assert figure.layout.xaxis.ticktext == tuple("0123456")
    assert figure.layout.xaxis.title.text == "position"


def test_of_144_heads_the_map_of_tokens_has_the_strongest(tmp_path):
    rows = [
        effect_row(one_head(layer, head), (layer * 12 + head) / 200, at="each", position=position)
        for layer in range(12)
        for head in range(12)
        for position in range(2)
    ]
    tables = opened(tmp_path, effects=pd.DataFrame(rows))
    ((part, figure),) = token_maps(next(edit_sets(tables.effects)), tables.record)
    assert part == "attn.z heads"
    assert figure.layout.yaxis.ticktext[0] == "L10H4"
    assert figure.layout.yaxis.ticktext[-1] == "L11H11"
    assert len(figure.data[0].z) == 20


@pytest.mark.parametrize(("layers", "heads", "has_numbers"), [(12, 12, True), (48, 25, False)])
def test_the_map_of_heads_frames_the_largest(layers, heads, has_numbers):
    one = sets(make_effects(layers, heads))["patch", "probed", "logit_difference"]
    figure = head_map_of(one, "attn.z")
    heat = np.array(figure.data[0].z)
    assert heat.shape == (layers, heads)
    row, column = divmod(int(np.abs(heat).argmax()), heads)
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].y0) == (column - 0.5, row - 0.5)
    assert any(trace.mode == "text" for trace in figure.data[1:]) is has_numbers


def test_heads_that_were_not_edited_are_empty_cells():
    rows = [effect_row(one_head(0, 0), 0.3), effect_row(one_head(2, 5), -0.1)]
    figure = head_map_of(next(edit_sets(pd.DataFrame(rows))), "attn.z")
    assert np.isnan(np.array(figure.data[0].z, dtype=float)).sum() == 2
    assert figure.layout.yaxis.ticktext == ("0", "2")
    assert figure.layout.xaxis.ticktext == ("0", "5")


def test_dose_response_passes_through_no_edit_between_its_control_bands(tmp_path):
    ((key, panels),) = dose_panels(opened(tmp_path, doses=make_doses(2, used=(1,))))
    assert key == ("probe", "probed")
    assert [title for title, _ in panels] == ["block 0", "block 1"]
    figure = dose_figure(panels)
    line = [trace for trace in figure.data if trace.mode == "lines+markers"][1]
    assert line.x == (-4, -2, 0, 2, 4)
    assert line.y == pytest.approx((-3.28, -1.64, 0, 1.64, 3.28))
    names = [trace.name for trace in figure.data]
    assert names.count(PERMUTED) == 2
    assert names.count(MATCHED) == 4
    labels = " ".join(texts(figure))
    assert "permuted labels, tested" in labels
    assert "not tested" in labels
    assert figure.layout.yaxis.title.text is None
    assert any(note.text == "change (logits)" for note in figure.layout.annotations)


def test_bands_that_are_not_tested_do_not_hide_the_effects(tmp_path):
    doses = make_doses(2, used=(1,)).assign(matched_low=-500.0, matched_high=700.0)
    ((_, panels),) = dose_panels(opened(tmp_path, doses=doses))
    figure = dose_figure(panels)
    low, high = figure.layout.yaxis.range
    assert -8 < low < -4 < 4 < high < 8
    labels = [note for note in figure.layout.annotations if note.name == LABEL]
    assert len(labels) == 3
    assert all(low <= note.y <= high for note in labels)
    # The leader begins where the line leaves the range, not at its end outside.
    (y,) = {note.y for note in labels if "covariance" in note.text}
    leaders = [one for one in figure.data if one.y == (y, y)]
    assert [one.x[0] for one in leaders] == [pytest.approx(2 * y / 700)]


def test_a_direction_without_draws_has_no_bands(tmp_path):
    bands = ["null_low", "null_high", "matched_low", "matched_high"]
    doses = make_doses(1).assign(**dict.fromkeys(bands))
    ((_, panels),) = dose_panels(opened(tmp_path, doses=doses))
    names = {trace.name for trace in dose_figure(panels).data}
    assert not {PERMUTED, MATCHED} & names


def test_of_many_directions_the_steepest_have_panels(tmp_path):
    ((_, panels),) = dose_panels(opened(tmp_path, doses=make_doses(48, used=(3, 40))))
    shown = [title for title, _ in steepest(panels)]
    assert len(shown) == 9
    assert {"block 3", "block 40"} <= set(shown)


def test_refitted_probes_have_a_panel_for_each_erased_site(tmp_path):
    tables = opened(tmp_path, downstream=make_downstream(erased=(2, 3)))
    ((key, panels),) = refit_panels(tables)
    assert key == ("leace", "probed")
    assert [title for title, _ in panels] == ["erased at block 2", "erased at block 3"]
    figure = refit_figure(panels, {0: "0", 1: "1"})
    after = [trace for trace in figure.data if trace.name == "after erasure"]
    assert after[0].x == (2, 3, 4, 5)
    assert after[0].y == pytest.approx((0.5, 0.58, 0.66, 0.74))
    assert figure.layout.xaxis.tickvals[0] == 0
    assert {"before erasure", "after erasure", "chance 0.50"} <= set(texts(figure))


def test_empty_tables_have_no_figures(tmp_path):
    tables = opened(tmp_path, **{name: own.head(0) for name, own in every_table().items()})
    assert list(edit_sets(tables.effects)) == []
    assert list(dose_panels(tables)) == list(refit_panels(tables)) == []


@pytest.fixture
def parts_of(tmp_path):
    """A function that returns the figures of tables."""
    return lambda **tables: cause_parts(CauseTables.open(write_causes(tmp_path, **tables)))


@pytest.fixture(scope="module")
def all_parts(tmp_path_factory):
    """The figures of all four tables."""
    folder = write_causes(tmp_path_factory.mktemp("all"), **every_table())
    return cause_parts(CauseTables.open(folder))


def test_the_first_figure_of_each_kind_is_open(parts_of):
    parts = parts_of(**every_table(effects=make_effects(measures=("logit_difference", "kl"))))
    assert [part.title for part in parts if part.is_open] == [
        "Recovery by layer · patches at the last token",
        "Recovery by layer and token · residual stream, patches",
        "Recovery by layer and head · attn.z, patches at the last token",
        "Dose-response · probe, at the last token",
        "Accuracy after erasure · LEACE, at the last token",
    ]
    folded = [part.title for part in parts if not part.is_open]
    assert "Recovery by layer · patches at all tokens" in folded
    assert "Recovery of KL divergence by layer · patches at the last token" in folded
    assert "Change of logit difference by layer · mean ablation at the last token" in folded


def test_file_names_of_figures_are_short_and_unique(all_parts):
    titles = [part.title for part in all_parts]
    names = file_names(titles)
    assert len(set(names)) == len(titles) == 7
    assert names[0] == "recovery-by-layer-patches-at-the-last-token"


def test_captions_have_replacement_measure_size_and_controls(all_parts):
    for part in all_parts:
        assert "n = 432 texts in 30 groups" in part.caption, part.title
        assert "Control" in part.caption, part.title
        assert "eplace" in part.caption or "added along the direction" in part.caption, part.title
        unit = "share" if part.title.startswith("Accuracy") else "logits"
        assert f"({unit}" in part.caption, part.title
        assert part.description.endswith("."), part.title


def test_the_caption_of_a_curve(all_parts):
    assert all_parts[0].caption == (
        "Replacement: activations of the counterfactual text, at the last token. Recovery of the "
        "logit difference (logits; column verb against column other_verb): share of the difference "
        "between the counterfactual and the unedited text. n = 432 texts in 30 groups. Control: "
        "the unedited text; smallest p = 0.002, adjusted for 84 edits. "
        f"{FEW_GROUPS} Bands or bars: 95 % intervals over groups. Single heads of attn.z have a "
        "map of their own."
    )


@pytest.mark.parametrize(("groups", "is_caveat"), [(49, True), (50, False)])
def test_few_groups_are_a_caveat_of_the_tests_of_patches(parts_of, groups, is_caveat):
    part, *_ = parts_of(effects=make_effects(2, 2).assign(groups=groups))
    assert (" With fewer than 50 groups, skewed effects can" in part.caption) is is_caveat


def test_the_caption_of_doses_has_the_loss_on_other_texts_and_the_choice_of_sites(parts_of):
    (part,) = parts_of(doses=make_doses(12))
    assert "Change of the loss on other texts: at most 0.050 [0.030, 0.070] nats" in part.caption
    assert "95 % of 999 directions on permuted labels" in part.caption
    assert part.caption.endswith("The 9 of 12 sites with the largest effects.")
    assert "towards plural" in part.caption


def test_methods_of_directions_have_figures_of_their_own(parts_of):
    parts = parts_of(doses=make_doses(2, along=("probe", "mean_difference")))
    assert [(part.title, part.is_open) for part in parts] == [
        ("Dose-response · probe, at the last token", True),
        ("Dose-response · mean difference, at the last token", False),
    ]


def test_maps_of_many_layers_have_lower_rows(parts_of):
    small, large = parts_of(effects=make_effects(12, 12)), parts_of(effects=make_effects(48, 25))
    heads = [next(p for p in parts if "head ·" in p.title) for parts in (small, large)]
    assert heads[0].height == pytest.approx(28)
    assert heads[1].height == pytest.approx(53.2)


def test_no_figure_of_one_column_is_higher_than_6_cm(all_parts):
    for part in all_parts:
        _, size = on_paper(part, 1)
        assert size["height"] / CENTIMETRE <= 6


def test_on_paper_every_token_is_named(parts_of):
    tokens = tuple(f" token{n}" for n in range(16))
    part = parts_of(effects=make_effects(tokens=tokens))[1]
    figure, _ = on_paper(part, 1)
    assert "" not in figure.layout.xaxis.ticktext
