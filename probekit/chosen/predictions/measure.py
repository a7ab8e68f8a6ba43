"""Each test row with the guesses of the reported probe and of its rivals: predictions.csv.

Every run has this file. Its rows are in the order of all stored predictions, and the reference of
the documentation has its columns. Without predictions row by row, as of trees or if no probe was
selected, columns end with the true label. A selected probe of whole texts has its guess in the
first row of each text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from probekit.chosen.registry import TEST_ROWS
from probekit.chosen.selected_probe import SelectedProbe
from probekit.data.examples import Dataset, RowExamples
from probekit.experiment.ask import SWAPPED
from probekit.experiment.schema import Experiment
from probekit.probes.fitters import RowPredictions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.results.record import MOST_CLASSES
from probekit.results.scores import site_with_head


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, pd.DataFrame]:
    """Return the test rows, and what is predicted for them."""
    design, test_rows = chosen.source.design, chosen.probers[0].test_rows
    tested = design.dataset.select(design.example[test_rows])
    known = {name: tested.column(name) for name in ("id", "text", "group")}
    rows = pd.DataFrame(known | {"truth": tested.labels}, index=test_rows)
    rows.insert(1, "line", _lines(tested))
    if isinstance(experiment := chosen.source.experiment, Experiment) and experiment.tokens.balance:
        rows[SWAPPED] = [dict(example.values)[SWAPPED] for example in tested.examples]
    return {TEST_ROWS: rows.join(_predicted(chosen))}


def _lines(tested: Dataset) -> Any:
    """Return the line of each row in its file, or its index in a table or an array in memory."""
    if isinstance(tested.examples, RowExamples):
        return tested.examples.numbers
    sources = [example.source for example in tested.examples]
    return [source and (source.line or source.key) for source in sources]


def _predicted(chosen: SelectedProbe) -> pd.DataFrame:
    """Return the columns of the reported probe and of its rivals; the index has row numbers."""
    own = None if chosen.scores.chosen is None else chosen.scored
    if not isinstance(own, ClassPredictions | NumberPredictions):
        return pd.DataFrame()
    prober, is_nested = chosen.prober, chosen.prober.is_nested
    rows = prober.rows_of(NESTED_PROBE if is_nested else chosen.spec.text)
    if len(rows) != len(own.guess):
        return pd.DataFrame()
    # Each outer fold has its own choice, a single split has one.
    fold = np.zeros(len(rows), dtype=np.int64) if own.folds is None else own.folds
    choices = pd.DataFrame(chosen.scores.choices)
    choices["site"] = list(map(site_with_head, choices["site"], choices["head"]))
    table = choices[["site", "position", "probe"]].iloc[fold].set_axis(rows)
    table["fold"] = fold if is_nested else None
    if chosen.source.design.has_types:
        table.insert(0, "word", _words(chosen, rows, fold))
    table["guess"] = _guess(chosen, own)
    scores = own.scores if isinstance(own, ClassPredictions) else None
    if scores is not None and len(chosen.classes) <= MOST_CLASSES:
        table[[f"score_{label}" for label in chosen.classes]] = scores
    rivals = _rivals(chosen) if np.array_equal(rows, prober.test_rows) else {}
    for target, predictions in rivals.items():
        table[f"guess_{target}"] = _guess(chosen, predictions)
    return table


def _words(chosen: SelectedProbe, rows: Any, fold: Any) -> Any:
    """Return the word or token that each row reads, at the position that its fold chose."""
    words = np.empty(len(rows), dtype=object)
    for number, choice in enumerate(chosen.scores.choices):
        position, own = chosen.place_of(choice)[0], fold == number
        words[own] = chosen.source.design.positions[position].types[rows[own]]
    return words


def _guess(chosen: SelectedProbe, predictions: RowPredictions) -> Any:
    """Return the predicted label or number of each row."""
    guess, is_class = predictions.guess, isinstance(predictions, ClassPredictions)
    # Objects, which all rows with a label share.
    return chosen.classes.astype(object)[guess] if is_class else guess


def _rivals(chosen: SelectedProbe) -> dict[str, RowPredictions]:
    """Return the predictions of baselines, networks and nested choices of other targets, by target.

    In a sweep of positions, the choice of each fold, which comes last, replaces the baselines at
    the position of the final probe.
    """
    at = ("", chosen.row["position"])
    results = [one for one in chosen.results if one.place["site"] is None]
    return {
        target: predictions
        for result in results
        if result.place["position"] in at
        for (_, target), predictions in result.predictions.items()
        if target != HEADLINE and isinstance(predictions, ClassPredictions | NumberPredictions)
    }
