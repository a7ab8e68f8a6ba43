"""The golden experiments finish with their tables and page, and selection beats the majority."""

import pytest
from ruamel.yaml import YAML

import probekit
from benchmarks.golden import EXPERIMENTS
from probekit.results.record import check_finished


@pytest.mark.nightly
@pytest.mark.parametrize("name", YAML(typ="safe").load(EXPERIMENTS))
def test_a_golden_run_is_finished(golden_run, name):
    folder = golden_run(name)
    check_finished(folder)
    result = probekit.open_run(folder)
    page = (folder / "report.html").read_text()
    assert "<svg" in page or "Plotly" in page
    tested = result.table[(result.table["target"] == "task") & (result.table["split"] == "test")]
    assert tested["value"].notna().all()
    assert golden_run(name) == folder
