"""The predictions of a run on its test rows, as files.

Comparisons and calibration are computed from these files, without fitting again.

    test_rows.csv             example, group and label of each test row
    sites/<site>.safetensors  guesses and scores of each probe and target at the site
    baselines.safetensors     the same of the guesses made without activations
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors.numpy
from numpy.typing import NDArray

from probekit.csv_files import read_csv
from probekit.probes.score.measurement import Predictions
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.regression import NumberPredictions

SEPARATOR = "|"


class Predictor(NamedTuple):
    """Whose answers they are: the kind of probe, "none" for a baseline, and the target."""

    probe: str
    target: str


def read_test_rows(path: Path) -> pd.DataFrame:
    """Return the columns `example`, `group` and `label`, all as text."""
    return read_csv(path, dtype=str, keep_default_na=False)


def pack(said: Mapping[Predictor, Predictions]) -> bytes:
    """Return the answers as the bytes of a safetensors file; those on wholes are left out."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for speaker, answers in said.items():
        name = SEPARATOR.join(speaker)
        if isinstance(answers, NumberPredictions):
            arrays[f"{name}{SEPARATOR}guess"] = np.ascontiguousarray(answers.guess)
        elif isinstance(answers, ClassPredictions):
            arrays[f"{name}{SEPARATOR}guess"] = answers.guess.astype(np.int32)
            if answers.scores is not None:
                kind = "logs" if answers.scores_are_log_probabilities else "scores"
                scores = np.ascontiguousarray(answers.scores, dtype=np.float32)
                arrays[f"{name}{SEPARATOR}{kind}"] = scores
    content: bytes = safetensors.numpy.save(arrays)
    return content


def unpack(
    content: bytes, truth_of: Callable[[str], NDArray[np.generic]], n_classes: int
) -> dict[Predictor, Predictions]:
    """Return the answers that `pack` made bytes of; `truth_of` a probe's name is (n_test,).

    >>> answers = ClassPredictions(np.array([0, 1]), np.array([0, 0]), n_classes=2)
    >>> said = {Predictor("logistic", "task"): answers}
    >>> ((_, again),) = unpack(pack(said), lambda probe: answers.truth, 2).items()
    >>> again.guess.tolist()
    [0, 0]
    """
    parts: dict[Predictor, dict[str, NDArray[np.generic]]] = {}
    for name, array in safetensors.numpy.load(content).items():
        probe, target, kind = name.split(SEPARATOR)
        parts.setdefault(Predictor(probe, target), {})[kind] = array
    return {
        speaker: _answers(arrays, truth_of(speaker.probe), n_classes)
        for speaker, arrays in parts.items()
    }


def _answers(
    arrays: Mapping[str, NDArray[np.generic]], truth: NDArray[np.generic], n_classes: int
) -> Predictions:
    guess = arrays["guess"]
    if guess.dtype.kind == "f":
        return NumberPredictions(truth.astype(np.float64), guess.astype(np.float64))
    scores = arrays.get("logs", arrays.get("scores"))
    wide = None if scores is None else scores.astype(np.float64)
    codes = guess.astype(np.int64), truth.astype(np.int64)
    return ClassPredictions(codes[1], codes[0], n_classes, wide, "logs" in arrays)
