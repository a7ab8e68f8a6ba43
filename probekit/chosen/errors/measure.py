"""Errors of the selected probe, and of the probes at single sites.

For a nested cross-validation, errors are those of the nested choice, whose probes were not fitted
on the rows that they predict. Predictions at tokens are those of the final probe, which was fitted
on all rows.

confusion.csv   confusion matrix on the test rows
wrong.json      worst errors on the test rows: `examples` are those of the selected probe, with its
                prediction at each token; `probes` are those of the probes at single sites, whose
                rows are in `rows`
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix

from probekit.chosen.selected_probe import SelectedProbe
from probekit.data.examples import Example
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.results.network import TextReading
from probekit.results.scores import answers_name

MOST_WRONG = 10  # errors of the selected probe
MOST_OF_A_PROBE = 5  # errors of each other probe
MOST_PROBES = 200  # whose errors are written
MOST_CHARACTERS = 300  # of the text of an error of another probe


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, Any]:
    """Return the confusion matrix and the worst errors; nothing without predicted classes."""
    if chosen.predictions is None:
        return {}
    classes, own = chosen.classes, chosen.predictions
    counts = confusion_matrix(own.truth, own.guess, labels=range(len(classes)))
    truth, guess = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    confusion = pd.DataFrame({"truth": truth, "guess": guess, "n": counts.ravel()})
    examples = wrong_examples(chosen, own)
    probes, rows = wrong_of_probes(chosen)
    errors = {"classes": classes.tolist(), "examples": examples, "probes": probes, "rows": rows}
    return {"confusion.csv": confusion, "wrong.json": errors if examples or rows else {}}


def wrong_of_probes(chosen: SelectedProbe) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the worst errors of the probes at single sites, and the rows that they refer to.

    Of more than `MOST_PROBES` probes, those of the selected kind and position come first. Probes
    without scores, or that predict other rows than all test rows, are left out.
    """
    found: list[tuple[dict[str, Any], ClassPredictions]] = []
    for result in chosen.results:
        # One row of each probe, for the place, which is the same in all of its rows.
        rows = {row["probe"]: row for row in result.rows if row["site"] is not None}
        for probe, row in rows.items():
            predictions = result.predictions.get(Predictor(probe, "task"))
            if isinstance(predictions, ClassPredictions):
                found.append((row, predictions))
    # Those of the selected kind and position come first.
    found.sort(key=lambda one: any(one[0][of] != chosen.row[of] for of in ("probe", "position")))
    number_of: dict[int, int] = {}  # number in the file of each test row with an error
    names, probes = [at.text for at in chosen.source.design.positions], []
    for row, predictions in found[:MOST_PROBES]:
        worst = worst_errors(chosen, predictions, MOST_OF_A_PROBE)
        if worst is None:
            continue
        wrong = predictions.guess != predictions.truth
        position, errors = names.index(row["position"]), list[dict[str, Any]]()
        for number, ahead in worst.items():
            error: dict[str, Any] = {"row": number_of.setdefault(number, len(number_of))}
            error |= {"guess": str(chosen.classes[predictions.guess[number]]), "ahead": ahead}
            errors.append(error | {"probed": _moved(chosen, number, position)})
        place = {name: row[name] for name in ("site", "head", "position", "probe")}
        counts = {"n_wrong": int(wrong.sum()), "n_rows": len(wrong), "errors": errors}
        probes.append({"name": answers_name(row)} | place | counts)
    rows_of_errors = []
    for example in (_example(chosen, number) for number in number_of):
        text, span, _ = excerpt(example.text, example.span)
        rows_of_errors.append(_row(example) | {"text": text, "span": span})
    return probes, rows_of_errors


def worst_errors(
    chosen: SelectedProbe, predictions: ClassPredictions, most: int
) -> dict[int, float | None] | None:
    """Return the errors with the largest margin over the true label, at most one per group.

    The keys are indices of test rows, worst first. The values are margins, or None if the margin is
    infinite, because the probe was not fitted on the true label. Returns None if there are no
    scores, or if the predictions are not those of all test rows.
    """
    scores, guess, truth = predictions.scores, predictions.guess, predictions.truth
    test_rows = chosen.prober.test_rows
    if scores is None or not len(guess) == len(truth) == len(test_rows):
        return None
    rows = np.arange(len(guess))
    margin = scores[rows, guess] - scores[rows, truth]
    is_wrong = guess != truth
    # Errors by descending margin, then the rows without an error.
    order = np.argsort(-np.where(is_wrong, margin, -np.inf), kind="stable")
    worst: dict[Any, int] = {}  # row with the largest margin, by group
    for number in order[: is_wrong.sum()].tolist():
        worst.setdefault(chosen.prober.data.groups[test_rows[number]], number)
    return {
        number: round(float(margin[number]), 4) if np.isfinite(margin[number]) else None
        for number in list(worst.values())[:most]
    }


