"""Curves, maps and panels of interventions; their order, titles, captions and sizes."""

import math

import numpy as np
import pandas as pd
import pytest

from probekit.report.causes.cause_figures import (
    cause_curve,
    dose_figure,
    dose_panels,
    head_map_of,
    refit_figure,
    refit_panels,
    steepest,
    token_maps,
)
from probekit.report.figures.figure_files import INCH, Paper, file_names, on_paper
from probekit.report.pages.causes_page import cause_parts
from probekit.results.cause_verdict import edit_sets
from probekit.results.causes import CauseTables
from tests.results.causes.made_causes import (
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
from tests.stored import drawn

EFFECTS = make_effects()
RECOVERY = ("recovery", "recovery_low", "recovery_high")
BANDS = ("null_low", "null_high", "matched_low", "matched_high")
PARTS = ("hook_mlp_out", "hook_resid_mid", "hook_attn_out", "hook_resid_post")


def opened(folder, **tables):
    return CauseTables.open(write_causes(folder, **tables))


def edits(effects, at="probed"):
    """Return the first set of edits at this position."""
    return next(one for one in edit_sets(effects) if one.at == at)


def rows(*effects):
    return edits(pd.DataFrame(effects))


CURVES = {
    "has a line with its interval for each kind of site": lambda: cause_curve(edits(EFFECTS)),
    "has error bars for many lines, and the first colour for the stream": lambda: cause_curve(
        rows(
            *(
                effect_row({"site": f"blocks.{n}.{part}", "layer": n, "head": None}, 0.1 * n)
                for part in PARTS
                for n in range(3)
            )
        )
    ),
    "has effects in place of a recovery that is undefined": lambda: cause_curve(
        edits(EFFECTS.assign(**dict.fromkeys(RECOVERY, math.nan)))
    ),
    "has the layers of the run": lambda: cause_curve(
        edits(make_effects(3)), {-1: "embed", 0: "0", 1: "1", 2: "2", 3: "final norm"}
    ),
    # The run probed blocks 0 and 1 only, so that its final norm is where the edits have block 2.
    "has its own layers where the run has fewer": lambda: cause_curve(
        edits(make_effects(3)), {0: "0", 1: "1", 2: "final norm"}
    ),
    "is drawn for a single site": lambda: cause_curve(rows(effect_row(residual(3), 0.066))),
    "is a map of heads with the largest framed": lambda: head_map_of(edits(EFFECTS), "attn.z"),
    "is a map with empty cells for heads that were not edited": lambda: head_map_of(
        rows(effect_row(one_head(0, 0), 0.3), effect_row(one_head(2, 5), -0.1)), "attn.z"
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_figure_of_edits(name, snapshot):
    assert drawn(CURVES[name]()) == snapshot


@pytest.mark.parametrize(
    ("facts", "effects"),
    [
        (make_facts(), EFFECTS),
        (make_facts(tokens=(), same_tokens=()), EFFECTS),
        (
            make_facts(),
            pd.DataFrame(
                effect_row(one_head(layer, head), (layer * 12 + head) / 200, at="each", position=n)
                for layer in range(12)
                for head in range(12)
                for n in range(2)
            ),
        ),
    ],
    ids=["the tokens, with those that differ in italics", "positions", "the 20 strongest heads"],
)
def test_the_map_of_tokens_has(facts, effects, tmp_path, snapshot):
    tables = opened(tmp_path, facts=facts, effects=effects)
    ((part, _, figure),) = token_maps(edits(tables.effects, "each"), tables.record)
    assert f"{part}\n{drawn(figure)}" == snapshot


@pytest.mark.parametrize(
    "doses",
    [
        make_doses(2, used=(1,)),
        make_doses(2, used=(1,)).assign(matched_low=-500.0, matched_high=700.0),
        make_doses(1).assign(**dict.fromkeys(BANDS)),
    ],
    ids=["0 without an edit and bands", "effects that wide bands do not hide", "no bands"],
)
def test_the_dose_response_has(doses, tmp_path, snapshot):
    ((*key, panels),) = dose_panels(opened(tmp_path, doses=doses))
    assert f"{tuple(key)}\n{drawn(dose_figure(panels))}" == snapshot


def test_of_many_directions_the_steepest_have_panels(tmp_path):
    ((*_, panels),) = dose_panels(opened(tmp_path, doses=make_doses(48, used=(3, 40))))
    shown = [title for title, _ in steepest(panels)]
    assert len(shown) == 9
    assert {"block 3", "block 40"} <= set(shown)


def test_refitted_probes_have_a_panel_for_each_erased_site(tmp_path, snapshot):
    ((*key, panels),) = refit_panels(opened(tmp_path, downstream=make_downstream(erased=(2, 3))))
    assert f"{tuple(key)}\n{drawn(refit_figure(panels, {0: '0', 1: '1'}))}" == snapshot


def test_empty_tables_have_no_figures(tmp_path):
    tables = opened(tmp_path, **{name: own.head(0) for name, own in every_table().items()})
    assert list(edit_sets(tables.effects)) == []
    assert list(dose_panels(tables)) == list(refit_panels(tables)) == []


@pytest.fixture
def parts_of(tmp_path):
    """A function that returns the figures of tables."""
    return lambda **tables: cause_parts(opened(tmp_path, **tables))


@pytest.mark.parametrize(
    "tables",
    [
        every_table(effects=make_effects(measures=("logit_difference", "kl"))),
        {"doses": make_doses(2, along=("probe", "mean_difference"))},
        {"doses": make_doses(12)},
    ],
    ids=["all tables, the first of each kind open", "each method", "the 9 of 12 largest"],
)
def test_figures_have_titles_file_names_and_captions(tables, parts_of, snapshot):
    parts = parts_of(**tables)
    names = file_names([part.title for part in parts])
    assert len(set(names)) == len(names)
    assert snapshot == "\n\n".join(
        f"{part.title} ({'open' if part.is_open else 'folded'}, {name})\n{part.caption}\n"
        f"{part.description}"
        for name, part in zip(names, parts, strict=True)
    )


@pytest.mark.parametrize(
    ("layers", "heads", "has_numbers", "height"), [(12, 12, True, 28), (48, 25, False, 53.2)]
)
def test_the_map_of_heads_frames_the_largest(parts_of, layers, heads, has_numbers, height):
    """Above it, rows are lower."""
    parts = parts_of(effects=make_effects(layers, heads))
    (part,) = [part for part in parts if "head ·" in part.title]
    (cells, *others), (frame, *_) = part.figure["data"], part.figure["layout"]["shapes"]
    row, column = np.unravel_index(np.abs(np.array(cells["z"])).argmax(), (layers, heads))
    assert (frame["x0"], frame["y0"]) == (column - 0.5, row - 0.5)
    assert any(trace.get("mode") == "text" for trace in others) is has_numbers
    assert part.height == pytest.approx(height)


def test_figures_for_one_column_of_a_paper_are_at_most_6_cm_high_and_name_every_token(parts_of):
    effects = make_effects(tokens=tuple(f" token{n}" for n in range(16)))
    parts = parts_of(**every_table(effects=effects))
    assert max(Paper(1).size(part)[1] for part in parts) / INCH * 2.54 <= 6.001
    assert "" not in on_paper(parts[1], Paper(1))["layout"]["xaxis"]["ticktext"]
