"""Warnings are ordered by one table, which names every kind of warning."""

import re
from pathlib import Path

import pytest

import probekit
from probekit.report.sentences.severity import KINDS, Caveat, most_serious_first
from probekit.report.sentences.warnings import DOUBTS

PACKAGE = Path(probekit.__file__).parent
CHECKS = ("data/checks.py", "data/labels.py", "pipeline/experiment/record.py")
FINDING = re.compile(r'Finding\(\s*"(?:warning|error)",\s*f?"([^"]+)"')


@pytest.mark.parametrize("name", CHECKS)
def test_every_finding_has_a_place_in_the_order(name):
    codes = FINDING.findall((PACKAGE / name).read_text())
    assert codes
    for code in codes:
        sides = [code.replace("{side}", side) for side in ("train", "test")]
        assert set(sides) <= set(KINDS), code


def test_every_rival_has_a_place_in_the_order():
    assert set(DOUBTS) <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


def test_errors_then_unknown_kinds_then_the_order_of_the_table():
    kinds = ("left-out", "edge-of-grid", "new-kind", "n_grams", "duplicates-across")
    caveats = [Caveat(kind, kind) for kind in kinds]
    caveats += [Caveat("few-groups", "an error", is_error=True), Caveat("n_grams", "n_grams")]
    assert most_serious_first(caveats) == [
        "an error",
        "new-kind",
        "duplicates-across",
        "n_grams",
        "edge-of-grid",
        "left-out",
    ]
