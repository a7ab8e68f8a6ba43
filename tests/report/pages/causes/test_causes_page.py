"""The page of interventions, and their section on the page of a run."""

import pandas as pd
import pytest

from probekit.errors import DataError, MissingError
from probekit.report.pages.causes_page import write_causes_page
from probekit.report.pages.run_page import report_page, run_figures, write_report
from tests.report.conftest import seal_run
from tests.results.causes.made_causes import (
    TOKENS,
    every_table,
    make_effects,
    make_facts,
    make_verdicts,
    residual,
    verdict_rows,
    write_causes,
)

ANSWER = "Decodable but not used at the last token"
DRAWN = (
    "[...document.querySelectorAll('.plot')]"
    ".map(plot => plot.querySelectorAll('.trace, .hm').length)"
)


def test_the_page_has_answer_verdicts_figures_and_files(tmp_path):
    path = write_causes_page(write_causes(tmp_path, **every_table()))
    assert path == tmp_path / "causes.html"
    page = path.read_text("utf-8")
    assert page.index(ANSWER) < page.index("direction at") < page.index("Recovery by layer")
    assert "Does the network use the number of the subject?" in page
    assert "3 texts left out: Text and counterfactual differ in length: row 4, 9." in page
    assert 'download="doses.csv"' in page
    assert write_causes_page(tmp_path).read_text("utf-8") == page


def test_the_section_is_under_the_layer_curve_of_a_run(browser, make_run):
    run = seal_run(write_causes(make_run(), **every_table()))
    path = write_report(run)
    page = path.read_text("utf-8")
    assert (
        page.index("Comparisons</h2>")
        < page.index('id="causes"')
        < page.index("All sites</bdi></h2>")
    )
    assert ANSWER in page
    browser.open(path)
    assert browser.evaluate("document.querySelectorAll('.causes .main-svg').length") > 0
    assert browser.trouble == []


def test_figures_of_a_run_include_its_interventions(make_run):
    figures = run_figures(seal_run(write_causes(make_run(), effects=make_effects(2, 1))))
    assert figures[0].title == "Accuracy by layer"
    assert figures[1].title == "Recovery by layer · patches at the last token"
    # The layer axis is that of the layer curve.
    axes = [part.figure["layout"]["xaxis"]["tickvals"] for part in figures[:2]]
    assert axes[0] == axes[1]


def test_a_run_without_interventions_has_no_section(make_run):
    assert 'id="causes"' not in report_page(make_run())


def test_one_direction_has_its_sentence_under_the_table(tmp_path):
    write_causes(tmp_path, verdicts=pd.DataFrame(verdict_rows(residual(3))))
    page = write_causes_page(tmp_path).read_text("utf-8")
    assert "Sentence on blocks.3.hook_resid_post." in page
    assert "Verdicts in words" not in page


def test_a_run_without_interventions_has_no_page(tmp_path):
    with pytest.raises(MissingError, match=r"causes\.json does not exist"):
        write_causes_page(tmp_path)


def test_a_damaged_table_is_reported_on_the_page_of_the_run_too(make_run):
    run = seal_run(write_causes(make_run(), effects=make_effects().assign(do="hope")))
    with pytest.raises(DataError, match=r"effects\.csv, line 2, column 'do'"):
        report_page(run)


def test_no_machine_path_is_on_the_page(tmp_path):
    facts = make_facts(model="/data/ann/models/mine")
    page = write_causes_page(write_causes(tmp_path, facts, effects=make_effects()))
    assert "/data/ann" not in page.read_text("utf-8")


def test_empty_tables_have_a_page(tmp_path):
    empty = {name: table.head(0) for name, table in every_table().items()}
    page = write_causes_page(write_causes(tmp_path, **empty)).read_text("utf-8")
    assert "No intervention has a defined effect" in page


def test_hostile_texts_are_escaped_and_keep_their_direction(tmp_path, hostile):
    facts = make_facts(
        name=hostile, question=hostile, position=hostile, classes=(hostile, hostile),
        answers={"answer": hostile, "wrong": hostile}, tokens=(hostile,) * len(TOKENS),
    )  # fmt: skip
    tables = every_table(verdicts=make_verdicts().assign(summary=hostile, reason=hostile))
    tables["effects"] = tables["effects"].assign(unit=hostile)
    page = write_causes_page(write_causes(tmp_path, facts, **tables)).read_text("utf-8")
    assert hostile not in page
    body = page.partition("</header>")[0]
    assert "\u202e" not in body


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_figures_draw(browser, tmp_path, dark):
    run = write_causes(tmp_path, **every_table())
    browser.open(write_causes_page(run), dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.settle(1500)
    drawn = browser.evaluate(DRAWN)
    assert len(drawn) == 7
    assert all(drawn)
    for width in (700, 400):
        browser.resize(width)
        browser.settle(500)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []
