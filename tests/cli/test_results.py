"""Printed results of a run: a block for each kind, and no empty columns."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from probekit.cli.show.results import show_results, show_warnings
from probekit.report.sentences.tables import RULE
from tests.report.conftest import make_record, make_table, row, write_shown

SITES = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")


def make_rows(probe):
    rows = []
    for number, site in enumerate(SITES):
        value = 0.6 + 0.1 * number
        rows += [
            row(site, "task", value, probe=probe),
            row(site, "task", value, probe=probe, split="validation"),
            row(site, "control", 0.5, probe=probe),
        ]
    return rows


@pytest.fixture
def show(tmp_path, capsys):
    """A function that prints the results of rows and returns the lines."""

    def call(rows):
        folder = write_shown(Path(tmp_path) / "run", pd.DataFrame(rows))
        show_results(SimpleNamespace(results=folder / "results.csv", folder=folder))
        return capsys.readouterr().out.splitlines()

    return call


def test_sites_legend_answer_and_comparisons_are_printed_in_this_order(show):
    baseline = row("", "majority", 0.5, probe="none")
    lines = show([*make_rows("logistic"), baseline])
    assert [line.split() for line in lines[:3]] == [
        ["site", "accuracy", "[95", "%]", "control"],
        [SITES[0], "0.600", "[0.580,", "0.620]", "0.500"],
        [SITES[1], "*", "0.700", "[0.680,", "0.720]", "0.500"],
    ]
    assert lines[3] == (
        "accuracy: score on held-out rows with 95 % interval; *: selected by cross-validation; "
        "control: the same probe on random labels."
    )
    assert lines[5] == (
        "Not tested against chance: 70 % [68, 72] of held-out rows at block 1, chance 50 %, best "
        "of 2 sites in cross-validation."
    )
    assert " ".join(lines[10:]).split() == RULE.split()
    assert [line.split() for line in lines[7:10]] == [
        ["compared", "with", "accuracy", "difference", "[95", "%]", "p"],
        ["majority", "class", "0.50", "–", "–"],
        ["control", "task", "0.50", "–", "–"],
    ]


def test_comparisons_are_whole_in_80_columns(capsys, monkeypatch, tmp_path):
    record = make_record()
    reason = "No control task: the training rows have only 7 word types. Few words."
    record["data"]["findings"] = [{"level": "info", "code": "no-control", "message": reason}]
    table = make_table()
    table = table[~table["target"].eq("control") & ~table["metric"].eq("selectivity")]
    folder = write_shown(tmp_path / "run", table, record)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show_results(SimpleNamespace(results=folder / "results.csv", folder=folder))
    shown = capsys.readouterr().out.partition("compared with")[2]
    assert "…" not in shown
    words = " ".join(shown.split())
    for text in ("word identity", "random weights", "training", "7 word types"):
        assert text in words


def test_warnings_are_printed_most_serious_first(tmp_path, capsys):
    record = make_record()
    record["data"]["findings"] = [
        {"level": "warning", "code": "few-groups", "message": "Few groups."},
        {"level": "warning", "code": "duplicates-across", "message": "Duplicates."},
        {"level": "error", "code": "crossing-groups", "message": "Groups cross."},
    ]
    table = make_table()
    words = table["target"].eq("word_identity")
    table.loc[words, "value"] = 0.95
    folder = write_shown(tmp_path / "run", table, record)
    show_warnings(SimpleNamespace(results=folder / "results.csv", folder=folder))
    assert capsys.readouterr().err.splitlines() == [
        "warning: Groups cross.",
        "warning: Duplicates.",
        "warning: The probe is not clearly better than word identity: the probe may not use the "
        "context.",
        "warning: Few groups.",
    ]


def test_each_kind_has_a_block_and_one_site_is_marked(show):
    lines = show([*make_rows("logistic"), *make_rows("mass_mean")])
    assert [line for line in lines if line in ("logistic", "mass_mean")] == [
        "logistic",
        "mass_mean",
    ]
    assert sum("*" in line and "blocks" in line for line in lines) == 1


def test_p_and_compression_have_columns_if_measured(show):
    more = [row(site, "task", 0.02, metric="p_best") for site in SITES]
    more += [row(site, "task", 1.5, metric="compression", split="online") for site in SITES]
    head, first, *_ = show([*make_rows("logistic"), *more])
    assert head.split()[-2:] == ["p", "compression"]
    assert first.split()[-2:] == ["0.020", "1.500"]


def test_control_characters_of_labels_are_written_as_code_points(call, tmp_path):
    """Click alone would remove whole escape sequences in a pipe."""
    rows = [f"text number {n},po\x1b[31ms,{n}\nother {n},ne\x1bg,{n}" for n in range(8)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,group", *rows]))
    (tmp_path / "own.yaml").write_text(
        "name: own\nmodel: {source: mini}\ntokens: {bos: false, position: {at: last}}\n"
        "data: {name: own, format: csv, file: rows.csv, "
        "columns: {text: text, label: label, group: group}}\n"
    )
    _, out, err = call("validate", "own.yaml")
    assert "po<U+001B>[31ms" in out
    assert "ne<U+001B>g" in out
    assert "\x1b" not in out + err
