"""Compiled programs: the network equals that of tracr, and what the package states is the truth."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.compiled import (
    CHANGED,
    VARIABLES,
    Case,
    change_of_variable,
    difference_to_tracr,
    lines_of,
    page_of,
)

NAMES = [f"{one.program}, {one.name}" for one in VARIABLES]


@pytest.mark.parametrize("program", sorted({one.program for one in VARIABLES}))
def test_the_residual_streams_are_those_of_tracr(program):
    assert difference_to_tracr(program) < 1e-5


@pytest.mark.parametrize("variable", VARIABLES, ids=NAMES)
def test_the_output_depends_on_a_variable_at_the_stated_sites_only(variable):
    case = Case.of(variable)
    assert np.bincount(case.codes).tolist() == [100, 100]
    used = [site for site in variable.sites if change_of_variable(case, site) > CHANGED]
    assert used[:1] + used[-1:] == list(variable.used)


def test_the_page_is_written_by_the_benchmark():
    page = (Path(__file__).parents[1] / "docs" / "compiled.md").read_text()
    written = page_of([], 2e-6)
    head, _, rest = written.partition("| program")
    assert page.startswith(head)
    assert page.endswith(rest.partition("contradict the program.")[2])
    n_lines = sum(len(variable.sites) for variable in VARIABLES)
    assert f"\n0 of {n_lines} lines contradict" in page


@pytest.mark.nightly
@pytest.mark.parametrize("variable", VARIABLES, ids=NAMES)
def test_no_score_or_verdict_contradicts_the_program(variable):
    lines = list(lines_of(Case.of(variable)))
    assert [line.site for line in lines] == variable.sites
    assert [text for line in lines for text in line.contradictions] == []
