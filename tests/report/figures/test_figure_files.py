"""Exported figures: formats, sizes, and errors if a requirement is missing."""

import pytest

from probekit.errors import ConfigError, MissingError, UnknownNameError
from probekit.report.figures import figure_files
from probekit.report.figures.figure_files import check_engine, read_formats, write_figures
from probekit.report.pages.parts import result_parts

BEGINS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


@pytest.fixture
def engine():
    try:
        check_engine()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("columns", "width"), [(1, 440), (2, 905)])
def test_every_format_is_written_in_the_requested_width(engine, table, tmp_path, columns, width):
    parts = result_parts(table)[:1]
    paths = write_figures(parts, tmp_path, list(BEGINS), columns)
    assert [path.name for path in paths] == [f"accuracy-by-layer.{kind}" for kind in BEGINS]
    for path, begin in zip(paths, BEGINS.values(), strict=True):
        assert path.read_bytes().startswith(begin)
    assert int.from_bytes(paths[0].read_bytes()[16:20]) == 3 * width
    assert f'width="{width}"' in paths[1].read_text()[:300]


@pytest.mark.parametrize("text", ["", " , "])
def test_no_format_is_an_error(text):
    with pytest.raises(ConfigError, match="png,svg,pdf"):
        read_formats(text)


def test_an_unknown_format_is_refused_with_the_nearest_match(capsys):
    with pytest.raises(UnknownNameError, match="svg"):
        read_formats("png,svgg")


def test_without_kaleido_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(figure_files, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"probekit\[png\]"):
        check_engine()


def test_without_a_browser_the_error_says_how_to_install_one(monkeypatch, tmp_path):
    chromium = pytest.importorskip("choreographer.browsers.chromium").Chromium
    monkeypatch.setattr(chromium, "find_browser", classmethod(lambda cls, **how: None))
    with pytest.raises(MissingError, match="apt install chromium"):
        check_engine()
