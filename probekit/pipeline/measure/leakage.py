"""Scores of the selected probe on test texts without cues, and without as many random words.

leakage.csv   the scores, and their differences
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.activations.records import Location
from probekit.files import csv_text
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.experiment.source import ModelSource, Source
from probekit.pipeline.measure.run_folder import RunFolder, probe_path
from probekit.pipeline.measure.selected_probe import find_site
from probekit.probes.fitters import RowPredictions
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

    The probe is not fitted again, and its scores of texts without cues do not change.

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
    n_classes, tested, fitted = len(prober.data.classes), prober.rows_of(kind), prober.saved_rows
    # The scores (n_test, n_classes) of the texts as they are, without cues, and in each draw.
    scores = [fit.class_scores(source.block(site, position).select(tested), n_classes)]
    changed = fit.class_scores(further.block(site, position), n_classes)
    for of_variant in changed.reshape(-1, len(dropped.changed), n_classes):
        scores.append(scores[0].copy())
        scores[-1][dropped.changed] = of_variant
    compared, truth = np.delete(np.arange(len(tested)), dropped.left_out), prober.truth_of(kind)
    whole, without, *random = (
        take(fitted.predictions(spec, truth, one, fitted.column), compared) for one in scores
    )
    groups, main = prober.data.groups[tested[compared]], prober.main_metric
    counts = len(random), len(dropped.changed), len(compared), len(dropped.left_out)
    rows = [(*one, *counts) for one in leakage_rows(whole, without, random, groups, main)]
    content = pd.DataFrame(rows, columns=list(PAGE_TABLES["leakage.csv"]))
    folder.write("leakage.csv", csv_text(content))


def leakage_rows(
    whole: RowPredictions,
    without: RowPredictions,
    random: Sequence[RowPredictions],
    groups: NDArray[np.generic],
    main_metric: str,
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of leakage.csv, without counts: main metric, accuracy and AUROC.

    The main metric is left out if it needs a threshold. Only its difference has a p-value.

    Args:
        whole: predictions of the compared texts as they are.
        without: those without cues.
        random: those of each draw, without as many other words.
        groups: groups of the texts, shape (n_compared,).
        main_metric: name of the main metric.
    """
    resamples = Resamples.leave_one_out(groups)
    for metric in dict.fromkeys((main_metric, "accuracy", "auroc")):
        if metric not in metrics_of(whole):
            continue
        value, a, *b = (
            metrics_of(one)[metric](one, resamples) for one in (whole, without, *random)
        )
        parts = difference_of_parts(parts_of(metric, [without]), parts_of(metric, random))
        (found,) = paired_differences([(a, np.mean(b, axis=0))], resamples, [parts])
        found = found.within(METRICS[metric].range)
        scores = float(value[0]), found.a, found.b, found.value, found.ci_low, found.ci_high
        yield (metric, *scores, found.p if metric == main_metric else None)
