"""Files with the predictions of a run on its test rows.

Comparisons and calibration are computed from these files, without refitting.

    test_rows.csv             example, group and label of each test row
    sites/<site>.safetensors  predictions and scores of each probe and target at the site; for a
                              nested cross-validation also the fold of each row
    sites/chosen.safetensors  the same for the nested choice
    baselines.safetensors     predictions and scores of the baselines
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.numpy
from numpy.typing import NDArray

from probekit.files import read_csv
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.score.scored import Predictions, Predictor

SEPARATOR = "|"


def read_test_rows(path: Path) -> pd.DataFrame:
    """Return the columns `example`, `group` and `label` of test_rows.csv, all as text."""
    return read_csv(path, dtype=str, keep_default_na=False)


def pack(predictions: Mapping[Predictor, Predictions]) -> bytes:
    """Return predictions as the bytes of a safetensors file, without predictions of trees."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for predictor, answers in predictions.items():
        name = SEPARATOR.join(predictor)
        if isinstance(answers, NumberPredictions):
            arrays[f"{name}{SEPARATOR}guess"] = np.ascontiguousarray(answers.guess)
            arrays |= _folds(name, answers)
        elif isinstance(answers, ClassPredictions):
            arrays[f"{name}{SEPARATOR}guess"] = answers.guess.astype(np.int32)
            arrays |= _folds(name, answers)
            if answers.positive is not None:
                arrays[f"{name}{SEPARATOR}positive"] = np.array([answers.positive], dtype=np.int32)
            if answers.alarms is not None:
                alarms = np.ascontiguousarray(answers.alarms, dtype=np.float32)
                arrays[f"{name}{SEPARATOR}alarms"] = alarms
            if answers.scores is not None:
                kind = "logs" if answers.scores_are_log_probabilities else "scores"
                scores = np.ascontiguousarray(answers.scores, dtype=np.float32)
                arrays[f"{name}{SEPARATOR}{kind}"] = scores
    content: bytes = safetensors.numpy.save(arrays)
    return content


def _folds(
    name: str, predictions: ClassPredictions | NumberPredictions
) -> dict[str, NDArray[np.generic]]:
    """Return arrays with the fold and true label of each row; {} for a single split."""
    if predictions.folds is None:
        return {}
    # True labels are stored, because each draw of the control task has labels of its own.
    return {
        f"{name}{SEPARATOR}fold": predictions.folds.astype(np.int32),
        f"{name}{SEPARATOR}truth": np.ascontiguousarray(predictions.truth),
    }


def unpack(
    content: bytes, truth_of: Callable[[str], NDArray[np.generic]], n_classes: int
) -> dict[Predictor, Predictions]:
    """Return the predictions from bytes returned by `pack`, sorted by probe and target.

    Args:
        content: the bytes.
        truth_of: returns the true labels of the rows that a probe is scored on, given its name.
        n_classes: the number of classes.

    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), n_classes=2)
    >>> content = pack({Predictor("logistic", "task"): predictions})
    >>> ((_, unpacked),) = unpack(content, lambda probe: predictions.truth, 2).items()
    >>> unpacked.guess.tolist()
    [0, 0]
    """
    parts: dict[Predictor, dict[str, NDArray[np.generic]]] = {}
    stored = safetensors.numpy.load(content)
    for name in sorted(stored):  # safetensors returns them in an arbitrary order
        probe, target, kind = name.split(SEPARATOR)
        parts.setdefault(Predictor(probe, target), {})[kind] = stored[name]
    return {
        predictor: _predictions(arrays, truth_of(predictor.probe), n_classes)
        for predictor, arrays in parts.items()
    }


def _predictions(
    arrays: Mapping[str, NDArray[np.generic]], truth: NDArray[np.generic], n_classes: int
) -> Predictions:
    guess, truth = arrays["guess"], arrays.get("truth", truth)
    folds = arrays["fold"].astype(np.int64) if "fold" in arrays else None
    if guess.dtype.kind == "f":
        return NumberPredictions(truth.astype(np.float64), guess.astype(np.float64), folds)
    scores = arrays.get("logs", arrays.get("scores"))
    wide = None if scores is None else scores.astype(np.float64)
    codes = guess.astype(np.int64), truth.astype(np.int64)
    positive = int(arrays["positive"][0]) if "positive" in arrays else None
    return ClassPredictions(
        codes[1],
        codes[0],
        n_classes,
        wide,
        "logs" in arrays,
        folds,
        positive=positive,
        alarms=arrays["alarms"].astype(np.float64) if "alarms" in arrays else None,
    )
