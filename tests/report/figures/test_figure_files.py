"""Exported figures: formats, sizes, and errors if a requirement is missing."""

import math
import re
import struct

import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError, UnknownNameError
from probekit.report.figures import figure_files
from probekit.report.figures.figure_files import Paper, on_paper
from probekit.report.figures.line_labels import LABEL
from probekit.report.pages.parts import result_parts
from probekit.results.network import AttentionPrompt
from probekit.results.scores import Scores
from tests.report.conftest import causal_patterns, four_kinds, judged, make_heads, make_sweep

BEGINS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def centimetres(path):
    """Return width and height of a figure as a program places it on paper."""
    content = path.read_bytes()
    if path.suffix == ".png":
        at = content.index(b"pHYs") + 4
        sizes = struct.unpack(">II", content[16:24])
        per_metre = struct.unpack(">II", content[at : at + 8])
        return [100 * size / n for size, n in zip(sizes, per_metre, strict=True)]
    pattern, per_inch = {
        ".svg": (rb'width="([\d.]+)pt" height="([\d.]+)pt"', 72),
        ".pdf": (rb"MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", 72),
    }[path.suffix]
    return [float(size) / per_inch * 2.54 for size in re.search(pattern, content).groups()]


def points(path):
    """Return the sizes of all texts of an SVG file in points."""
    text = path.read_text("utf-8")
    scale = centimetres(path)[0] / 2.54 * 72 / float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
    return {float(size) * scale for size in re.findall(r"font-size: ([\d.]+)px", text)}


@pytest.mark.parametrize(
    ("columns", "width", "height"),
    [pytest.param(1, 8.5, 6.0, marks=pytest.mark.nightly), (2, 18.0, 9.0)],
)
def test_every_format_has_the_size_of_columns(table, tmp_path, columns, width, height):
    part = next(result_parts(Scores.of(table), judged(table)))
    paths = figure_files.write_figures([part], tmp_path, list(BEGINS), Paper(columns))
    assert [path.name for path in paths] == [f"accuracy-by-layer.{kind}" for kind in BEGINS]
    for path, begin in zip(paths, BEGINS.values(), strict=True):
        assert path.read_bytes().startswith(begin)
        assert centimetres(path) == pytest.approx([width, height], abs=0.03)
        assert centimetres(path)[1] <= height + 0.001  # PDF pages have whole pixels
    sizes = points(paths[1])
    assert len(sizes) > 1
    assert all(7 <= size <= 8 for size in sizes), sizes


def prompt_of(patterns):
    return AttentionPrompt("text", tuple(f" word{n}" for n in range(patterns.shape[-1])), patterns)


def test_heads_are_written_as_wide_as_a_column_and_without_bitmaps(call, tmp_path):
    text = "The keys to the old cabinet"
    for kind, begin in BEGINS.items():
        path = tmp_path / f"head.{kind}"
        how = ("--model", "mini", "--text", text, "--head", "5.2", "--out", path)
        assert call("attention", *how).stdout == f"{path}\n"
        assert path.read_bytes().startswith(begin)
        assert centimetres(path) == pytest.approx([8.5, 6.0], abs=0.03)
    assert all(6.99 <= size <= 8.01 for size in points(tmp_path / "head.svg"))
    assert "<image" not in (tmp_path / "head.svg").read_text()
    pdf = (tmp_path / "head.pdf").read_bytes()
    assert b"/Subtype /Image" not in pdf
    assert b"/FontFile2" in pdf  # TrueType, whose texts editors can change
    assert "<text" in (tmp_path / "head.svg").read_text()


@pytest.mark.parametrize(("n_heads", "rows"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (12, 4)])
@pytest.mark.parametrize("n_tokens", [2, 8, 40])
def test_maps_of_heads_are_square_and_their_labels_fit(n_heads, rows, n_tokens):
    prompt = prompt_of(causal_patterns(n_tokens)[:1, :1].repeat(n_heads, axis=1))
    figure = figure_files.draw_heads(prompt, [(0, head) for head in range(n_heads)])
    layout, axes = figure.layout, [*figure.select_xaxes()]
    width = layout.width - layout.margin.l - layout.margin.r
    height = layout.height - layout.margin.t - layout.margin.b
    assert layout.height / 96 * 2.54 <= 6.001 * rows
    assert len({axis.domain for axis in figure.select_yaxes()}) == rows
    for x, y in zip(axes, figure.select_yaxes(), strict=True):
        side = width * (x.domain[1] - x.domain[0])
        assert side == pytest.approx(height * (y.domain[1] - y.domain[0]))
        assert side / len(x.ticktext) >= figure_files.LEAST_TOKEN * 0.99  # labels do not overlap
    named = [axis for axis in axes if axis.showticklabels]
    assert len(named) == math.ceil(n_heads / rows)  # below the lowest maps only


