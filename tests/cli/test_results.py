"""Printed results of a run: a block for each kind, no empty columns, warnings on stderr."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from probekit.cli.models import params, sites
from probekit.cli.runs import show_results, show_warnings
from tests.cli.conftest import readable
from tests.report.conftest import make_record, make_table, row, write_shown
from tests.report.sentences.cases import with_values

SITES = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")


def rows_of(probe):
    rows = []
    for site, value in zip(SITES, (0.6, 0.7), strict=True):
        rows += [row(site, "task", value, probe=probe, split=s) for s in ("test", "validation")]
        rows.append(row(site, "control", 0.5, probe=probe))
    return rows


MORE = [
    *(row(site, "task", 0.02, metric="p_best") for site in SITES),
    *(row(site, "task", 1.5, metric="compression", split="online") for site in SITES),
]
LOGISTIC = rows_of("logistic")
MAJORITY = row("", "majority", 0.5, probe="none")
TABLE = make_table()
SAME_AS_WORDS = with_values(TABLE, 0.95, target="word_identity")
UNCONTROLLED = TABLE[~TABLE["target"].eq("control") & ~TABLE["metric"].eq("selectivity")]
FINDINGS = [
    {"level": "warning", "code": "few-groups", "message": "Few groups."},
    {"level": "warning", "code": "duplicates-across", "message": "Duplicates."},
    {"level": "error", "code": "crossing-groups", "message": "Groups cross."},
]
REASON = "No control task: only 7 different probed words. Few words."
NO_CONTROL = [{"level": "info", "code": "no-control", "message": REASON}]
CASES = {
    "sites, legend, answer and comparisons, in this order": ([*LOGISTIC, MAJORITY], []),
    "each kind has a block and one site is marked": ([*LOGISTIC, *rows_of("mass_mean")], []),
    "p and compression have columns": ([*LOGISTIC, *MORE], []),
    "comparisons are whole in 80 columns": (UNCONTROLLED, NO_CONTROL),
    "warnings, the most serious first": (SAME_AS_WORDS, FINDINGS),
}


@pytest.mark.parametrize("name", CASES)
def test_printed_results_are_those_that_are_stored(tmp_path, capsys, monkeypatch, snapshot, name):
    table, findings = CASES[name]
    record = make_record()
    record["data"]["findings"] = findings
    folder = write_shown(tmp_path / "run", pd.DataFrame(table), record)
    if "80 columns" in name:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
    result = SimpleNamespace(results=folder / "results.csv", folder=folder)
    show_results(result)
    show_warnings(result)
    out, err = capsys.readouterr()
    assert readable(re.sub(r"\x1b\[[\d;]*m", "", f"{out}stderr: {err}")) == snapshot


@pytest.mark.parametrize("width", [100, 80, 60, 45])
def test_no_name_number_or_word_is_cut(width, capsys, monkeypatch):
    words = []
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda shown=is_terminal: shown)
        monkeypatch.setenv("COLUMNS", str(width))
        sites.callback("mini")
        params.callback("mini", untied=False, no_qkv_bias=False, as_json=False)
        out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        words.append(set(out.replace(";", "").split()))
    # Without columns, the first heading is left out.
    assert words[0] <= words[1] | {"component", "site"}
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width
