"""Columns that an experiment does not use, tested against the label: unasked.csv."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import LEVEL, counted, fixed
from probekit.chosen.selected_probe import SelectedProbe
from probekit.chosen.unasked import statistics
from probekit.chosen.unasked.columns import FurtherColumns, further_columns
from probekit.data.examples import Finding
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import Floats
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.measure.significance import difference_columns
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, Resamples, take
from probekit.probes.score.scored import metrics_of
from probekit.report.sentences.answer import p_words

LEAST_AUROC = 0.6  # of a column alone, from which there is a warning

# Of the difference of the selected probe from a column with a warning, on test rows.
COMPARED_COLUMNS = (
    "metric value_b difference ci_low ci_high p p_adjusted adjusted_low adjusted_high"
)

_READ: WeakKeyDictionary[ExperimentDesign, FurtherColumns] = WeakKeyDictionary()


def _columns(experiment: AnyExperiment, design: ExperimentDesign) -> FurtherColumns:
    """Return the columns that an experiment does not use, read once for each design.

    There are none if labels are neither classes nor numbers, which a column could predict.
    """
    if design not in _READ:
        _READ[design] = further_columns(experiment, design)
    return _READ[design]


def identity(source: Engine) -> str:
    """Return the digest of the columns, on which the results depend."""
    return _columns(source.experiment, source.design).digest


def further_findings(source: Engine) -> Iterator[Finding]:
    """Yield a warning for each column that predicts the label, before a run."""
    for row in tested(source.experiment, source.design):
        if row["is_warned"]:
            yield Finding("warning", "unasked", row["message"])


def tested(experiment: AnyExperiment, design: ExperimentDesign) -> list[dict[str, Any]]:
    """Return the name, p and, if that is significant, AUROC and warning of each column."""
    found = _columns(experiment, design)
    if not found.columns:
        return []
    y, groups = _labels(experiment, design.dataset.labels[found.examples]), found.groups
    p = statistics.p_of_columns(found.columns, statistics.label_columns(y), groups)
    rows = [
        {"column": name, "p_of_column": single, "p_holm": adjusted, "decides": _decides(column, y)}
        for (name, column), single, adjusted in zip(
            found.columns.items(), p, statistics.adjusted_p(p), strict=True
        )
    ]
    for row in rows:
        column, is_related = found.columns[row["column"]], row["p_holm"] < LEVEL
        row["auroc"] = statistics.auroc_alone(column, y, groups) if is_related else np.nan
        row["is_warned"] = row["auroc"] >= LEAST_AUROC
        warning = warning_of(row, len(rows), experiment.confounds)
        row["message"] = warning if row["is_warned"] else ""
    return rows


def _labels(experiment: AnyExperiment, labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as numbers, or codes."""
    if experiment.reads_numbers:
        return labels.astype(np.float64)
    return np.unique(labels.astype(str), return_inverse=True)[1]


def _decides(column: statistics.ColumnCells, y: NDArray[Any]) -> bool:
    """Return whether each value of a category has a single label, so that nothing is left."""
    if column.dtype.kind == "f" or y.dtype.kind == "f":
        return False
    pairs = np.unique(np.stack([np.unique(column, return_inverse=True)[1], y]), axis=1)
    return bool(pairs.shape[1] == len(np.unique(column)))


def warning_of(row: Mapping[str, Any], n_tested: int, declared: Sequence[str] | None) -> str:
    """Return the warning of a column, where others are declared already.

    >>> row = {"column": "source", "auroc": 0.81, "p_holm": 0.004, "decides": False}
    >>> warning_of(row, 3, ["length"]).partition(". ")[2]
    '`confounds: [length, source]` shows what the probe adds to it.'
    >>> warning_of(row | {"column": "a, b"}, 3, None).partition(". ")[2]
    '`confounds: ["a, b"]` shows what the probe adds to it.'
    """
    text = (
        f"The column `{row['column']}` alone predicts the label: AUROC {fixed(row['auroc'], 2)} in "
        f"held-out groups, {p_words(row['p_holm'])} (adjusted for {counted(n_tested, 'column')})."
    )
    if row["decides"]:
        return (
            f"{text} Each of its values has one label, so that the two cannot be separated here: "
            "add rows in which they differ or, if it is the label in other words, remove the "
            "column from the data."
        )
    # Other names have quotes, so that YAML reads them as they are.
    names = ", ".join(
        name if re.fullmatch(r"[^\W\d][\w -]*", name) else json.dumps(name, ensure_ascii=False)
        for name in (*(declared or ()), row["column"])
    )
    return f"{text} `confounds: [{names}]` shows what the probe adds to it."


def tables(_settings: Any, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return a row for each column that was tested, with the score of those with a warning."""
    rows = tested(chosen.source.experiment, chosen.source.design)
    warned = [row["column"] for row in rows if row["is_warned"]]
    compared = _compared(warned, chosen) if warned and chosen.scores.chosen is not None else {}
    empty = dict.fromkeys(COMPARED_COLUMNS.split())
    return {"unasked.csv": [row | empty | compared.get(row["column"], {}) for row in rows]}


def _compared(names: Sequence[str], chosen: SelectedProbe) -> dict[str, dict[str, Any]]:
    """Return the paired differences of the selected probe from each column alone, on test rows.

    Nothing if the predictions are not of single rows, or if the metric needs a threshold of
    training rows.
    """
    own, prober, metric = chosen.scored, chosen.prober, chosen.row["metric"]
    if own is None or len(prober.rows_of(chosen.spec.text)) != len(prober.test_rows):
        return {}
    found, design = _columns(chosen.source.experiment, chosen.source.design), chosen.source.design
    place = np.full(len(design.dataset), -1)
    place[found.examples] = np.arange(len(found.examples))
    is_read, test = place[design.example] >= 0, prober.test_rows
    tested_rows, widening = test[is_read[test]], WIDER_OVER_FOLDS if prober.is_nested else 1.0
    resamples = Resamples.leave_one_out(prober.data.groups[tested_rows], widening=widening)
    score = metrics_of(own)[metric](take(own, is_read[test]), resamples)
    truth, others = prober.splits[0].task, []
    for name in names:
        column, parts = found.columns[name][place[design.example]], list[Floats]()
        for split in prober.splits:
            fitted, rows = split.fitted, split.scored.test[is_read[split.scored.test]]
            inside = is_read[fitted.rows]
            train = fitted.rows[inside], fitted.fold_of_row[inside]
            parts.append(statistics.guesses(column, truth, *train, rows)[rows])
        guess = statistics.predictions(
            truth[tested_rows], np.concatenate(parts), prober.splits[0].fitted.positive
        )
        if metric not in metrics_of(guess):
            return {}
        others.append(metrics_of(guess)[metric](guess, resamples))
    tests = paired_differences([(score, other) for other in others], resamples)
    return {
        name: difference_columns(one, metric) | {"metric": metric}
        for name, one in zip(names, tests, strict=True)
    }
