"""Scores of the selected probe on test texts without cues, and without as many random words.

leakage.csv   the scores, and their differences
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probekit.activations.records import Location
from probekit.files import csv_text
from probekit.lazy_rows import LazyRows
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.experiment.source import ModelSource, Source
from probekit.pipeline.measure.run_folder import RunFolder, probe_path
from probekit.pipeline.measure.selected_probe import find_site
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.contributions import difference_of_parts
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import Resamples, take
from probekit.probes.score.scored import metrics_of, parts_of
from probekit.probes.solve.layers import FittedLayers
from probekit.results.selection import chosen_row
from probekit.results.table import PAGE_TABLES
from probekit.terminal import Watcher


def write_leakage(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    table: pd.DataFrame,
    cache_root: Location | None,
    watcher: Watcher,
) -> None:
    """Write leakage.csv, if the experiment has cues and a probe was selected.

    The probe is not fitted again. Texts without cues are the same in all scores. Accuracy and AUROC
    follow the main metric, which is left out if it needs a threshold.

    Raises:
        StoreError: the file cannot be written.
    """
    row = chosen_row(table)
    if row is None or not isinstance(source, ModelSource) or source.rows.dropped is None:
        return
    dropped, kind = source.rows.dropped, str(row["probe"])
    position, site = find_site(source.rows, row)
    prober, offset = probers[position], source.rows.positions[position].offset
    probe = SavedProbe.load(probe_path(folder.path, offset, site.text, kind))
    further = capture_further(source, dropped, (site,), cache_root=cache_root, watcher=watcher)
    fit = FittedLayers(np.searchsorted(prober.data.classes, probe.classes), probe.layers)
    (spec,) = (one for one in prober.settings.kinds if one.text == kind)
    n_classes, tested, truth = len(prober.data.classes), prober.rows_of(kind), prober.truth_of(kind)
    as_read = fit.class_scores(LazyRows.of(source.block(site, position)).select(tested), n_classes)
    # The scores of the changed texts, shape (1 + n_draws, n_changed, n_classes).
    changed = fit.class_scores(further.block(site, position), n_classes)
    outputs = [as_read]
    for of_variant in changed.reshape(-1, len(dropped.changed), n_classes):
        outputs.append(as_read.copy())
        outputs[-1][dropped.changed] = of_variant
    compared = np.setdiff1d(np.arange(len(tested)), dropped.left_out)
    fitted = prober.saved_rows
    whole, without, *random = (
        take(fitted.predictions(spec, truth, one, fitted.column), compared) for one in outputs
    )
    resamples = Resamples.leave_one_out(prober.data.groups[tested[compared]])
    counts = len(random), len(dropped.changed), len(compared), len(dropped.left_out)
    rows = list[tuple[Any, ...]]()
    for metric in dict.fromkeys((prober.main_metric, "accuracy", "auroc")):
        if metric not in metrics_of(whole):
            continue
        values = [metrics_of(one)[metric](one, resamples) for one in (whole, without, *random)]
        pair = values[1], np.mean(values[2:], axis=0)
        parts = difference_of_parts(parts_of(metric, [without]), parts_of(metric, random))
        (found,) = paired_differences([pair], resamples, [parts])
        found = found.within(METRICS[metric].range)
        scores = float(values[0][0]), found.a, found.b, found.value, found.ci_low, found.ci_high
        rows.append((metric, *scores, None if rows else found.p, *counts))
    content = pd.DataFrame(rows, columns=list(PAGE_TABLES["leakage.csv"]))
    folder.write("leakage.csv", csv_text(content))
