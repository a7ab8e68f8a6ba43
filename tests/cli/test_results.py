"""Printed results of a run: a block for each kind, and no empty columns."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from probekit.cli.show.runs import show_results

SITES = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")


def row(site, target, value, **others):
    common = {
        "run": "r",
        "model": "m",
        "dataset": "d",
        "site": site,
        "layer": None,
        "component": "",
        "head": None,
        "position": "last",
        "probe": "logistic",
        "target": target,
        "split": "test",
        "metric": "accuracy",
        "value": value,
        "ci_low": value - 0.1,
        "ci_high": value + 0.1,
        "chance": 0.5,
        "n_train": 30,
        "n_test": 10,
        "n_groups": 5,
        "C": 1,
        "n_iter": 3,
        "converged": True,
        "seed": 0,
        "view": "raw",
    }
    return common | others


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
        path = Path(tmp_path) / "results.csv"
        pd.DataFrame(rows).to_csv(path, index=False)
        show_results(SimpleNamespace(results=path))
        return capsys.readouterr().out.splitlines()

    return call


def test_single_kind_has_no_heading(show):
    baseline = row(None, "majority", 0.5, probe="none", position="last")
    assert [line.split() for line in show([*make_rows("logistic"), baseline])] == [
        ["site", "accuracy", "95", "%", "interval", "control"],
        [SITES[0], "0.600", "0.500", "to", "0.700", "0.500"],
        [SITES[1], "*", "0.700", "0.600", "to", "0.800", "0.500"],
        ["*", "selected", "by", "cross-validation."],
        ["Baselines", "without", "the", "network:", "majority", "0.500."],
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


def test_sweep_lists_a_baseline_once_unless_it_depends_on_the_position(show):
    rows = [
        line
        for n, position in enumerate(("word:last-1", "word:last"))
        for line in (
            *({**one, "position": position} for one in make_rows("logistic")),
            row(None, "majority", 0.5, probe="none", position=position),
            row(None, "word_identity", 0.6 + 0.1 * n, probe="none", position=position),
        )
    ]
    assert show(rows)[-1] == (
        "Baselines without the network: majority 0.500, word identity 0.600 at word:last-1 and "
        "0.700 at word:last."
    )
