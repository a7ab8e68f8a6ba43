"""Saved probes: functions of raw activations, with metadata.

Feature scaling is folded into the weights, so that other tools can apply the files with matrix
products alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from probekit.errors import ConfigError, DataError, path_of
from probekit.probes.saved.facts import ProbeFacts
from probekit.probes.saved.files import Floats, LayerArrays, damaged_probe, read_probe, write_probe


@dataclass(frozen=True, eq=False)
class SavedProbe:
    """A fitted probe as a function of raw activations.

    Attributes:
        layers: weight (n_out, n_in) and bias (n_out,) of each layer, with a ReLU between layers.
            The last has one output for a number or for two classes (the score of the second), else
            one per class.
        classes: the labels in the order of the scores; empty for a probe of numbers.
        facts: the metadata.

    Raises:
        DataError: shapes and classes are inconsistent, or a weight is not finite.

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
        """The number of features that the rows must have."""
        return int(self.layers[0][0].shape[1])

    @property
    def directions(self) -> Floats:
        """The weights (n_scores, n_features) on raw activations.

        Raises:
            ConfigError: the probe is not linear.
        """
        if len(self.layers) > 1:
            raise ConfigError(
                f"This {self.facts.kind} probe has {len(self.layers)} layers, so it has no "
                "directions. Use a linear probe, such as logistic."
            )
        return self.layers[0][0]

    @property
    def unit_directions(self) -> Floats:
        """The directions, normalised to length 1.

        Raises:
            ConfigError: the probe is not linear.
            DataError: all weights of a direction are 0.
        """
        lengths = np.linalg.norm(self.directions, axis=1, keepdims=True)
        if not lengths.all():
            raise DataError("All weights of a score are 0, so it has no direction.")
        unit: Floats = self.directions / lengths
        return unit

    @property
    def direction_names(self) -> tuple[str, ...]:
        """Names of the probe's directions.

        With two classes there is one direction, towards the second class; with more, one for each
        class. A probe of a number has the direction `value`.
        """
        return (self.classes or ("value",)) if len(self.classes) != 2 else self.classes[1:]

    def scores(self, X: ArrayLike) -> Floats:
        """Return the scores of raw rows X (n_samples, n_features).

        The shape is (n_samples,) for two classes or a number, else (n_samples, n_classes).

        Raises:
            DataError: X has the wrong number of features, or contains NaN or infinity.
        """
        values = self._check(np.asarray(X, dtype=np.float64))
        *hidden, (weight, bias) = self.layers
        for inner, offset in hidden:
            values = np.maximum(values @ inner.T + offset, 0.0)
        scores: Floats = values @ weight.T + bias
        return scores[:, 0] if len(weight) == 1 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the predicted label (n_samples,) of each row, or its predicted number.

        Raises:
            DataError: see `scores`.
        """
        return self.decide(self.scores(X))

    def decide(self, scores: Floats) -> NDArray[Any]:
        """Return the labels (n_samples,) with the highest score; for numbers, the scores."""
        if not self.classes:
            return scores
        labels: NDArray[Any] = np.array(self.classes)[self._of_classes(scores).argmax(axis=1)]
        return labels

    def log_probabilities(self, X: ArrayLike) -> Floats:
        """Return the log probabilities (n_samples, n_classes), in the order of `classes`.

        Raises:
            ConfigError: the scores of this kind of probe are not logits.
            DataError: see `scores`.
        """
        if not self.facts.scores_are_logits or not self.classes:
            raise ConfigError(
                f"The scores of a {self.facts.kind} probe are not logits, so it has no "
                "probabilities. Use `scores`."
            )
        logs: Floats = log_softmax(self._of_classes(self.scores(X)), axis=1)
        return logs

    def check_fits(
        self,
        *,
        site: str | None = None,
        width: int | None = None,
        weights: str | None = None,
        n_heads: int | None = None,
        layer_norm_epsilon: float | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Raise ConfigError unless rows come from the site and model that the probe was fitted on.

        Values that are None, in the arguments or in the probe, are not compared.

        Args:
            site: the site of the rows, in the format of `facts.site`.
            width: the number of features.
            weights: the digest of the model's weights.
            n_heads: the number of heads of the model.
            layer_norm_epsilon: the epsilon of the model's layer norms.
            tokenizer: the digest of the vocabulary.

        Raises:
            ConfigError: a value differs; the message lists all differences.
        """
        pairs: dict[str, tuple[Any, Any]] = {
            "site": (self.facts.site, site),
            "width": (self.n_features, width),
            "weights": (self.facts.weights, weights),
            "n_heads": (self.facts.n_heads, n_heads),
            "layer_norm_epsilon": (self.facts.layer_norm_epsilon, layer_norm_epsilon),
            "tokenizer": (self.facts.tokenizer, tokenizer),
        }
        differing = [
            f"{name}: {own} for the probe, {given} for the rows"
            for name, (own, given) in pairs.items()
            if given is not None and own is not None and given != own
        ]
        if differing:
            raise ConfigError(
                f"This probe of {self.facts.model} does not match the rows:\n  "
                + "\n  ".join(differing)
                + "\nUse it with the model and the site that it was fitted on."
            )

    def save(self, path: Path | str) -> Path:
        """Write the two files of the probe and return the path of the JSON file.

        Args:
            path: the common stem of the files, or the path of one of them.

        Raises:
            StoreError: a file cannot be written.
        """
        return write_probe(Path(path), self.layers, self.classes, self.facts)

    @classmethod
    def load(cls, path: Path | str) -> SavedProbe:
        """Return a saved probe.

        Args:
            path: the common stem of its files, or the path of one of them.

        Raises:
            MissingError: a file does not exist.
            DataError: a file is damaged, has another format, or does not contain a probe.
        """
        path = path_of("path", path)
        layers, classes, facts = read_probe(path)
        try:
            return cls(layers, classes, facts)
        except DataError as error:
            raise damaged_probe(path, str(error)) from error

    def _check(self, rows: Floats) -> Floats:
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise DataError(
                f"X has shape {rows.shape}, but this probe of {self.facts.site} needs shape "
                f"(n_samples, {self.n_features})."
            )
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(rows)} rows contain NaN or infinity, first row {wrong[0]}. "
                "Remove these rows."
            )
        return rows

    def _of_classes(self, scores: Floats) -> Floats:
        """Return one score per class (n_samples, n_classes); the first of two classes gets 0."""
        if scores.ndim == 2:
            return scores
        return np.stack([np.zeros_like(scores), scores], axis=1)


