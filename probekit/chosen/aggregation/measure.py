"""Scores of whole texts: what each rule of an aggregated probe scores, and how early it flags.

aggregation.csv for each rule of an aggregated probe, its cross-validated score, the correlation of
                the scores of texts with their lengths, and the AUROC of all texts and at equal
                length; all of held-out texts. The AUROC of the selected rule minus that of the
                rule, with limits and p adjusted for the number of rules
flagged.csv     for each label and number of tokens, the median score of the test texts up to this
                token, and the share of them that are flagged within this number of tokens: whose
                score up to one of these tokens predicted the positive label

A maximum over many tokens is larger than one over few, so that the score of a long text may be high
although it contains no signal. If one label has longer texts, this looks like a detection.
"""

from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from probekit.chosen.registry import DIFFERENCE
from probekit.chosen.selected_probe import SelectedProbe
from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.aggregation import text_probe, text_sides
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples, take
from probekit.probes.score.scored import Predictions, differences_of, with_interval
from probekit.results.table import OF_RULES

MOST_STEPS = 60  # numbers of tokens in flagged.csv
LONGEST = 0.95  # share of the texts that are no longer than the last of these numbers
OF_EACH = [name + end for name in OF_RULES for end in ("", "_low", "_high")]
SIMILAR = 0.1  # lengths count as equal if they differ by at most this share


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, pd.DataFrame]:
    """Return the tables of an aggregated probe by file name; nothing for probes of rows.

    Without two labels, the rules have only their cross-validated score. Rules are those of the
    saved probe; test texts are scored by the probes that were fitted without them.
    """
    if chosen.predictions is None or not chosen.reads_texts:
        return {}
    prober, spec, X = chosen.prober, chosen.spec, chosen.features
    running, rows = [], []
    # The last `fitted` and `probe`, which are used after the loop, are those of the saved probe.
    for fitted, tested in text_sides(prober):
        probe = text_probe(prober.splits[0], spec, X, fitted)
        if tested is not None:
            order = np.argsort(tested.example_of_row, kind="stable")
            outputs = probe.fit_.scores(X.select(tested.rows[order]))
            of_texts = np.split(outputs, np.cumsum(np.bincount(tested.example_of_row))[:-1])
            running += [probe.fit_.aggregation.running(one)[:, 0] for one in of_texts]
            rows.append(tested.first)
    data, positive, first = prober.data, prober.data.positive_code, fitted.first
    codes = np.searchsorted(data.classes, data.y)
    is_binary, main = len(data.classes) == 2 and positive is not None, prober.main_metric
    labels, groups, lengths = codes[first], data.groups[first], np.bincount(fitted.example_of_row)
    rules, of_rules = list[dict[str, Any]](), dict[str, ClassPredictions]()
    for rule, scored in probe.of_rules_.items():
        row = {"rule": rule, "is_selected": rule == probe.rule_, "metric": main}
        row |= {"n_texts": len(first), "C": scored.C, "value": METRICS[main].sign * scored.rating}
        row |= dict.fromkeys(["n_equal", *OF_EACH, *DIFFERENCE.split()], np.nan)
        if is_binary:
            of_folds = labels, scored.held_out, True, probe.fold_of_text_
            held_out = ClassPredictions.of_scores(*of_folds, positive=positive)
            equal = equal_lengths(lengths, labels == positive)
            score = scored.held_out[:, 1] * (1 if positive else -1)
            found = (
                over_groups("auroc", held_out, groups),
                over_groups("auroc", take(held_out, equal), groups[equal]),
                length_correlation(score, lengths, labels, groups),
            )
            for name, one in zip(OF_RULES, found, strict=True):
                row |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
            row["n_equal"] = int(equal.sum())
            of_rules[rule] = held_out
        rules.append(row)
    others = [row for row in rules if is_binary and not row["is_selected"]]
    pairs = [([of_rules[probe.rule_]], [of_rules[row["rule"]]]) for row in others]
    apart = differences_of("auroc", pairs, Resamples.leave_one_out(groups))
    for row, difference in zip(others, apart, strict=True):
        limits = difference.adjusted_low, difference.adjusted_high, difference.p_adjusted
        row |= dict(zip(DIFFERENCE.split(), (difference.value, *limits), strict=True))
    tables = {"aggregation.csv": pd.DataFrame(rules)}
    if is_binary:
        of_rows, sign = codes[np.concatenate(rows)], 1 if positive else -1
        tables["flagged.csv"] = _flagged(data.classes[of_rows], [sign * one for one in running])
    return {name: table.round(6) for name, table in tables.items()}