@pytest.mark.parametrize("make", [four_kinds, make_sweep, make_heads])
def test_no_figure_of_one_column_is_higher_than_6_cm(make):
    table = make()
    for part in result_parts(Scores.of(table), judged(table)):
        assert Paper(1).size(part)[1] / figure_files.INCH * 2.54 <= 6.001


def test_sizes_in_inches_replace_those_of_columns(table):
    part = next(result_parts(Scores.of(table), judged(table)))
    for paper, inches in (
        (Paper(width=3.25), (3.25, 2.4375)),
        (Paper(width=5, height=4), (5, 4)),
        (Paper(1, height=2), (8.5 / 2.54, 2)),
    ):
        assert [one / figure_files.INCH for one in paper.size(part)] == pytest.approx(inches)


def test_names_are_replaced_wherever_they_are(table, tmp_path):
    part = next(result_parts(Scores.of(table), judged(table)))
    names = (("task", "number"), ("random weights", "untrained"), ("accuracy", "score"))
    figure = on_paper(part, Paper(names=names))
    assert {one.get("name") for one in figure["data"]} >= {"number", "untrained", "control number"}
    texts = [note["text"].replace("\u00a0", " ") for note in figure["layout"]["annotations"]]
    assert {"number, 95 &#37; band", "untrained"} <= set(texts)
    assert figure["layout"]["yaxis"]["title"]["text"] == "score"
    paper = Paper(names=(("random weight's", "untrained"),))
    with pytest.raises(UnknownNameError, match="Nearest: random weights"):
        figure_files.write_figures([part], tmp_path, ["svg"], paper)
    assert not list(tmp_path.iterdir())


def test_further_figures_are_next_to_the_first(tmp_path):
    table = make_heads()
    parts = list(result_parts(Scores.of(table), judged(table)))
    paths = figure_files.write_pictures(parts, tmp_path / "a.svg", Paper(1))
    assert [one.stem for one in paths[:2]] == ["a", "a-selectivity-by-layer-and-head-attn-z"]
    assert sorted(paths) == sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match="no figure"):
        figure_files.write_pictures([], tmp_path / "b.svg", Paper())


def test_labels_of_lines_are_placed_for_the_height_of_the_paper(table):
    table.loc[table["target"] == "random_weights", "value"] = 0.74
    part = next(result_parts(Scores.of(table), judged(table)))
    moved = []
    for columns in (1, 2):
        notes = on_paper(part, Paper(columns))["layout"]["annotations"]
        moved.append(sum(abs(note["ay"]) for note in notes if note.get("name") == LABEL))
    assert moved[0] > moved[1]


def test_numbers_of_maps_are_left_out_where_cells_are_too_small(tmp_path):
    heads = make_heads()
    many = [heads[heads["head"] == 0].assign(head=float(head)) for head in range(16)]
    few, many = (
        next(result_parts(Scores.of(own), judged(own)))
        for own in (heads, pd.concat(many, ignore_index=True))
    )
    for part, columns, has_numbers in ((few, 1, True), (many, 1, False), (many, 2, True)):
        (path,) = figure_files.write_figures([part], tmp_path, ["svg"], Paper(columns))
        numbers = re.findall(r">0\.\d\d</text>", path.read_text())
        assert (len(numbers) > 6) == has_numbers or (part is few and numbers)


# No stored texts: this file has a test of the night, whose run would call them unused.
@pytest.mark.parametrize(
    ("text", "message"), [("", "png,svg,pdf"), (" , ", "png,svg,pdf"), ("png,svgg", "Nearest: svg")]
)
def test_no_format_and_unknown_formats_are_refused(text, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        figure_files.read_formats(text)
