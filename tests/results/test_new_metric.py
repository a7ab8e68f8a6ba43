"""A new metric takes two edits: the function that computes it, and its row in the table."""

import os
import shutil
import subprocess
import sys

from probekit.provenance import PACKAGE

FUNCTION = '''
def error_rate(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the share of rows guessed wrong."""
    return 1 - accuracy(answers, resamples)
'''
ROW = """    Metric(
        "error_rate",
        "error rate",
        {"class": "probekit.probes.score.metrics:error_rate"},
        lower_is_better=True,
        explanation="The share of wrong guesses.",
    ),
    Metric("p_value","""
# From a measurement to the figure and its caption, on rows that are written and read.
USE = """
from dataclasses import asdict
from pathlib import Path
import numpy as np
from probekit.probes.prober import Prober
from probekit.probes.data import ProbeData
from probekit.probes.settings import ProbeSettings
from probekit.results.table import DIFFERENCES, RESULTS, make_table
from probekit.results.judging import judge
from probekit.report.pages.parts import result_parts
from probekit.results.scores import Scores

y = np.array(["no", "yes"] * 40)
row = np.arange(80).astype(str)
data = ProbeData(y, row, row, train=np.arange(60), test=np.arange(60, 80))
prober = Prober(data, ProbeSettings(folds=2, control_draws=0, C=(1.0,)))
result = prober.site(np.random.default_rng(0).normal(size=(80, 3)))
place = {"site": "blocks.0.hook_resid_post", "layer": 0, "run": "r", "position": "last"}
rows = [place | {"main_metric": "accuracy"} | asdict(m) for m in result.measurements]
make_table(rows, RESULTS).to_csv("results.csv", index=False)
scores = Scores.load(Path("results.csv"))
parts = result_parts(scores, judge(scores, make_table([], DIFFERENCES)))
(part,) = [p for p in parts if p.title.startswith("Error rate")]
assert "The share of wrong guesses." in part.caption, part.caption
assert "lower is better" in str(part.figure), part.figure
"""


def test_a_metric_is_added_by_its_function_and_its_row(tmp_path):
    copy = tmp_path / "probekit"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("mini"))
    with (copy / "probes/score/metrics.py").open("a") as file:
        file.write(FUNCTION)
    table = copy / "probes/score/metric_table.py"
    before, after = table.read_text().split('    Metric("p_value",')
    table.write_text(before + ROW + after)
    subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        check=True,
    )
