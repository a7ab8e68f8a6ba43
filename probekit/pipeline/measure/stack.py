"""A probe of the scores of all sites, compared with the best single site.

stack.csv   scores of the stack, and their differences from the selected probe
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from probekit.files import csv_text
from probekit.lazy_rows import LazyRows
from probekit.pipeline.experiment.source import Source
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.probes.arrays import Floats
from probekit.probes.fitters import outputs_of
from probekit.probes.prober import Prober
from probekit.probes.score.contributions import difference_of_parts
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.scored import Predictor, SiteResult, metrics_of, parts_of
from probekit.probes.settings import ProbeSpec
from probekit.results.selection import chosen_row, site_with_head
from probekit.results.table import only


def stack_rows(
    source: Source, probers: Sequence[Prober], results: Sequence[SiteResult], table: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the rows of stack.csv: one for each metric; empty without a selected probe.

    Only the difference of the main metric has a p-value.

    The stack is a probe like any other, whose features are the scores of the probes of one kind at
    all sites of a position. Scores of a training row are those of fits without its fold, so that
    no probe of the stack has seen it; those of a test row are of the fits on all training rows.
    The penalty of each site is that of the run, and the folds of the stack are those of the sites.

    Args:
        source: rows and activations.
        probers: the prober of each position.
        results: the results of all sites.
        table: the rows of results.csv.
    """
    chosen = chosen_row(table)
    if chosen is None:
        return []
    position = [one.text for one in source.rows.positions].index(chosen["position"])
    prober, kind = probers[position], str(chosen["probe"])
    fits = only(
        table, target="task", split="test", probe=kind, position=chosen["position"]
    ).drop_duplicates(["site", "head"])
    penalties = {
        site_with_head(row["site"], row["head"]): None if pd.isna(row["C"]) else float(row["C"])
        for _, row in fits.iterrows()
    }
    columns = [
        site_scores(source, position, prober, kind, site, penalties[site.text])
        for site in source.rows.selections
        if site.text in penalties
    ]
    second = ProbeSpec("ridge_regression" if prober.settings.reads_numbers else "logistic")
    settings = replace(
        prober.settings,
        kinds=(second,),
        control_draws=0,
        baselines=(),
        description=False,
        learning_steps=0,
    )
    found = Prober(prober.data, settings).site(np.concatenate(columns, axis=1))
    own = found.predictions[Predictor(second.text, "task")]
    name = Predictor(kind, "task")
    (single,) = (
        one.predictions[name]
        for one in results
        if name in one.predictions
        and one.place["position"] == chosen["position"]
        and site_with_head(one.place["site"], one.place["head"])
        == site_with_head(chosen["site"], chosen["head"])
    )
    resamples, rows = prober.resamples_of(kind), []
    for score in found.of_kind(second.text):
        if score.split != "test" or score.metric not in metrics_of(single):
            continue
        pair = [metrics_of(one)[score.metric](one, resamples) for one in (own, single)]
        both = difference_of_parts(*(parts_of(score.metric, [one]) for one in (own, single)))
        (difference,) = paired_differences([(pair[0], pair[1])], resamples, [both])
        limited = difference.within(METRICS[score.metric].range)
        rows.append(
            {
                "metric": score.metric,
                "value": score.value,
                "ci_low": score.ci_low,
                "ci_high": score.ci_high,
                "single": float(pair[1][0]),
                "difference": difference.value,
                "difference_low": limited.ci_low,
                "difference_high": limited.ci_high,
                "p": difference.p if score.metric == prober.main_metric else None,
                "n_sites": len(columns),
                "n_test": len(resamples.group_of_row),
                "C": score.C,
            }
        )
    return rows


def write_stack(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    results: Sequence[SiteResult],
    table: pd.DataFrame,
) -> None:
    """Write stack.csv, if a probe was selected; the arguments are those of `stack_rows`.

    Raises:
        StoreError: the file cannot be written.
    """
    rows = stack_rows(source, probers, results, table)
    if rows:
        folder.write("stack.csv", csv_text(pd.DataFrame(rows)))


def site_scores(
    source: Source, position: int, prober: Prober, kind: str, site: Any, penalty: float | None
) -> Floats:
    """Return the scores (n_rows, n_scores) of one site's probes for all rows of the data.

    Those of fitted rows are held out: by the fits without the fold of the row. Those of other rows
    are of the fit on all fitted rows. There is a score for each class, of two only that of the
    second.
    """
    fitted, X = prober.saved_rows, LazyRows.of(source.block(site, position))
    spec = next(spec for spec in prober.settings.kinds if spec.text == kind)
    folds = range(int(fitted.fold_of_row.max()) + 1)
    masks = [fitted.fold_of_row != fold for fold in folds]
    inside, every = X.select(fitted.rows), np.ones(len(fitted.rows), dtype=bool)
    (fits,) = fitted.fitter(spec).refit(inside, [(fitted.column, penalty)], [*masks, every])
    n_classes = None if prober.settings.reads_numbers else fitted.n_classes
    scores = outputs_of(fits[-1], X, n_classes)
    for fit, mask in zip(fits, masks, strict=False):
        held_out = fitted.rows[~mask]
        scores[held_out] = outputs_of(fit, X.select(held_out), n_classes)
    if n_classes is None:
        return scores[:, None]
    # A class that a fold has not learnt gets the lowest score.
    is_learnt = np.isfinite(scores)
    scores = np.where(is_learnt, scores, scores[is_learnt].min() - 1)
    return scores[:, 1:] - scores[:, :1] if n_classes == 2 else scores