def _flagged(labels: Any, running: list[Any]) -> pd.DataFrame:
    """Return flagged.csv from the label and the scores up to each token of each text."""
    longest = int(np.ceil(np.quantile([len(scores) for scores in running], LONGEST)))
    steps = np.unique(np.linspace(1, longest, MOST_STEPS).round().astype(int))
    places = [np.minimum(steps, len(scores)) - 1 for scores in running]
    pairs = list(zip(running, places, strict=True))
    so_far = np.array([scores[at] for scores, at in pairs])
    flagged = np.array([np.maximum.accumulate(scores)[at] > 0 for scores, at in pairs])
    parts = []
    for label in np.unique(labels):
        inside = labels == label
        columns = {"label": label, "tokens": steps, "score": np.median(so_far[inside], axis=0)}
        columns |= {"share": flagged[inside].mean(axis=0), "n_texts": int(inside.sum())}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts)


def length_correlation(
    scores: Floats, lengths: Codes, labels: Codes, groups: NDArray[np.generic]
) -> Interval:
    """Return the Spearman correlation of scores (n_texts,) and lengths within labels.

    Both are replaced by their ranks among the texts of a label, so that a label with longer texts
    is no correlation. The interval is the jackknife's over groups. NaN if one of them is constant.

    >>> found = length_correlation(np.arange(8.0), np.arange(8), np.tile([0, 1], 4), np.arange(8))
    >>> found.value
    1.0
    """
    ranks = np.zeros((2, len(scores)))
    for label in np.unique(labels):
        inside = labels == label
        ranks[:, inside] = scipy.stats.rankdata([scores[inside], lengths[inside]], axis=1)
        ranks[:, inside] = ranks[:, inside] / inside.sum() - (1 + 1 / inside.sum()) / 2  # mean 0
    return over_groups("spearman", NumberPredictions(ranks[0], ranks[1]), groups)


def equal_lengths(lengths: Codes, is_positive: Mask) -> Mask:
    """Return a mask (n_texts,) of texts such that both labels have the same lengths.

    Texts with lengths that differ by at most 10 % are one stratum. In each, as many positive as
    other texts are drawn: all of the rarer label.

    >>> lengths, is_positive = np.array([5, 5, 5, 9, 30]), np.array([1, 0, 0, 1, 0], dtype=bool)
    >>> equal_lengths(lengths, is_positive).sum(), equal_lengths(lengths, is_positive)[[0, 3, 4]]
    (np.int64(2), array([ True, False, False]))
    """
    generator, chosen = np.random.default_rng(0), np.zeros(len(lengths), dtype=bool)
    stratum = np.floor(np.log(lengths) / np.log(1 + SIMILAR))
    for number in np.unique(stratum):
        sides = [np.flatnonzero((stratum == number) & side) for side in (is_positive, ~is_positive)]
        for rows in sides:
            chosen[generator.permutation(rows)[: min(map(len, sides))]] = True
    return chosen


def over_groups(metric: str, predictions: Predictions, groups: NDArray[np.generic]) -> Interval:
    """Return a metric of predictions with its interval over groups; NaN with fewer than two."""
    if len(np.unique(groups)) < 2:
        return Interval(np.nan, np.nan, np.nan)
    return with_interval(metric, [predictions], Resamples.leave_one_out(groups))
