"""A probe of the scores of all sites, compared with the best single site and with a cascade.

stack.csv     scores of the stack, and their differences from the selected probe
cascade.csv   cost, and TPR and FPR on the test rows, at each allowed false positive rate

The cascade has three stages: words, the selected site, and the stack of all sites. A stage passes
the rows whose score is close to its alarm threshold on to the next one, which needs more of the
network. The scores of all stages are on one scale, log-odds by a logistic regression, so that the
score of a row is that of the last stage that reads it, and one threshold gives the alarms. Bands,
thresholds and the listed settings are chosen with held-out scores of training rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import percent
from probekit.chosen.selected_probe import SelectedProbe, rates_at
from probekit.lazy_rows import Floats, LazyRows, Mask, Rows
from probekit.model.sites.sites import JOINT
from probekit.probes.controls import text_outputs
from probekit.probes.fitters import label_column
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import RATES, thresholds
from probekit.probes.score.scored import Predictor, differences_of, metrics_of
from probekit.probes.settings import ProbeSpec
from probekit.results.scores import site_with_head
from probekit.results.table import EMBED_DEPTH, depth_of, only

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # of the rows of a stage, passed on to the next
WORDS = (0.0, 0.0)
PURE = (WORDS, (1.0, 0.0), (1.0, 1.0))  # the shares by which each stage alone gives all scores
SMALLEST_COST = 1e-9  # of a gain without cost, as at the embedding


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
    own, single = of_stack.predictions[Predictor(second.text, "task")], chosen.scored
    assert single is not None, "probes of rows have predictions"
    resamples, rows = prober.resamples_of(kind), list[dict[str, Any]]()
    for score in of_stack.of_kind(second.text):
        if score.split != "test" or score.metric not in metrics_of(single):
            continue
        (found,) = differences_of(score.metric, [([own], [single])], resamples)
        row = {"metric": score.metric, "value": score.value, "ci_low": score.ci_low}
        row |= {"ci_high": score.ci_high, "single": found.b, "difference": found.value}
        row |= {"difference_low": found.ci_low, "difference_high": found.ci_high}
        row["p"] = found.p if score.metric == prober.main_metric else None
        row |= {"n_sites": len(columns), "n_test": len(resamples.group_of_row), "C": score.C}
        rows.append(row)
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


def word_scores(prober: Prober) -> Floats | None:
    """Return the scores (n_rows,) of the words of the text for the second of two classes.

    The score of a training row is that of the fit without its fold, that of a test row the mean of
    these fits, so that thresholds on training rows hold for test rows: the fit on all rows has
    larger scores. Other rows are NaN. The words are n-grams of the text; if rows are words, they
    are their neighbours. None without texts or two classes, or with too few training rows to fix
    a threshold.
    """
    data, fitted = prober.data, prober.saved_rows
    if prober.settings.reads != "classes" or len(data.classes) != 2:
        return None
    n_negative = int(np.sum(data.y[fitted.rows] != prober.positive))
    if np.isnan(thresholds(np.zeros(n_negative))).all():
        return None
    name = "n_grams" if data.neighbours is None else "neighbouring_words"
    task = label_column(data, data.y, prober.settings)
    found = text_outputs(fitted, data, task, name, data.test)
    if found is None:
        return None
    rows, *_, folds = found
    scores = np.full(len(data.y), np.nan)
    of_test = [tested[:, 1] - tested[:, 0] for _, _, tested in folds]
    scores[data.test] = np.mean(of_test, axis=0)
    for outside, own, _ in folds:
        scores[rows[outside]] = own[:, 1] - own[:, 0]
    return scores


def network_share(sites: Iterable[str], n_layers: int) -> float:
    """Return the share of the blocks of a network that must be computed for some sites.

    >>> network_share(["hook_embed"], 4), network_share(["blocks.2.hook_resid_pre"], 4)
    (0.0, 0.5)
    >>> network_share(["blocks.0.hook_mlp_out + ln_final.hook_normalized"], 4)
    1.0
    """
    parts = [part for site in sites for part in site.split(JOINT)]
    deepest = max((depth_of(part, n_layers - 1) for part in parts), default=EMBED_DEPTH)
    return (deepest - EMBED_DEPTH) / n_layers


def cascade_rows(
    prober: Prober, probe: str, stages: Sequence[Floats], costs: Sequence[float], site: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of cascade.csv: some settings, and each stage alone, in order of cost.

    A setting is the shares of the rows that the first stage and the second one pass on. The first
    setting is the words alone. Each further one adds the most TPR per cost to the one before it, on
    the training rows, until none has a higher TPR.

    Args:
        prober: the prober of the rows.
        probe: the kind of probe, which determines the test rows.
        stages: the scores (n_rows,) of each stage for the second of two classes. Those of training
            rows are held out, NaN for rows that a stage did not score.
        costs: the share of the network that each stage needs.
        site: the name of the site of the second stage.
    """
    data, rows, tested = prober.data, prober.saved_rows.rows, prober.rows_of(probe)
    is_positive = data.y == prober.positive
    train = rows[np.isfinite(stages[0][rows])]
    sign = 1 if data.positive_code == 1 else -1
    odds = np.stack([log_odds(sign * scores, is_positive, train) for scores in stages])
    negatives, positives = train[~is_positive[train]], train[is_positive[train]]
    for number, rate in enumerate(RATES):
        centres = np.array([thresholds(of_stage[negatives])[number] for of_stage in odds])
        if np.isnan(centres).any():
            continue
        distances = np.abs(odds - centres[:, None])
        settings, cost, tpr = {}, {}, {}  # by shares; cost and TPR are those of the training rows
        for shares in (WORDS, *product(SHARES[1:], SHARES)):
            reached = last_stages(distances, train, shares)
            scores = odds[reached, np.arange(len(reached))]
            threshold = float(thresholds(scores[negatives])[number])
            settings[shares] = reached, scores, threshold
            cost[shares] = float(np.take(costs, reached[train]).mean())
            tpr[shares] = float((scores[positives] > threshold).mean())
        listed, last = {*PURE}, WORDS
        while better := [one for one in settings if tpr[one] > tpr[last]]:
            last = max(
                better,
                key=lambda one: (tpr[one] - tpr[last]) / max(cost[one] - cost[last], SMALLEST_COST),
            )
            listed.add(last)
        for shares in sorted(listed, key=cost.__getitem__):
            reached, scores, threshold = settings[shares]
            stage, of_test, is_hit = reached[tested], scores[tested], is_positive[tested]
            passed = {f"passed_{n + 1}": float(np.mean(stage > n)) for n in (0, 1)}
            row = {"fpr": rate, "setting": setting_name(shares, site)} | passed
            row["cost"] = float(np.take(costs, stage).mean())
            row |= {"n_positive": int(is_hit.sum()), "n_negative": int((~is_hit).sum())}
            yield row | rates_at(threshold, of_test, is_hit, prober.resamples_of(probe))


