"""The page of interventions, and their section on the page of a run.

The texts of both are in test_every_page.py.
"""

import pandas as pd
import pytest

from probekit.cli.runs import show_warnings
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.causes_page import write_causes_page
from probekit.report.pages.index_page import entry
from probekit.report.pages.run_page import report_page, run_figures
from tests.report.conftest import seal_run
from tests.report.page_text import text_of
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


def page_of(folder, facts=None, **tables):
    return write_causes_page(write_causes(folder, facts, **tables)).read_text("utf-8")


def test_the_page_is_written_beside_its_tables_with_the_same_bytes(tmp_path):
    page = page_of(tmp_path, **every_table())
    assert (tmp_path / "causes.html").read_text("utf-8") == page
    assert 'download="doses.csv"' in page
    assert write_causes_page(tmp_path).read_text("utf-8") == page


def test_figures_of_a_run_include_its_interventions(make_run):
    figures = run_figures(seal_run(write_causes(make_run(), effects=make_effects(2, 1))))
    assert figures[0].title == "Recovery by layer · patches at the last token"
    # The layer axis is that of the layer curve.
    pair = [figures[0], next(one for one in figures if one.title == "Accuracy by layer")]
    axes = [part.figure["layout"]["xaxis"]["tickvals"] for part in pair]
    assert axes[0] == axes[1]


def test_each_reader_of_a_run_shows_the_causal_sentence_before_that_of_probes(make_run, capsys):
    run = seal_run(write_causes(make_run(), verdicts=make_verdicts(used=(3,))))
    result = RunResult(run)
    causal, detail, of_probes = result.answers
    assert causal == result.answer == entry(run.parent, run).details.partition(". ")[0] + "."
    assert causal.startswith("Yes: erasing the probe's direction at block 3 removes 62 %")
    show_warnings(result)
    texts = [text_of(report_page(run)), repr(result), text_of(result._repr_html_())]
    for text in (*texts, capsys.readouterr().out):
        words = " ".join(text.replace("\xa0", " ").split())
        assert -1 < words.find(causal) < words.find(detail) < words.find(of_probes)


def test_a_run_without_interventions_has_neither_section_nor_page(make_run, refused):
    run = make_run()
    assert 'id="causes"' not in report_page(run)
    refused(write_causes_page, run)


@pytest.mark.parametrize("name", ["one direction", "empty tables"])
def test_the_text_of_the_page_is_the_stored_one(tmp_path, snapshot, name):
    """One direction has its sentence under the table."""
    tables = {
        "one direction": {"verdicts": pd.DataFrame(verdict_rows(residual(3)))},
        "empty tables": {name: table.head(0) for name, table in every_table().items()},
    }
    assert text_of(page_of(tmp_path, **tables[name])) == snapshot


def test_a_damaged_table_is_reported_on_the_page_of_the_run_too(make_run, refused):
    run = seal_run(write_causes(make_run(), effects=make_effects().assign(do="hope")))
    refused(report_page, run)


def test_no_machine_path_is_on_the_page(tmp_path):
    facts = make_facts(model="/data/ann/models/mine")
    assert "/data/ann" not in page_of(tmp_path, facts, effects=make_effects())


def test_hostile_texts_are_escaped_and_keep_their_direction(tmp_path, hostile):
    facts = make_facts(
        name=hostile, question=hostile, position=hostile, classes=(hostile, hostile),
        answers={"answer": hostile, "wrong": hostile}, tokens=(hostile,) * len(TOKENS),
    )  # fmt: skip
    tables = every_table(verdicts=make_verdicts().assign(summary=hostile, reason=hostile))
    tables["effects"] = tables["effects"].assign(unit=hostile)
    page = page_of(tmp_path, facts, **tables)
    assert hostile not in page
    assert "\u202e" not in page.partition("</header>")[0]
