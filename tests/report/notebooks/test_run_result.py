"""The result of a run in Python."""

import base64
import json
import re
import struct

import pytest

from probekit.report.notebooks.run_result import PLOTLY_TYPE, RunResult, open_run
from probekit.report.pages.run_page import run_figures, write_report
from tests.report.conftest import make_heads, make_table
from tests.stored import portable


@pytest.fixture
def result(make_run):
    return open_run(make_run())


def test_answer_warnings_figures_and_tables_are_those_of_page_and_files(result, table, record):
    assert result.report is None
    assert result.figures == tuple(part.title for part in run_figures(result.folder))
    page = write_report(result.folder).read_text("utf-8").replace("\xa0", " ")
    assert result.report == result.folder / "report.html"
    assert result.warnings
    for sentence in (result.answer, *(one.partition(": ")[2] for one in result.warnings)):
        assert sentence in page
    assert result.results == result.folder / "results.csv"
    assert result.table["value"].tolist() == table["value"].tolist()
    assert result.record["key"] == record["key"]


def test_a_result_reads_nothing_before_it_is_needed(make_run, tmp_path, refused):
    refused(open_run, tmp_path / "missing")
    result = RunResult(tmp_path / "later")
    refused(getattr, result, "answer")
    (tmp_path / "later").symlink_to(make_run())
    assert result.answer


@pytest.mark.parametrize("make", [make_table, make_heads])
def test_text_and_html_show_answer_first_figure_and_warnings(make, make_run, tmp_path, snapshot):
    result = open_run(make_run(make()))
    shown = [repr(result), result._repr_html_(), repr(result.figure())]
    assert portable("\n\n".join(shown), tmp_path) == snapshot
    for text in (" ".join(shown[0].split()), shown[1].replace("\xa0", " ")):
        assert result.answer in text
    assert max(map(len, shown[0].splitlines()[:-2])) <= 100
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", shown[1])


def test_hostile_texts_stay_text(make_run, record, hostile):
    record |= {"question": hostile, "run": hostile}
    shown = open_run(make_run(record=record))._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown


def test_figures_are_found_by_title_or_file_name(result, refused):
    assert result.figure().title_text == result.figures[0] == "Accuracy by layer"
    assert result.figure("ACCURACY by layer") == result.figure("accuracy-by-layer")
    assert result.figure("norm of position 0").title_text == "Norm of position 0"
    refused(result.figure, "acuracy by layer")
    refused(result.figure, 3)


def test_a_figure_is_shown_by_plotly_or_as_a_picture_or_as_text(result, tmp_path, refused):
    figure = result.figure().update_layout(height=300)
    bundle = figure._repr_mimebundle_()
    assert json.dumps(bundle[PLOTLY_TYPE])
    assert bundle["text/plain"] == repr(figure)
    assert struct.unpack(">II", base64.b64decode(bundle["image/png"])[16:24]) == (760, 300)
    figure.write_image(tmp_path / "figure.pdf", width=400)
    assert b"MediaBox [ 0 0 300 225 ]" in (tmp_path / "figure.pdf").read_bytes()
    refused(figure.write_image, "figure.jpg")


def test_a_notebook_shows_the_answer_and_then_the_curve(result, monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", lambda one, **options: shown.append(one))
    result._ipython_display_()
    texts = {"text/html": result._repr_html_(), "text/plain": repr(result)}
    assert shown == [texts, result.figure()]