def _example(chosen: SelectedProbe, number: int) -> Example:
    """Return the example of a test row, given its index among the test rows."""
    rows, row = chosen.source.design, chosen.prober.test_rows[number]
    return rows.dataset.examples[int(rows.example[row])]


def _row(example: Example) -> dict[str, Any]:
    """Return text, place and label of an example, and the line of its file, or what names it."""
    row = {name: getattr(example, name) for name in ("text", "span", "group", "label")}
    return row | {"where": example.source.row if example.source else example.id}


def _token_read(chosen: SelectedProbe, number: int, position: int) -> tuple[int, int] | None:
    """Return the characters of the one token that a test row reads; None if it reads several."""
    token = chosen.source.design.positions[position].token
    row = chosen.prober.test_rows[number]
    if token is None or chosen.reads_texts or token[row, 0] < 0:
        return None
    return tuple(token[row].tolist())


def _moved(chosen: SelectedProbe, number: int, position: int) -> tuple[int, int] | None:
    """Return the characters of the probed token in the excerpt of a test row, if it is there."""
    example, token = _example(chosen, number), _token_read(chosen, number, position)
    text, _, shift = excerpt(example.text, example.span)
    if token is None or not 0 <= token[0] + shift < token[1] + shift <= len(text):
        return None
    return token[0] + shift, token[1] + shift


def excerpt(text: str, span: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None, int]:
    """Return at most `MOST_CHARACTERS` of a text around the start of a span, and the moved span.

    The last value is the number of characters by which it was moved.

    Without a span the end of the text is returned. Ellipses, in addition to these characters,
    replace the rest. A span that continues beyond the excerpt ends with it.

    >>> excerpt("short", None)
    ('short', None, 0)
    >>> text, span, _ = excerpt("x" * 1000 + "word", (1000, 1004))
    >>> len(text), text[slice(*span)]
    (301, 'word')
    """
    if len(text) <= MOST_CHARACTERS:
        return text, span, 0
    middle = len(text) if span is None else span[0]
    start = max(0, min(middle - MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS))
    end = start + MOST_CHARACTERS
    before, after = "…" if start > 0 else "", "…" if end < len(text) else ""
    cut = before + text[start:end] + after
    shift = len(before) - start
    if span is None:
        return cut, None, shift
    return cut, (span[0] + shift, min(span[1], end) + shift), shift


def wrong_examples(chosen: SelectedProbe, predictions: ClassPredictions) -> list[dict[str, Any]]:
    """Return the worst errors of the selected probe; none without scores.

    Each error has its tokens, with the probe's prediction at each. They are empty if several probes
    made the errors, if the probe was not saved, if there is no model, or if the text of one of
    these errors is empty.
    """
    worst = worst_errors(chosen, predictions, MOST_WRONG) or {}
    examples = [_example(chosen, number) for number in worst]
    texts = [example.text for example in examples]
    probe = None if chosen.prober.is_nested else chosen.saved
    readings: Sequence[TextReading | None] = [None] * len(texts)
    if probe is not None and texts and all(texts):  # an empty text has no tokens to predict at
        readings = chosen.source.readings(probe, texts)
    errors = []
    for number, example, reading in zip(worst, examples, readings, strict=True):
        error = _row(example) | {"guess": str(chosen.classes[predictions.guess[number]])}
        error["ahead"] = worst[number]
        error["probed"] = _token_read(chosen, number, chosen.position)
        read = reading or TextReading("", (), (), ())
        error["tokens"] = [
            {"token": token, "span": span, "label": one.label, "score": round(one.score, 4)}
            for token, span, one in zip(read.tokens, read.spans, read.answers, strict=True)
        ]
        errors.append(error)
    return errors
