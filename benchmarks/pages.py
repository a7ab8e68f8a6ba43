"""Seconds and bytes of pages of runs: a plain run, and a sweep of many positions, sites and kinds.

python -m benchmarks.pages
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.report.pages.run_page import write_report
from tests.report.conftest import make_record, make_table, row, write_shown

POSITIONS, LAYERS = 26, 24
COMPONENTS = ("hook_resid_post", "hook_mlp_out")
KINDS = ("logistic", "lda", "svm", "mlp")
METRICS = (
    "accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc", "tpr_at_fpr_1", "tpr_at_fpr_5",
    "brier", "ece",
)  # fmt: skip


def make_wide() -> pd.DataFrame:
    """Return about 55,000 rows: 26 positions x 48 sites x 4 kinds, with 11 rows each."""
    generator = np.random.default_rng(0)
    rows = [row("", "majority", 0.5), row("", "word_identity", 0.71)]
    for offset in range(1 - POSITIONS, 1):
        for layer in range(LAYERS):
            for component in COMPONENTS:
                site = f"blocks.{layer}.{component}"
                for kind in KINDS:
                    value = round(0.6 + 0.3 * layer / LAYERS + generator.uniform(-0.05, 0.05), 4)
                    place = {
                        "position": f"word:last{offset:+d}" if offset else "word:last",
                        "probe": kind,
                    }
                    no_limits = {"ci_low": None, "ci_high": None}
                    rows.append(row(site, "task", value, split="validation", **place, **no_limits))
                    rows += [row(site, "task", value, metric=name, **place) for name in METRICS]
                    rows.append(row(site, "random_weights", 0.55, **place))
    return pd.DataFrame(rows)


def main() -> None:
    """Print the rows, seconds and megabytes of each page."""
    with tempfile.TemporaryDirectory() as folder:
        for name, table in (("plain", make_table()), ("wide", make_wide())):
            record = make_record()
            record["model"]["n_layers"] = LAYERS if name == "wide" else record["model"]["n_layers"]
            record["attention"] = []
            run = write_shown(Path(folder) / name, table, record)
            start = time.process_time()
            page = write_report(run)
            seconds = time.process_time() - start
            megabytes = page.stat().st_size / 1e6
            print(f"{name}: {len(table):,} rows, {seconds:.2f} s, {megabytes:.2f} MB")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
