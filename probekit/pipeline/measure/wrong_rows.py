"""The worst errors on the test rows, of the selected probe and of each probe at each site.

wrong.json   `examples` are the errors of the selected probe, with its prediction at each token.
             `probes` are the errors of the probes at single sites; their rows are in `rows`.

For a nested cross-validation, each row is predicted by the outer fold that did not train on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.data.examples import Example
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.selected_probe import SelectedProbe
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor, SiteResult
from probekit.provenance import pretty_json
from probekit.results.network import TextReading
from probekit.results.selection import answers_name

MOST_WRONG = 10  # errors of the selected probe
MOST_OF_A_PROBE = 5  # errors of each other probe
MOST_PROBES = 200
MOST_CHARACTERS = 300  # of the text of an error of another probe


def write_wrong_rows(
    folder: RunFolder, chosen: SelectedProbe, results: Sequence[SiteResult]
) -> None:
    """Write wrong.json, unless no row is misclassified."""
    examples = wrong_examples(chosen)
    probes, rows = wrong_of_probes(chosen, results)
    if examples or rows:
        classes = chosen.classes.tolist()
        content = {"classes": classes, "examples": examples, "probes": probes, "rows": rows}
        folder.write("wrong.json", pretty_json(content))


def wrong_of_probes(
    chosen: SelectedProbe, results: Sequence[SiteResult]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the worst errors of the probes at single sites, and the rows that they refer to.

    Of more than `MOST_PROBES` probes, those of the selected kind and position come first.
    """
    found = []
    for result in results:
        rows = {row["probe"]: row for row in result.rows if row["site"] is not None}
        for probe, row in rows.items():
            predictions = result.predictions.get(Predictor(probe, "task"))
            if isinstance(predictions, ClassPredictions):
                found.append((row, predictions))
    same = ("probe", "position")
    found.sort(key=lambda one: any(one[0][name] != chosen.row[name] for name in same))
    number_of: dict[int, int] = {}
    probes = []
    for row, predictions in found[:MOST_PROBES]:
        worst = worst_errors(chosen, predictions, MOST_OF_A_PROBE)
        if worst is None:
            continue
        wrong = predictions.guess != predictions.truth
        errors = [
            {
                "row": number_of.setdefault(number, len(number_of)),
                "guess": str(chosen.classes[predictions.guess[number]]),
                "ahead": ahead,
            }
            for number, ahead in worst.items()
        ]
        name = {"name": answers_name(row), "site": row["site"], "head": row["head"]}
        place = {"position": row["position"], "probe": row["probe"]}
        counts = {"n_wrong": int(wrong.sum()), "n_rows": len(wrong)}
        probes.append(name | place | counts | {"errors": errors})
    rows_of_errors = []
    for number in number_of:
        example = _example(chosen, number)
        text, span = excerpt(example.text, example.span)
        rows_of_errors.append({"text": text, "span": span, **_truth(chosen, number)})
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
    order = np.argsort(-np.where(guess == truth, -np.inf, margin), kind="stable")
    worst: dict[str, int] = {}
    for number in order[: int((guess != truth).sum())].tolist():
        worst.setdefault(str(chosen.prober.data.groups[test_rows[number]]), number)
    return {
        n: round(float(margin[n]), 4) if np.isfinite(margin[n]) else None
        for n in list(worst.values())[:most]
    }


def _truth(chosen: SelectedProbe, number: int) -> dict[str, str]:
    data, row = chosen.prober.data, chosen.prober.test_rows[number]
    return {"group": str(data.groups[row]), "label": str(data.y[row])}


def _example(chosen: SelectedProbe, number: int) -> Example:
    rows, row = chosen.source.rows, chosen.prober.test_rows[number]
    return rows.dataset.examples[int(rows.example[row])]


def excerpt(text: str, span: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None]:
    """Return at most `MOST_CHARACTERS` of a text around the start of a span, and the moved span.

    Without a span the end of the text is returned. Ellipses replace the rest.

    >>> excerpt("short", None)
    ('short', None)
    >>> text, span = excerpt("x" * 1000 + "word", (1000, 1004))
    >>> len(text), text[slice(*span)]
    (301, 'word')
    """
    if len(text) <= MOST_CHARACTERS:
        return text, span
    middle = len(text) if span is None else span[0]
    start = max(0, min(middle - MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS))
    end = start + MOST_CHARACTERS
    cut = "…" * (start > 0) + text[start:end] + "…" * (end < len(text))
    if span is None:
        return cut, None
    moved = (start > 0) - start
    return cut, (span[0] + moved, min(span[1], end) + moved)


def wrong_examples(chosen: SelectedProbe) -> list[dict[str, Any]]:
    """Return the worst errors of the selected probe.

    If the probe was saved, each error has its tokens, with the probe's prediction at each token.
    """
    worst = worst_errors(chosen, chosen.predictions, MOST_WRONG) or {}
    examples = [_example(chosen, number) for number in worst]
    texts, probe = [example.text for example in examples], chosen.saved(chosen.site.text)
    readings: Sequence[TextReading | None] = [None] * len(texts)
    if probe is not None and texts and all(texts):
        readings = chosen.source.readings(probe, chosen.site, texts)
    return [
        {
            "text": example.text,
            "span": example.span,
            **_truth(chosen, number),
            "guess": str(chosen.classes[chosen.predictions.guess[number]]),
            "ahead": worst[number],
            "tokens": [] if reading is None else _tokens(reading),
        }
        for number, example, reading in zip(worst, examples, readings, strict=True)
    ]


def _tokens(reading: TextReading) -> list[dict[str, Any]]:
    """Return each token with its character span in the text and the probe's prediction."""
    return [
        {"token": token, "span": span, "label": answer.label, "score": round(answer.score, 4)}
        for token, span, answer in zip(reading.tokens, reading.spans, reading.answers, strict=True)
    ]
