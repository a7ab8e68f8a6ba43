"""What the selected probe adds to the confounds: left.csv, with one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.amounts import FEWEST_UNITS, joined_names
from probekit.chosen.left import statistics
from probekit.chosen.left.section import LENGTH, OUTPUT, numbers_in
from probekit.chosen.left.statistics import Known
from probekit.chosen.selected_probe import SelectedProbe
from probekit.errors import DataError
from probekit.lazy_rows import Floats, LazyRows
from probekit.probes.data import ProbeData
from probekit.probes.score.metric_table import association
from probekit.probes.score.metrics import (
    WIDER_OVER_FOLDS,
    ClassPredictions,
    NumberPredictions,
    Resamples,
    take,
)
from probekit.probes.score.scored import Predictions, metrics_of, with_interval
from probekit.probes.targets import TARGETS
from probekit.products import without_tf32


@without_tf32()
def tables(settings: Sequence[str], chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return the row of left.csv.

    With outer folds, each fold has the site that it chose without its test rows.
    """
    prober, is_number = chosen.prober, chosen.prober.settings.reads_numbers
    places = range(len(chosen.probers))
    known_at = [known_columns(settings, chosen, position) for position in places]
    picks = chosen.scores.choices if prober.is_nested else [chosen.row]
    parts, n_terms = [], 0
    for fold, pick in enumerate(picks):
        position, site = chosen.place_of(pick)
        split = chosen.probers[position].splits[fold]
        X = chosen.source.activations.block(site, position)
        X = LazyRows.of(X).loaded().on(prober.settings.device)
        fitted, test = split.fitted, split.scored.test
        known = known_at[position]
        terms = known.terms(fitted.rows)
        n_terms, rows = max(n_terms, terms.shape[1]), (fitted.rows, fitted.fold_of_row, test)
        if is_number:
            parts.append(statistics.of_numbers(X, split.task, terms, *rows))
        else:
            grid = prober.settings.C
            parts.append(statistics.of_classes(X, split.task, terms, *rows, grid, fitted.typical))
    left, truth = statistics.over_splits(parts), prober.splits[0].task
    groups, own = prober.data.groups[left.test], truth[left.test]
    widening = WIDER_OVER_FOLDS if prober.is_nested else 1.0
    resamples = Resamples.leave_one_out(groups, widening=widening)
    cells = dict(chosen.source.design.dataset.examples[0].values)
    words = [TARGETS[OUTPUT].phrase if n == OUTPUT and n not in cells else n for n in settings]
    row: dict[str, Any] = {"confounds": joined_names(words), "known": known.description}
    wider = replace(resamples, widening=WIDER_OVER_FOLDS)  # test rows share the model of z
    row |= {"categories": joined_names([*known.categories]), "n_terms": n_terms}
    row["p"] = statistics.p_of_signs(left.association, wider)
    metric = "spearman" if is_number else "auroc"
    row |= {"metric": metric, "gain": None, "gain_low": None, "gain_high": None, "partial": None}
    if is_number:
        scored = chosen.scored
        assert isinstance(scored, NumberPredictions)
        ranked = [one[left.test] for one in known.ranked()]
        row["partial"] = statistics.partial_rank_correlation(scored.guess, own, ranked)
    else:
        # The groups of the second most frequent class decide whether there is a p-value.
        n_of_class = sorted(len(np.unique(groups[own == code])) for code in np.unique(own))
        row["p"] = row["p"] if n_of_class[-2:][0] >= FEWEST_UNITS else np.nan
        gain = statistics.gain_in_bits(left, own, resamples)
        row |= {"gain": gain.value, "gain_low": gain.ci_low, "gain_high": gain.ci_high}
    row |= _matched(known, chosen) | _within(known, chosen, metric)
    for name, scores in (("known_score", left.known), ("joint_score", left.joint)):
        of_scores = _predictions(metric, own, scores, prober.splits[0].fitted.positive)
        found = with_interval(metric, [of_scores], resamples)
        row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    C = parts[0].penalty if len({part.penalty for part in parts}) == 1 else None
    row |= {"C": C, "n_test": len(own), "n_groups": len(np.unique(groups))}
    return {"left.csv": [row]}


