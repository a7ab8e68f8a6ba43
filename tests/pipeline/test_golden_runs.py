"""The golden experiments finish with their tables and page, and selection beats the majority."""

import pytest
from ruamel.yaml import YAML

import probekit
from benchmarks.golden import EXPERIMENTS
from probekit.results.record import check_finished

NAMES = list(YAML(typ="safe").load(EXPERIMENTS))
AT_NIGHT = [pytest.param(name, marks=pytest.mark.nightly) for name in NAMES[1:]]


@pytest.mark.parametrize("name", [NAMES[0], *AT_NIGHT])
def test_a_golden_run_is_finished(golden_run, name):
    folder = golden_run(name)
    check_finished(folder)
    result = probekit.open_run(folder)
    assert (
        "<svg" in (folder / "report.html").read_text()
        or "Plotly" in (folder / "report.html").read_text()
    )
    tested = result.table[(result.table["target"] == "task") & (result.table["split"] == "test")]
    assert tested["value"].notna().all()
    assert golden_run(name) == folder
