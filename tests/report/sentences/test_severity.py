"""Warnings are ordered by one table, which names every kind of warning."""

import re
from pathlib import Path

import pytest

import probekit
from probekit.cli.runs import show_warnings
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.run_page import write_report
from probekit.report.sentences.caveats import DOUBTS, KINDS
from tests.report.sentences.cases import trees

PACKAGE = Path(probekit.__file__).parent
CHECKS = ("data/checks.py", "data/labels.py", "pipeline/measure/record.py")
FINDING = re.compile(r'(?:Finding\(\s*"(?:warning|error)",|\bwarning\()\s*f?"([^"]+)"')


@pytest.mark.parametrize("name", CHECKS)
def test_every_finding_has_a_place_in_the_order(name):
    codes = FINDING.findall((PACKAGE / name).read_text())
    assert codes
    for code in codes:
        for side, field in (("train", "group"), ("test", "source")):
            assert code.format(side=side, field=field) in KINDS


def test_every_kind_of_score_and_rival_has_a_place_in_the_order():
    source = (PACKAGE / "report/sentences/caveats.py").read_text()
    kinds = re.findall(r'Caveat\("([^"]+)"', source.partition("def caveats")[2])
    assert len(kinds) > 5
    assert {*kinds, *DOUBTS} - {"few-groups", "lost"} <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


def test_terminal_page_and_notebook_have_the_same_warnings(make_run, record, capsys):
    folder = make_run(trees(), record)
    result = RunResult(folder)
    show_warnings(result)
    printed, page = capsys.readouterr().err, write_report(folder).read_text("utf-8")
    page = page.replace("&nbsp;", " ").replace("\xa0", " ").replace("\u2011", "-")
    assert len(result.warnings) == 3
    for sentence in result.warnings:
        assert f"warning: {sentence}\n" in printed
        assert sentence in page
