"""The targets of docs/howto/probe_elsewhere.md: each block of code runs, with its own reader."""

import csv
import os

import pytest

from benchmarks.exports import COLUMNS, PAGE, error_of, targets
from probekit.probes.exports.table import FORMATS

TARGETS = targets()
PRECISION = {"plain": 1e-14, "torch": 1e-14, "sklearn": 1e-14}  # others are float32
LIBRARIES = "PROBEKIT_LIBRARIES"  # folders of packages that no extra has


@pytest.mark.parametrize(("to", "package", "code"), TARGETS, ids=[one[1] for one in TARGETS])
def test_each_target_computes_what_was_exported(to, package, code, tmp_path, monkeypatch):
    for folder in filter(None, os.environ.get(LIBRARIES, "").split(os.pathsep)):
        monkeypatch.syspath_prepend(folder)
    for one in {package, FORMATS[to].needs} - {""}:
        pytest.importorskip(one, exc_type=(ImportError, AttributeError))  # repeng needs NumPy 1
    what, error = error_of(code, ("no", "yes"), tmp_path)
    assert error <= PRECISION.get(to, 1e-6)
    if what == "scores":
        assert error_of(code, ("a", "b", "c"), tmp_path)[1] <= PRECISION.get(to, 1e-6)


def test_each_format_has_a_target_and_an_error_in_the_table():
    assert {to for to, *_ in TARGETS} == set(FORMATS)
    with (PAGE.parents[1] / "exports.csv").open() as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert [(one["format"], one["read by"]) for one in table] == [one[:2] for one in TARGETS]
    for one in table:
        assert float(one["largest error"]) <= PRECISION.get(one["format"], 1e-6)