def _frozen(array: ArrayLike) -> Floats:
    """Return a read-only float64 copy, C-contiguous as safetensors requires."""
    copy = np.array(array, dtype=np.float64, order="C")
    copy.setflags(write=False)
    return copy


def _check_layers(layers: tuple[LayerArrays, ...]) -> None:
    shapes = [(weight.shape, bias.shape) for weight, bias in layers]
    fits = all(len(w) == 2 and 0 not in w and b == w[:1] for w, b in shapes)
    if not layers or not fits or any(low[0][0] != up[0][1] for low, up in pairwise(shapes)):
        raise DataError(
            f"Layers of shapes {shapes} do not form a probe. Each layer needs a weight "
            "(n_out, n_in) and a bias (n_out,), with n_in equal to n_out of the previous layer."
        )
    if not all(np.isfinite(array).all() for layer in layers for array in layer):
        raise DataError("The weights contain NaN or infinity. Fit the probe again.")


def _check_classes(classes: tuple[str, ...], n_scores: int) -> None:
    wrong = [label for label in classes if not isinstance(label, str)]
    if wrong or len(set(classes)) < len(classes):
        raise DataError(f"Classes must be distinct strings, but are {list(classes)}.")
    expected = len(classes) if len(classes) > 2 else 1
    if len(classes) == 1 or n_scores != expected:
        raise DataError(
            f"{n_scores} scores do not match {len(classes)} classes. A number or two classes need "
            "one score; more classes need one score each."
        )
