"""The page of a study: sentences, figures, links and warnings."""

import re

import numpy as np
import pandas as pd
import pytest

from probekit.report.pages.index_page import entry, find_runs, index_page
from probekit.report.pages.study_page import (
    MOST_ROWS,
    settings_answer,
    study_answer,
    study_page,
    study_warnings,
)
from probekit.report.sentences.comparisons import LONGEST
from probekit.results.record import CELLS
from probekit.results.study import compared_settings
from tests.cli.test_view import ask, serving
from tests.report.conftest import write_shown
from tests.report.page_text import figures_of, packed_texts, text_of
from tests.results.made_studies import SETTING, failing, made_cells, made_rivals, write_study

CELLS_OF_8, WORDS = made_cells(8), "bag_of_words"
ONE_FAILED = failing(CELLS_OF_8, 0, "no data")
NONE_FINISHED = failing(failing(made_cells(2), 0, "no data"), 1, "no data")
WORSE = {"value": 0.9, "difference": -0.1, "p": 1e-6, "is_constant": False}
# Cells, and other columns of some rivals.
ANSWERS = {
    "words": (CELLS_OF_8, {}),
    "no constant words": (CELLS_OF_8, {WORDS: {"ci_low": -0.5, "is_constant": False}}),
    "a failed cell, worse than words": (ONE_FAILED, {WORDS: WORSE}),
    "without words": (CELLS_OF_8, {WORDS: {"difference": np.nan, "p": np.nan}}),
    "nothing finished": (NONE_FINISHED, {}),
    "too few permutations": (CELLS_OF_8, {WORDS: {"p": 0.02, "is_constant": True}}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_counts_cells_that_are_better(name, tmp_path, snapshot):
    cells, changes = ANSWERS[name]
    answers = study_answer(write_study(tmp_path, cells, made_rivals(cells, **changes)))
    assert len(answers[0]) <= LONGEST
    assert " ".join(answers) == snapshot


def compared(gain, n=8):
    scores = np.linspace(0.5, 0.7, n)
    cells = made_cells(n, settings=("mini", "gpt2"))
    cells["score"] = np.stack([scores, scores + gain * np.linspace(0.8, 1.2, n)], axis=1).ravel()
    return cells


def test_settings_are_compared_in_a_sentence(snapshot):
    keys, rows = ["data", SETTING], [compared(0.1), compared(-0.1), compared(0.0), compared(0.1, 5)]
    rows.append(pd.concat([compared(0.1).assign(**{"probe.C": C}) for C in ("[1]", "[2]")]))
    found = [compared_settings(one, [*keys, *{"probe.C"}.intersection(one)]) for one in rows]
    assert [settings_answer(one, "accuracy") for one in found] == snapshot
    assert settings_answer(found[1], "brier").startswith("gpt2 is better than mini")
    untested = pd.concat([found[1], found[3]], ignore_index=True)  # too few data sets have no p
    assert settings_answer(untested, "accuracy") == settings_answer(found[1], "accuracy")


def test_warnings_are_those_of_the_counts(tmp_path, snapshot):
    cells = failing(made_cells(12), 0, "no data")
    cells.loc[1, "repeated"], cells.loc[4, "n_groups"] = 0.2, 8
    cells.loc[5, "metric"], cells.loc[6, "caveats"] = "auroc", "a warning"
    rivals = made_rivals(cells)
    rivals.loc[rivals["is_constant"], "p"] = 0.005  # of exchanged labels
    for cell, p in {2: np.nan, 4: 0.01}.items():
        is_cell = rivals["cell"] == cells.loc[cell, "cell"]
        rivals.loc[is_cell & (rivals["rival"] == "bag_of_words"), "p"] = p
    assert list(study_warnings(write_study(tmp_path, cells, rivals, n_unused=3))) == snapshot
    assert list(study_warnings(write_study(tmp_path / "other", made_cells(8)))) == []


def test_cells_are_sorted_by_the_gain_over_each_rival(tmp_path):
    n = MOST_ROWS + 5
    page = study_page(write_study(tmp_path, made_cells(n))).html()
    figures = figures_of(page)
    assert len(figures) == 2
    gains = [x for figure in figures for x in figure["data"][0]["x"]]
    assert len(gains) == n
    assert gains == sorted(gains, reverse=True)
    assert {tuple(figure["layout"]["xaxis"]["range"]) for figure in figures} == {
        tuple(figures[0]["layout"]["xaxis"]["range"])
    }
    others = [text for text in packed_texts(page) if text.startswith('[{"caption"')]
    assert len(others) == 2
    assert "Gain over random weights, cells 1 to 33" in others[0]


def test_a_figure_has_the_published_score_and_the_layer_of_each_cell(tmp_path):
    cells = made_cells(4)
    cells.loc[0, "site"], cells.loc[1, "site"] = "hook_embed", "ln_final.hook_normalized"
    (figure,) = figures_of(study_page(write_study(tmp_path, cells)).html())
    ours, layers, published = figure["data"]
    order = [1, 0, 2, 3]  # of the made gains
    words = made_rivals(cells).query("rival == 'bag_of_words'").reset_index()
    assert ours["x"] == words["difference"][order].tolist()
    assert ours["marker"]["symbol"] == ["square", "circle", "circle-open", "circle-open"]
    assert layers["x"] == [4, -1, 2, 3]
    assert published["x"] == [None if number % 3 else pytest.approx(0.72 - 0.7) for number in order]


def test_each_cell_links_to_the_page_of_its_run(tmp_path):
    cells = made_cells(3).assign(folder=["cells/a/1", 'cells/b "<c>/1', ""])
    page = study_page(write_study(tmp_path, failing(cells, 2, "an error of <b>"))).html()
    links = re.findall(r'<a href="([^"]*report.html)">', page)
    assert sorted(links) == ["cells/a/1/report.html", "cells/b%20%22%3Cc%3E/1/report.html"]
    assert "task_002-mini | an error of <b>" in text_of(page)


def test_a_study_is_one_entry_of_the_index_whose_cells_are_served(tmp_path):
    study = tmp_path / "made"
    folder = write_shown(study / CELLS / "task_000-mini" / "a1")
    cells = made_cells(1).assign(folder=folder.relative_to(study).as_posix())
    answers = study_answer(write_study(study, cells))
    assert find_runs(tmp_path) == [study]
    shown = entry(tmp_path, study)
    assert (shown.title, shown.state) == ("made, study", "finished")
    assert shown.url == "run/made/report.html"
    assert [shown.summary, shown.details] == [answers[0], " ".join(answers)]
    with serving(tmp_path) as server:
        status, page = ask(server, f"/{shown.url}")
        assert (status, "task_000-mini" in page) == (200, True)
        status, of_cell = ask(server, f"/run/made/{cells.loc[0, 'folder']}/report.html")
        assert (status, "plural" in of_cell) == (200, True)
    assert "made, study" in index_page(tmp_path)
