"""Progress in notebooks and in files."""

from types import SimpleNamespace

import pytest

from probekit.progress import NotebookBars, ProgressLines, shown_progress
from probekit.terminal import SILENT, SilentWatcher

EVIL = "step \x1b[2J <b>"


def test_lines_are_written_at_the_end_of_a_step(capsys):
    with shown_progress() as watcher:
        assert isinstance(watcher, ProgressLines)
        for done in range(1, 4):
            watcher.progress(EVIL, done, 3)
        watcher.progress(EVIL, 3, 3)
        watcher.tell("\x1b]0;owned")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "step <U+001B>[2J <b>: 3 of 3\n<U+001B>]0;owned\n"


def test_progress_is_turned_off_or_received_by_a_watcher(capsys):
    with shown_progress(progress=False) as watcher:
        watcher.progress("step", 1, 1)
        watcher.tell("message")
    own = SilentWatcher()
    with shown_progress(own) as watcher:
        assert watcher is own
    with shown_progress(own, progress=False) as watcher:
        assert watcher in (own, SILENT)
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def pictures(monkeypatch):
    """The pictures that a notebook displays."""
    pytest.importorskip("IPython")
    pictures = []

    def display(bars, **_):
        pictures.append(bars._repr_html_())
        return SimpleNamespace(update=display)

    monkeypatch.setattr("IPython.display.display", display)
    return pictures


def test_bars_of_a_notebook_become_one_line(pictures):
    NotebookBars().end()
    assert pictures == []  # nothing is drawn without progress
    bars = NotebookBars()
    bars.progress(EVIL, 1, 4)
    for _ in range(500):
        bars.progress(EVIL, 2, 4)  # too often to be drawn each time
    assert len(pictures) < 10
    bars.progress(EVIL, 4, 4)
    bars.tell("<i>note</i>")
    bars.end()
    assert '<progress value="1" max="4">' in pictures[0]
    last = pictures[-1]
    assert "<progress" not in last
    assert "step &lt;U+001B&gt;[2J &lt;b&gt; 4 of 4; 0 s" in last
    assert "&lt;i&gt;note" in last
    assert repr(bars).splitlines()[-1] == "<i>note</i>"