def _matched(known: Known, chosen: SelectedProbe) -> dict[str, Any]:
    """Return the AUROC of the selected probe if labels weigh equally in each stratum.

    The strata are the values of all categories. Empty without categories or two classes.
    """
    row = dict[str, Any](matched_score=None, n_matched=None, n_effective=None)
    own, rows = chosen.predictions, chosen.prober.test_rows
    if not known.categories or own is None or own.n_classes != 2 or own.scores is None:
        return row
    weights = statistics.matched_weights(own.truth, known.strata[rows])
    if weights.any():
        from sklearn.metrics import roc_auc_score

        margin = own.scores[:, 1] - own.scores[:, 0]
        row["matched_score"] = float(roc_auc_score(own.truth, margin, sample_weight=weights))
        row["n_effective"] = float(weights.sum() ** 2 / np.square(weights).sum())
    return row | {"n_matched": np.count_nonzero(weights)}


def _within(known: Known, chosen: SelectedProbe, metric: str) -> dict[str, Any]:
    """Return the score of the selected probe within strata, and its p; empty without categories.

    The score is the mean over the strata with several labels, by their number of rows.
    """
    row, scored, prober = dict[str, Any](within=None, p_within=None), chosen.scored, chosen.prober
    rows = prober.test_rows
    if not known.categories or not isinstance(scored, ClassPredictions | NumberPredictions):
        return row
    if (of_rows := association(metric, scored.family)) is None:
        return row
    strata = known.strata[rows]
    folds = prober.fold_of(chosen.spec.text) * (strata.max() + 1)
    widening = WIDER_OVER_FOLDS if prober.is_nested else 1.0
    groups = np.unique(prober.data.groups[rows], return_inverse=True)[1]
    row["p_within"] = statistics.p_within(of_rows(scored), groups, folds + strata, widening)
    parts = [take(scored, strata == stratum) for stratum in np.unique(strata)]
    parts = [part for part in parts if len(np.unique(part.truth)) > 1]
    scores = [metrics_of(one)[metric](one, Resamples.whole(len(one.truth)))[0] for one in parts]
    if parts:  # a constant guess has no rank correlation with the label
        weights = [len(one.truth) for one in parts]
        row["within"] = np.average(np.nan_to_num(scores), weights=weights)
    return row


def _predictions(metric: str, truth: Any, scores: Floats, positive: int | None) -> Predictions:
    """Return the predictions with these log probabilities, or numbers."""
    if metric == "auroc":
        return ClassPredictions.of_scores(truth, scores, are_logits=True, positive=positive)
    return NumberPredictions(truth, scores)


def known_columns(names: Sequence[str], chosen: SelectedProbe, position: int) -> Known:
    """Return the columns of all rows that are confounds at a position, in order."""
    design, numbers, categories = chosen.source.design, dict[str, Floats](), dict[str, Any]()
    of_rows = [dict(design.dataset.examples[number].values) for number in design.example]
    for name in names:
        if name not in of_rows[0]:
            assert name in (LENGTH, OUTPUT), "other columns are checked before a run"
            prober, activations = chosen.probers[position], chosen.source.activations
            numbers |= lengths(prober.data) if name == LENGTH else outputs(activations, position)
            continue
        cells = [cells[name].strip() for cells in of_rows]
        values = numbers_in(cells)
        if values is None:
            categories[name] = np.array(cells)
        else:
            numbers[name] = np.array(values)
    return Known(numbers, categories)


def outputs(activations: Any, position: int) -> Mapping[str, Floats]:
    """Return the numbers of the output at a position, which is where the probe reads.

    Raises:
        DataError: there are none.
    """
    found: Mapping[str, Floats] | None = activations.outputs(position)
    if found is None:
        raise DataError("`confounds` has `output`, but these activations have no output numbers.")
    return {name.replace("_", " "): column for name, column in found.items()}


def lengths(data: ProbeData) -> dict[str, Floats]:
    """Return the number of characters and of words of the text, or the reply, of each row."""
    texts = data.texts if data.replies is None else data.replies
    assert texts is not None, "without texts, `length` is refused"
    return {
        "length in characters": np.array([len(text) for text in texts], dtype=np.float64),
        "length in words": np.array([len(text.split()) for text in texts], dtype=np.float64),
    }
