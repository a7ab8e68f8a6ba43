"""A probe of the scores of all sites, compared with the best single site and with a cascade.

stack.csv     scores of the stack, and their differences from the selected probe
cascade.csv   see `probekit.chosen.stack.cascade`
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from probekit.chosen.stack.cascade import cascade_rows, network_share, word_scores
from probekit.lazy_rows import Floats, LazyRows, Rows
from probekit.pipeline.measure.selected_probe import SelectedProbe
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor, differences_of, metrics_of
from probekit.probes.settings import ProbeSpec
from probekit.results.scores import site_with_head
from probekit.results.table import only


def tables(_settings: str, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of stack.csv and cascade.csv, by file.

    stack.csv has a row for each metric; only the difference of the main metric has a p-value.
    cascade.csv has no rows without texts and two classes; see `word_scores`.

    The stack is a probe like any other, whose features are the scores of the probes of one kind at
    all sites of a position. Scores of a training row are those of fits without its fold, so that
    no probe of the stack has seen it; those of a test row are of the fits on all training rows.
    The penalty of each site is that of the run, and the folds of the stack are those of the sites.
    """
    source, position, prober = chosen.source, chosen.position, chosen.prober
    spec, of_site, kind = chosen.spec, chosen.site.text, chosen.spec.text
    fits = only(
        chosen.scores.rows, target="task", split="test", probe=kind, position=chosen.row["position"]
    ).drop_duplicates(["site", "head"])
    penalties = {
        site_with_head(row["site"], row["head"]): None if pd.isna(row["C"]) else float(row["C"])
        for _, row in fits.iterrows()
    }
    sites = {site.text: site for site in source.selections if site.text in penalties}
    columns = [
        site_scores(prober, spec, source.activations.block(site, position), penalties[name])
        for name, site in sites.items()
    ]
    second = ProbeSpec(kind="ridge_regression" if prober.settings.reads_numbers else "logistic")
    settings = prober.settings.changed(
        kinds=(second,), control_draws=0, baselines=(), description=False, learning_steps=0
    )
    stack, stacked = Prober(prober.data, settings), np.concatenate(columns, axis=1)
    of_stack = stack.site(stacked)
    own = of_stack.predictions[Predictor(second.text, "task")]
    name = Predictor(kind, "task")
    (single,) = (
        one.predictions[name]
        for one in chosen.results
        if name in one.predictions
        and one.place["position"] == chosen.row["position"]
        and site_with_head(one.place["site"], one.place["head"]) == of_site
    )
    resamples, rows = prober.resamples_of(kind), list[dict[str, Any]]()
    for score in of_stack.of_kind(second.text):
        if score.split != "test" or score.metric not in metrics_of(single):
            continue
        (found,) = differences_of(score.metric, [([own], [single])], resamples)
        rows.append(
            {
                "metric": score.metric,
                "value": score.value,
                "ci_low": score.ci_low,
                "ci_high": score.ci_high,
                "single": found.b,
                "difference": found.value,
                "difference_low": found.ci_low,
                "difference_high": found.ci_high,
                "p": found.p if score.metric == prober.main_metric else None,
                "n_sites": len(columns),
                "n_test": len(resamples.group_of_row),
                "C": score.C,
            }
        )
    tables, words = {"stack.csv": rows}, word_scores(prober)
    if words is not None:
        n_layers = source.axis_sizes["n_layers"]
        of_layer = site_scores(prober, spec, chosen.features, penalties[of_site], is_exact=True)
        of_all = site_scores(stack, second, stacked, rows[0]["C"], is_exact=True)
        stages = [words, of_layer[:, 0], of_all[:, 0]]
        costs = [0.0, network_share([of_site], n_layers), network_share(sites, n_layers)]
        tables["cascade.csv"] = list(cascade_rows(prober, kind, stages, costs, of_site))
    return {name: of_file for name, of_file in tables.items() if of_file}


def site_scores(
    prober: Prober, spec: ProbeSpec, X: Rows, penalty: float | None, *, is_exact: bool = False
) -> Floats:
    """Return the scores (n_rows, n_scores) of one site's probes for all rows of the data.

    Those of fitted rows are held out: by the fits without the fold of the row. Those of other rows
    are of the fit on all fitted rows. There is a score for each class, of two only that of the
    second.

    Args:
        prober: the prober of the rows.
        spec: the kind of probe.
        X: the activations (n_rows, n_features).
        penalty: the penalty of the fits; None for a kind without one.
        is_exact: of two classes, whether scores of fitted rows are those of the final fit without
            the group of the row, if they have a closed form, as for the thresholds of a run.
    """
    fitted, X = prober.saved_rows, LazyRows.of(X)
    folds = range(int(fitted.fold_of_row.max()) + 1)
    masks = [fitted.fold_of_row != fold for fold in folds]
    inside, every = X.select(fitted.rows), np.ones(len(fitted.rows), dtype=bool)
    fitter = fitted.fitter(spec)
    (fits,) = fitter.refit(inside, [(fitted.column, penalty)], [*masks, every])
    n_classes = None if prober.settings.reads_numbers else fitted.n_classes
    scores = fits[-1].outputs(X, n_classes)
    for fit, mask in zip(fits, masks, strict=False):
        held_out = fitted.rows[~mask]
        scores[held_out] = fit.outputs(X.select(held_out), n_classes)
    if n_classes is None:
        return scores[:, None]
    if is_exact:
        left_out = fitter.left_out(inside, fitted.column, fits[-1], penalty)
        if left_out is not None:
            scores[fitted.rows] = fits[-1].by_class(left_out, n_classes)
    # A class that a fold has not learnt gets the lowest score.
    is_learnt = np.isfinite(scores)
    scores = np.where(is_learnt, scores, scores[is_learnt].min() - 1)
    return scores[:, 1:] - scores[:, :1] if n_classes == 2 else scores
