"""Tables of the selected aggregated probe: its rules, and how early it flags texts.

aggregation.csv   for each rule, its cross-validated score, the association of the scores of texts
                  with their lengths, and the score at equal length; all of held-out texts
flagged.csv       share of the test texts of each label that are flagged within a number of tokens:
                  whose score up to one of these tokens predicted the positive label
token_scores.csv  score up to each token of some test texts
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from probekit.probes.arrays import Codes, Floats
from probekit.probes.score.lengths import length_association, matched_auroc
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, Resamples, auroc
from probekit.results.table import PAGE_TABLES

if TYPE_CHECKING:  # that module calls this one
    from probekit.pipeline.measure.selected_probe import SelectedProbe

MOST_STEPS = 60  # numbers of tokens in flagged.csv
LONGEST = 0.95  # share of the texts that are no longer than the last of these numbers


def aggregated_tables(chosen: SelectedProbe) -> dict[str, pd.DataFrame]:
    """Return the tables of an aggregated probe by file name.

    Only the score of each rule is known without a positive label, of two. A nested cross-validation
    has no scores of tokens: its saved probe was fitted on all texts.
    """
    prober, X = chosen.prober, chosen.X
    spec = next(one for one in prober.settings.kinds if one.text == chosen.row["probe"])
    probe = prober.text_probe(spec, X)
    tables = {"aggregation.csv": _rules(chosen, probe)}
    positive = prober.data.positive_code
    if len(prober.data.classes) != 2 or positive is None:
        return tables
    # Of each test text, its first row and its scores for the positive label up to each token.
    first, running = [], []
    for fitted, tokens in prober.tested_texts(spec, X, probe):
        order = np.argsort(tokens.example_of_row, kind="stable")
        outputs = fitted.fit_.scores(X.select(tokens.rows[order]))
        ends = np.cumsum(np.bincount(tokens.example_of_row))[:-1]
        sign = 1 if positive else -1
        for text in np.split(outputs, ends):
            running.append(sign * fitted.fit_.aggregation.running(text, 1)[:, 0])
        first.append(tokens.first)
    rows = np.concatenate(first)
    tables["flagged.csv"] = _flagged(chosen, rows, running)
    if not prober.is_nested:
        tables["token_scores.csv"] = _examples(chosen, rows, running)
    return tables


def _rules(chosen: SelectedProbe, probe: Any) -> pd.DataFrame:
    """Return the table of the rules; with NaN for what only two labels have."""
    prober = chosen.prober
    data, tokens = prober.data, prober.saved_tokens
    first = tokens.first[probe.known_]
    lengths = np.bincount(tokens.example_of_row)[probe.known_]
    labels, groups = np.searchsorted(data.classes, data.y[first]), data.groups[first]
    rows = []
    for rule, (C, rating, scores) in probe.of_rules_.items():
        row: dict[str, Any] = {"rule": rule, "is_selected": rule == probe.rule_, "C": C}
        row |= {"metric": prober.main_metric, "n_texts": len(first)}
        row["value"] = METRICS[prober.main_metric].sign * rating
        if len(data.classes) == 2 and data.positive_code is not None:
            is_positive = labels == data.positive_code
            score = scores[:, 1] * (1 if data.positive_code else -1)
            rho, p = length_association(score, lengths, labels, groups)
            matched, n_pairs = matched_auroc(score, lengths, is_positive, groups)
            predictions = ClassPredictions.of_scores(
                labels, scores, are_logits=True, positive=data.positive_code
            )
            of_all = float(auroc(predictions, Resamples.whole(len(score)))[0])
            row |= {"rho": rho, "p": p, "auroc": of_all, "n_pairs": n_pairs}
            row |= {"matched": matched.value, "low": matched.low, "high": matched.high}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(PAGE_TABLES["aggregation.csv"])).round(6)


def _first_flags(running: list[Floats]) -> Floats:
    """Return the number of tokens (n_texts,) after which each text is flagged; inf if never."""
    found = []
    for scores in running:
        places = np.flatnonzero(scores > 0)
        found.append(places[0] + 1.0 if len(places) else np.inf)
    return np.array(found)


def _flagged(chosen: SelectedProbe, rows: Codes, running: list[Floats]) -> pd.DataFrame:
    """Return the share of test texts flagged within a number of tokens, for each label."""
    labels, flags = chosen.prober.data.y[rows], _first_flags(running)
    longest = int(np.ceil(np.quantile([len(scores) for scores in running], LONGEST)))
    steps = np.unique(np.linspace(1, longest, min(longest, MOST_STEPS)).round().astype(int))
    return pd.DataFrame(
        {
            "label": label,
            "tokens": int(step),
            "share": round(float(np.mean(flags[labels == label] <= step)), 6),
            "n_texts": int(np.sum(labels == label)),
        }
        for label in chosen.classes.tolist()
        for step in steps
    )


def _examples(chosen: SelectedProbe, rows: Codes, running: list[Floats]) -> pd.DataFrame:
    """Return the score up to each token of some test texts, by the saved probe.

    They are the positive texts that are flagged first, in the middle and last, the first that is
    not flagged, and of the other texts the two with the highest final score.
    """
    data, probe = chosen.prober.data, chosen.saved(chosen.site.text)
    positive, flags = data.classes[data.positive_code], _first_flags(running)
    is_positive = data.y[rows] == positive
    flagged = np.flatnonzero(is_positive & np.isfinite(flags))
    flagged = flagged[np.argsort(flags[flagged], kind="stable")]
    final = np.array([scores[-1] for scores in running])
    others = np.flatnonzero(~is_positive)
    picked = [
        flagged[at] for at in sorted({0, len(flagged) // 2, len(flagged) - 1}) if len(flagged)
    ]
    picked += [*np.flatnonzero(is_positive & np.isinf(flags))[:1]]
    picked += [*others[np.argsort(-final[others], kind="stable")][:2]]
    examples = chosen.source.rows.dataset.examples
    texts = [examples[int(chosen.source.rows.example[rows[number]])] for number in picked]
    if probe is None or not all(example.text for example in texts):
        return pd.DataFrame()
    table, sign = [], 1 if data.positive_code else -1
    readings = chosen.source.readings(probe, chosen.site, [example.text for example in texts])
    for number, (example, reading) in enumerate(zip(texts, readings, strict=True)):
        assert reading is not None  # there is a model, because given activations have no texts
        for place, answer in enumerate(reading.answers):
            score = round(sign * answer.score, 4)
            row = {"text": number, "group": example.group, "label": example.label}
            table.append(
                row | {"tokens": place + 1, "token": reading.tokens[place], "score": score}
            )
    return pd.DataFrame(table)
