"""A probe that is kept: a function of raw activations, and the facts of its making.

No scaler is kept: it is folded into the weights, so that whoever reads the files with other tools
needs nothing but a matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from probekit.errors import ConfigError, DataError
from probekit.probes.saved.facts import ProbeFacts
from probekit.probes.saved.files import Floats, LayerArrays, damaged_probe, read_probe, write_probe


@dataclass(frozen=True, eq=False)
class SavedProbe:
    """A fitted probe as a function of raw activations.

    Attributes:
        layers: weight (n_out, n_in) and bias (n_out,) of each linear map, a ReLU between two. The
            last gives one score for two classes, that of the second, or for a number; else one a
            class.
        classes: the labels in the order of the scores; none for a probe of numbers.
        facts: where it reads, and how well it did.

    Raises:
        DataError: shapes, classes and numbers do not make a probe.

    >>> facts = ProbeFacts(
    ...     kind="logistic", scores_are_logits=True, sites=("blocks.0.hook_resid_post",),
    ...     position={"at": "last"}, bos=False, model="mini", compute="float32", dtype="float32",
    ...     weights="", tokenizer="", cache="", seed=0, created="", versions={},
    ... )
    >>> probe = SavedProbe(((np.array([[3.0, 4.0]]), np.array([-1.0])),), ("no", "yes"), facts)
    >>> probe.scores([[1.0, 0.0], [0.0, 0.0]]).tolist(), probe.predict([[1.0, 0.0]]).tolist()
    ([2.0, -1.0], ['yes'])
    >>> probe.direction_names, probe.unit_directions.tolist()
    (('yes',), [[0.6, 0.8]])
    """

    layers: tuple[LayerArrays, ...]
    classes: tuple[str, ...]
    facts: ProbeFacts

    def __post_init__(self) -> None:
        layers = tuple((_frozen(weight), _frozen(bias)) for weight, bias in self.layers)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "classes", tuple(self.classes))
        _check_layers(layers)
        _check_classes(self.classes, n_scores=len(layers[-1][0]))

    @property
    def n_features(self) -> int:
        """The width of the rows that the probe reads."""
        return int(self.layers[0][0].shape[1])

    @property
    def directions(self) -> Floats:
        """The weights (n_scores, n_features) along which raw activations are read.

        Raises:
            ConfigError: the probe is not linear.
        """
        if len(self.layers) > 1:
            raise ConfigError(
                f"A probe of the kind {self.facts.kind} has {len(self.layers)} layers: it does not "
                "read along directions. Keep a linear probe, such as logistic, for that."
            )
        return self.layers[0][0]

    @property
    def unit_directions(self) -> Floats:
        """The directions, each of length 1.

        Raises:
            ConfigError: the probe is not linear.
            DataError: one has no length.
        """
        lengths = np.linalg.norm(self.directions, axis=1, keepdims=True)
        if not lengths.all():
            raise DataError("All weights of a score are zero: it has no direction.")
        unit: Floats = self.directions / lengths
        return unit

    @property
    def direction_names(self) -> tuple[str, ...]:
        """What grows along each direction: the second of two classes, each class, or `value`."""
        return (self.classes or ("value",)) if len(self.classes) != 2 else self.classes[1:]

    def scores(self, X: ArrayLike) -> Floats:
        """Return the scores of raw rows X (n_samples, n_features).

        The shape is (n_samples,) for two classes or a number, else (n_samples, n_classes).

        Raises:
            DataError: X has another width, or holds NaN or infinity.
        """
        values = self._check(np.asarray(X, dtype=np.float64))
        *hidden, (weight, bias) = self.layers
        for inner, offset in hidden:
            values = np.maximum(values @ inner.T + offset, 0.0)
        scores: Floats = values @ weight.T + bias
        return scores[:, 0] if len(weight) == 1 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest label (n_samples,) of each row, or its number.

        Raises:
            DataError: as `scores` does.
        """
        return self.decide(self.scores(X))

    def decide(self, scores: Floats) -> NDArray[Any]:
        """Return the label (n_samples,) that scores speak for; of a number, the score itself."""
        if not self.classes:
            return scores
        labels: NDArray[Any] = np.array(self.classes)[self._of_classes(scores).argmax(axis=1)]
        return labels

    def log_probabilities(self, X: ArrayLike) -> Floats:
        """Return the log probabilities (n_samples, n_classes), in the order of `classes`.

        Raises:
            ConfigError: the scores of this kind of probe stand for no probabilities.
            DataError: as `scores` does.
        """
        if not self.facts.scores_are_logits or not self.classes:
            raise ConfigError(
                f"The scores of the kind {self.facts.kind} are no logits: there are no "
                "probabilities to be had. Use `scores`."
            )
        logs: Floats = log_softmax(self._of_classes(self.scores(X)), axis=1)
        return logs

    def check_fits(
        self,
        *,
        site: str | None = None,
        width: int | None = None,
        weights: str | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Refuse rows of another place than the probe's; what is None is not compared.

        Args:
            site: what the rows were read at, as `facts.site` writes it.
            width: features of a row.
            weights: digest of the weights of the model.
            tokenizer: digest of its vocabulary.

        Raises:
            ConfigError: something differs; the message lists it.
        """
        pairs: dict[str, tuple[Any, Any]] = {
            "site": (self.facts.site, site),
            "width": (self.n_features, width),
            "weights": (self.facts.weights, weights),
            "tokenizer": (self.facts.tokenizer, tokenizer),
        }
        differing = [
            f"{name}: of the probe {own}, here {here}"
            for name, (own, here) in pairs.items()
            if here is not None and here != own
        ]
        if differing:
            raise ConfigError(
                f"This probe of {self.facts.model} does not belong here:\n  "
                + "\n  ".join(differing)
                + "\nUse it on the model and the site that it was fitted on."
            )

    def save(self, path: Path | str) -> Path:
        """Write the two files of the probe and return the path of the JSON.

        Args:
            path: their common stem, or one of them.

        Raises:
            StoreError: they cannot be written.
        """
        return write_probe(Path(path), self.layers, self.classes, self.facts)

    @classmethod
    def load(cls, path: Path | str) -> SavedProbe:
        """Return the probe in the files of a stem; either file may be named as well.

        Raises:
            MissingError: a file is not there.
            DataError: a file is damaged, of another format, or holds no probe.
        """
        path = Path(path)
        layers, classes, facts = read_probe(path)
        try:
            return cls(layers, classes, facts)
        except DataError as error:
            raise damaged_probe(path, str(error)) from error

    def _check(self, rows: Floats) -> Floats:
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise DataError(
                f"X has shape {rows.shape}, but the probe reads (n_samples, {self.n_features}) at "
                f"{self.facts.site}."
            )
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(rows)} rows hold NaN or infinity, first row {wrong[0]}."
            )
        return rows

    def _of_classes(self, scores: Floats) -> Floats:
        """Return one score a class, (n_samples, n_classes); the first of two has zero."""
        if scores.ndim == 2:
            return scores
        return np.stack([np.zeros_like(scores), scores], axis=1)


def _frozen(array: ArrayLike) -> Floats:
    """Return a copy in float64 that cannot be written to; C-contiguous, as safetensors needs."""
    copy = np.array(array, dtype=np.float64, order="C")
    copy.setflags(write=False)
    return copy


def _check_layers(layers: tuple[LayerArrays, ...]) -> None:
    shapes = [(weight.shape, bias.shape) for weight, bias in layers]
    fits = all(len(w) == 2 and 0 not in w and b == w[:1] for w, b in shapes)
    if not layers or not fits or any(low[0][0] != up[0][1] for low, up in pairwise(shapes)):
        raise DataError(
            f"layers of the shapes {shapes} are no probe. Each is a weight (n_out, n_in) and a "
            "bias (n_out,), and reads what the one before gives."
        )
    if not all(np.isfinite(array).all() for layer in layers for array in layer):
        raise DataError("the weights hold NaN or infinity. Fit the probe again.")


def _check_classes(classes: tuple[str, ...], n_scores: int) -> None:
    wrong = [label for label in classes if not isinstance(label, str)]
    if wrong or len(set(classes)) < len(classes):
        raise DataError(f"classes must be texts, each once, but are {list(classes)}.")
    wanted = len(classes) if len(classes) > 2 else 1
    if len(classes) == 1 or n_scores != wanted:
        raise DataError(
            f"{n_scores} scores do not fit {len(classes)} classes. Two classes or a number take "
            "one score, more classes one each."
        )
