"""Scores computed from saved predictions equal those of the run, for heads and positions."""

import numpy as np
import pandas as pd
import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.run import run
from probekit.results.selection import site_with_head
from probekit.results.table import only
from tests.pipeline.planted import NOUNS

YAML = """\
name: planted
model: {source: mini, random_weights: false}
data: {name: planted, format: csv, file: rows.csv,
       columns: {group: group, start: start, end: end, label: label}}
tokens: {bos: false, position: {at: span}, sweep: [0, 1]}
capture: {sites: ["blocks.0.hook_resid_post", "blocks.0.attn.hook_z[head=1,2]"]}
probe: {folds: 2, control_draws: 1, permutations: 0, description: false, C: [0.1]}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        {"text": f"The {colour} {noun} {verb} there", "label": colour, "group": noun}
        | {"start": 4, "end": 4 + len(colour)}
        for noun in NOUNS[:8]
        for verb in ("was", "is", "stood")
        for colour in ("red", "black")
    ]
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    (folder / "planted.yaml").write_text(YAML)
    return [
        run(
            load_experiment(folder / "planted.yaml", [f"probe.seed={seed}"]),
            out=folder,
            cache_root=folder / "cache",
            page=False,
        )
        for seed in (0, 1)
    ]


def test_comparison_values_equal_the_results_tables(runs):
    a, b = runs
    found = compare(a.folder, b.folder)
    rows = found.rows[found.rows["target"] == "task"]
    assert len(only(rows, what="site")) + len(only(rows, what="chosen")) >= 6
    for side, result in (("a", a), ("b", b)):
        table = only(result.table, target="task", split="test", metric="accuracy")
        sites = [site_with_head(*pair) for pair in zip(table["site"], table["head"], strict=True)]
        keys = zip(sites, table["position"], strict=True)
        values = dict(zip(keys, table["value"], strict=True))
        for _, row in rows.iterrows():
            assert row[f"value_{side}"] == values[row[f"site_{side}"], row[f"position_{side}"]]
    assert {"span", "span+1"} == set(rows["position_a"])


def test_saved_predictions_contain_scores_for_other_metrics(runs):
    found = compare(runs[0].folder, runs[1].folder, metric="auroc")
    table = only(runs[0].table, target="task", split="test", metric="auroc")
    site = found.rows[found.rows["target"] == "task"].iloc[-1]
    assert np.isclose(table["value"], site["value_a"], atol=1e-6).any()
    assert any("without auroc" in note for note in found.notes)