def last_stages(distances: Floats, train: Any, shares: Sequence[float]) -> Any:
    """Return the number (n_rows,) of the last stage that reads each row.

    Args:
        distances: distance of each score from the threshold of its stage, (n_stages, n_rows).
        train: row numbers of the training rows, whose closest rows fix the width of each band.
        shares: the share of its training rows that each stage but the last passes on.
    """
    reached = np.zeros(distances.shape[1], dtype=np.int64)
    for stage, share in enumerate(shares):
        is_read = reached == stage
        if 0 < share < 1:
            inside = distances[stage, train][is_read[train]]
            width = np.quantile(inside, share, method="inverted_cdf")
            reached[is_read & (distances[stage] <= width)] += 1
        elif share:
            reached[is_read] += 1
    return reached


def log_odds(scores: Floats, is_positive: Mask, train: Any) -> Floats:
    """Return scores (n_rows,) as log-odds by a logistic regression of the training rows.

    The order of the rows never changes, even if held-out scores rank the classes the wrong way.
    """
    from sklearn.linear_model import LogisticRegression

    scaled = (scores - scores[train].mean()) / (scores[train].std() or 1.0)
    fit = LogisticRegression().fit(scaled[train, None], is_positive[train])
    found: Floats = max(fit.coef_[0, 0], 1e-6) * scaled + fit.intercept_[0]
    return found


def setting_name(shares: tuple[float, float], site: str) -> str:
    """Return the name of a setting.

    >>> setting_name((0.2, 0.1), "blocks.3.hook_resid_post")
    'words, 20 % to blocks.3.hook_resid_post, 10 % of them to all sites'
    """
    if shares in PURE:
        return f"{('words', site, 'all sites')[PURE.index(shares)]} only"
    further = f", {percent(shares[1])} of them to all sites" if shares[1] else ""
    return f"words, {percent(shares[0])} to {site}{further}"
