"""The golden experiments finish with their tables and page, and selection beats the majority."""

import pytest
from ruamel.yaml import YAML

import probekit
from benchmarks.golden import EXPERIMENTS
from probekit.results.record import check_finished
from probekit.results.table import only


@pytest.mark.nightly
@pytest.mark.parametrize("name", YAML(typ="safe").load(EXPERIMENTS))
def test_a_golden_run_is_finished(golden_run, name):
    folder = golden_run(name)
    check_finished(folder)
    page = (folder / "report.html").read_text()
    assert "<svg" in page or "Plotly" in page
    tested = only(probekit.open_run(folder).table, target="task", split="test")
    assert tested["value"].notna().all()
