"""Tables of the selected aggregated probe: its rules, and how early it flags texts.

aggregation.csv   for each rule, its cross-validated score, the correlation of the scores of texts
                  with their lengths, and the AUROC of all texts and at equal length; all of
                  held-out texts
flagged.csv       for each label and number of tokens, the median score of the test texts up to
                  this token, and the share of them that are flagged within this number of tokens:
                  whose score up to one of these tokens predicted the positive label
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from probekit.lazy_rows import LazyRows
from probekit.probes.prober import Prober
from probekit.probes.score.lengths import equal_lengths, length_correlation, with_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, take
from probekit.results.table import OF_RULES, PAGE_TABLES

MOST_STEPS = 60  # numbers of tokens in flagged.csv
LONGEST = 0.95  # share of the texts that are no longer than the last of these numbers


def aggregated_tables(prober: Prober, kind: str, X: LazyRows) -> dict[str, pd.DataFrame]:
    """Return the tables of an aggregated probe at a site by file name.

    Only the score of each rule is known without a positive label, of two. Rules are those of the
    saved probe; test texts are scored by the probes that were fitted without them.
    """
    (spec,) = (one for one in prober.settings.kinds if one.text == kind)
    running, rows = [], []
    for fitted, tested in prober.text_sides:
        probe = prober.text_probe(spec, X, fitted)
        if tested is not None:
            order = np.argsort(tested.example_of_row, kind="stable")
            outputs = probe.fit_.scores(X.select(tested.rows[order]))
            ends = np.cumsum(np.bincount(tested.example_of_row))[:-1]
            running += [
                probe.fit_.aggregation.running(one)[:, 0] for one in np.split(outputs, ends)
            ]
            rows.append(tested.first)
    data, positive, first = prober.data, prober.data.positive_code, fitted.first
    codes = np.searchsorted(data.classes, data.y)
    is_binary, main = len(data.classes) == 2 and positive is not None, prober.main_metric
    labels, groups, lengths = codes[first], data.groups[first], np.bincount(fitted.example_of_row)
    rules: list[dict[str, Any]] = []
    for rule, scored in probe.of_rules_.items():
        row = {"rule": rule, "is_selected": rule == probe.rule_, "C": scored.C, "metric": main}
        row |= {"value": METRICS[main].sign * scored.rating, "n_texts": len(first)}
        if is_binary:
            held_out = ClassPredictions.of_scores(
                labels, scored.held_out, True, probe.fold_of_text_, positive=positive
            )
            equal = equal_lengths(lengths, labels == positive)
            score = scored.held_out[:, 1] * (1 if positive else -1)
            found = (
                with_interval("auroc", held_out, groups),
                with_interval("auroc", take(held_out, equal), groups[equal]),
                length_correlation(score, lengths, labels, groups),
            )
            for name, one in zip(OF_RULES, found, strict=True):
                row |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
            row["n_equal"] = int(equal.sum())
        rules.append(row)
    tables = {"aggregation.csv": pd.DataFrame(rules, columns=[*PAGE_TABLES["aggregation.csv"]])}
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
