"""The result of a run in Python."""

import base64
import json
import re
import struct

import pytest

from probekit.errors import MissingError, UnknownNameError
from probekit.report.notebooks import run_result
from probekit.report.notebooks.run_result import PLOTLY_TYPE, RunResult, open_run
from probekit.report.pages.run_page import run_figures, write_report


@pytest.fixture
def result(make_run):
    return open_run(make_run())


def test_answer_and_warnings_are_those_of_the_page(result):
    assert result.report is None
    page = write_report(result.folder).read_text("utf-8").replace("\xa0", " ")
    assert result.report == result.folder / "report.html"
    assert result.answer in page
    assert result.warnings
    for sentence in result.warnings:
        assert sentence in page


def test_table_and_record_are_those_of_the_files(result, table, record):
    assert result.results == result.folder / "results.csv"
    assert len(result.table) == len(table)
    assert result.table["value"].tolist() == table["value"].tolist()
    assert result.record["key"] == record["key"]


def test_a_result_reads_nothing_before_it_is_needed(make_run, tmp_path):
    with pytest.raises(MissingError, match="missing does not exist"):
        open_run(tmp_path / "missing")
    result = RunResult(tmp_path / "later")
    with pytest.raises(MissingError):
        _ = result.answer
    (tmp_path / "later").symlink_to(make_run())
    assert result.answer


def test_the_text_has_about_ten_lines(result):
    text = repr(result)
    lines = text.splitlines()
    assert 5 <= len(lines) <= 14
    assert len(text) < 1500
    assert max(map(len, lines)) <= 100
    assert result.answer in " ".join(text.split())
    at = lines.index("Accuracy by layer:")
    ticks, values = lines[at + 1].split(), lines[at + 2].split()
    assert (ticks[0], values[0]) == ("embed", "0.71")
    assert [lines[at + n].rstrip()[-1:] != " " for n in (1, 2)] == [True, True]
    assert "control task none" not in text
    assert "warning" in text
    assert str(result.folder) in text


def test_the_html_shows_answer_and_warnings_without_scripts(result):
    shown = result._repr_html_().replace("\xa0", " ")
    assert len(shown) < 60_000
    assert result.answer in shown
    for sentence in result.warnings:
        assert sentence in shown
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", shown)


def test_hostile_texts_stay_text(make_run, record, hostile):
    record |= {"question": hostile, "run": hostile}
    shown = open_run(make_run(record=record))._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown


def test_figures_are_those_of_the_page_by_title_or_file_name(result):
    titles = tuple(part.title for part in run_figures(result.folder))
    assert result.figures == titles
    assert result.figure().title_text == titles[0] == "Accuracy by layer"
    by_title, by_file = result.figure("ACCURACY by layer"), result.figure("accuracy-by-layer")
    assert by_title == by_file
    assert result.figure("norm of position 0").title_text == "Norm of position 0"
    with pytest.raises(UnknownNameError, match=r"no figure 'acuracy by layer'\. Nearest: Acc"):
        result.figure("acuracy by layer")
    with pytest.raises(UnknownNameError, match=r"by its name, not 3\. Allowed: "):
        result.figure(3)


def test_a_figure_is_shown_by_plotly_or_as_a_picture_or_as_text(result, monkeypatch):
    figure = result.figure().update_layout(height=300)
    bundle = figure._repr_mimebundle_()
    assert json.dumps(bundle[PLOTLY_TYPE])
    assert bundle["text/plain"].startswith("Accuracy by layer. accuracy by layer. task:")
    if "image/png" in bundle:  # kaleido and Chromium are installed
        png = base64.b64decode(bundle["image/png"])
        assert struct.unpack(">II", png[16:24]) == (760, 300)

    def missing():
        raise MissingError("no kaleido")

    monkeypatch.setattr(run_result, "check_engine", missing)
    assert set(figure._repr_mimebundle_()) == {PLOTLY_TYPE, "text/plain"}


def test_a_notebook_shows_the_answer_and_then_the_curve(result, monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", lambda one, **options: shown.append(one))
    result._ipython_display_()
    card, curve = shown
    assert card == {"text/html": result._repr_html_(), "text/plain": repr(result)}
    assert curve == result.figure()


def test_a_run_over_heads_shows_its_map(make_run, heads):
    result = open_run(make_run(heads))
    assert "by layer and head" in result.figure().title_text
    assert result.answer in " ".join(repr(result).split())
