"""Saved probes as functions of raw activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from scipy.special import log_softmax

from probekit.data.examples import check_field
from probekit.data.frames import plain_texts
from probekit.errors import ConfigError, DataError, path_of
from probekit.lazy_rows import Floats
from probekit.model.config import Bos
from probekit.model.sites.catalogue import check_single
from probekit.probes import foreign, probe_files
from probekit.probes.foreign import numbers_of
from probekit.probes.probe_files import ProbeFacts, Scalar
from probekit.probes.solve.layers import AffineLayer, apply_layers, unit_rows
from probekit.provenance import versions


@dataclass(frozen=True, eq=False)
class SavedProbe:
    """A fitted probe as a function of raw activations.

    Attributes:
        layers: weight (n_out, n_in) and bias (n_out,) of each layer, with a ReLU between layers.
            The last has one output for a number or for two classes (the score of the second), else
            one per class. An aggregated probe has one layer of tokens, with the outputs that its
            rule reads.
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

    layers: tuple[AffineLayer, ...]
    classes: tuple[str, ...]
    facts: ProbeFacts

    def __post_init__(self) -> None:
        layers = tuple(AffineLayer(_frozen(w), _frozen(b)) for w, b in self.layers)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "classes", tuple(self.classes))
        shapes = [(weight.shape, bias.shape) for weight, bias in layers]
        are_affine = all(len(w) == 2 and 0 not in w and b == w[:1] for w, b in shapes)
        are_chained = all(low.bias.shape == up.weight.shape[1:] for low, up in pairwise(layers))
        if not (layers and are_affine and are_chained):
            raise DataError(
                f"Layers of shapes {shapes} do not form a probe. Each layer needs a weight "
                "(n_out, n_in) and a bias (n_out,), with n_in equal to n_out of the previous layer."
            )
        if not all(np.isfinite(array).all() for layer in layers for array in layer):
            raise DataError("The weights contain NaN or infinity. Fit the probe again.")
        rule = self.facts.aggregation
        n_scores = len(layers[-1].weight) if rule is None else len(rule.bias)
        if len(set(self.classes)) < len(self.classes):
            raise DataError(f"Classes must be distinct strings, but are {list(self.classes)}.")
        for label in self.classes:
            check_field("class", label)
        expected = len(self.classes) if len(self.classes) > 2 else 1
        if len(self.classes) == 1 or n_scores != expected:
            raise DataError(
                f"{n_scores} scores do not match {len(self.classes)} classes. A number or two "
                "classes need one score; more classes need one score each."
            )

    @property
    def n_features(self) -> int:
        """The number of features that the rows must have."""
        return int(self.layers[0].weight.shape[1])

    @property
    def directions(self) -> Floats:
        """The weights (n_scores, n_features) on raw activations.

        Raises:
            ConfigError: the probe is not linear, or has several directions for a score.
        """
        if len(self.layers) > 1:
            raise ConfigError(
                f"This {self.facts.kind} probe has {len(self.layers)} layers, so it has no "
                "directions. Use a linear probe, such as logistic."
            )
        weight, rule = self.layers[0].weight, self.facts.aggregation
        if rule is None:
            return weight
        if rule.rule == "multimax":
            raise ConfigError(
                "This probe takes the maximum over several heads, each with a direction of its own."
            )
        weight = weight[: len(rule.bias)]  # without the query of `attention`
        # The outputs may be evidence for the first of two labels.
        return weight * np.sign(rule.weight[0][0]) if len(weight) == 1 else weight

    @property
    def unit_directions(self) -> Floats:
        """The directions, normalised to length 1.

        Raises:
            ConfigError: the probe is not linear.
            DataError: all weights of a direction are 0.
        """
        unit = unit_rows(self.directions)
        if unit is None:
            raise DataError("All weights of a score are 0, so it has no direction.")
        return unit

    @property
    def direction_names(self) -> tuple[str, ...]:
        """Names of the probe's directions.

        With two classes there is one direction, towards the second class; with more, one for each
        class. A probe of a number has the direction `value`.
        """
        return self.classes[1:] if len(self.classes) == 2 else (self.classes or ("value",))

    def scores(self, X: ArrayLike) -> Floats:
        """Return the scores of rows X (n_samples, n_features) in the `view` of the probe.

        The shape is (n_samples,) for two classes or a number, else (n_samples, n_classes). The rows
        of an aggregated probe are the tokens of one text, and a score is that of the text up to a
        token; the last one is the score of the text.

        Raises:
            DataError: X has the wrong number of features, or contains NaN or infinity.
        """
        outputs = self.outputs(X)
        if self.facts.aggregation is not None:
            outputs = self.facts.aggregation.running(outputs)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def outputs(self, X: ArrayLike) -> Floats:
        """Return the outputs (n_samples, n_out) of the last layer for rows X; see `scores`.

        Raises:
            DataError: see `scores`.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = apply_layers(self.layers, self._raw(X))
        return _finite(found, "have scores beyond the range of float64")

    def _raw(self, X: ArrayLike) -> Floats:
        """Return rows X (n_samples, n_features) in float64, not scaled.

        Raises:
            DataError: see `scores`.
        """
        rows = numbers_of(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise DataError(
                f"X has shape {rows.shape}, but this probe of {self.facts.site} needs shape "
                f"(n_samples, {self.n_features})."
            )
        return _finite(rows, "contain NaN or infinity")

    def for_class(self, label: str, scores: Floats) -> Floats:
        """Return the scores (n_samples,) for one class, given `scores` of rows.

        For more than two classes they are log probabilities if the scores are logits.
        """
        if scores.ndim == 1:  # those of the second of two classes
            return scores if label == self.classes[1] else -scores
        of_classes = log_softmax(scores, axis=1) if self.facts.scores_are_logits else scores
        found: Floats = of_classes[:, self.classes.index(label)]
        return found

    def alarms(self, scores: Floats, fpr: float) -> NDArray[np.bool_]:
        """Return which rows (n_samples,) raise an alarm at the threshold of a rate.

        Raises:
            ConfigError: the probe has no threshold of this rate.
        """
        by_rate = {one.fpr: one.threshold for one in self.facts.thresholds}
        if fpr not in by_rate or self.facts.positive is None:
            has = ", ".join(map(str, by_rate)) or "none"
            raise ConfigError(
                f"This probe has no threshold for a false positive rate of {fpr:g}. It has {has}. "
                "A run with the section `monitor` writes RUN/probes/monitor, with a threshold for "
                "each of `monitor.fpr`."
            )
        return self.for_class(self.facts.positive, scores) > by_rate[fpr]

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
        found: NDArray[Any] = np.array(self.classes)[self._of_classes(scores).argmax(axis=1)]
        return found

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
        found: Floats = log_softmax(self._of_classes(self.scores(X)), axis=1)
        return found

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

        Values that are None, in the arguments or in the probe, are not compared, nor are digests
        that the probe lacks.

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
            f"{name}: {of_probe} for the probe, {of_rows} for the rows"
            for name, (of_probe, of_rows) in pairs.items()
            if of_probe not in (None, "") and of_rows is not None and of_rows != of_probe
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
            ConfigError: the path is not valid.
            StoreError: a file cannot be written.
        """
        return probe_files.write_probe(path_of("path", path), self.layers, self.classes, self.facts)

    def export(self, path: Path | str, to: str, **how: Any) -> tuple[Path, Path]:
        """Write the probe for another tool; see `probekit.probes.exports.table.export_probe`."""
        table = import_module("probekit.probes.exports.table")  # which imports this class
        written: tuple[Path, Path] = table.export_probe(self, path, to, **how)
        return written

    @classmethod
    def from_arrays(  # noqa: PLR0913  # facts that other tools do not store
        cls,
        direction: ArrayLike | Path,
        bias: ArrayLike | Path | None = None,
        *,
        site: str,
        model: str,
        classes: Sequence[str] = ("0", "1"),
        threshold: float | None = None,
        position: str | Mapping[str, Scalar] = "last",
        bos: Bos = "auto",
        chat: bool = False,
        view: Literal["raw", "normalized"] = "raw",
        scores_are_logits: bool = False,
        rows: ArrayLike | Path | None = None,
        kind: str = "linear",
    ) -> SavedProbe:
        """Return the probe of another tool, given as arrays or as paths of .npy files.

        Args:
            direction: weights on raw activations, of shape (n_features,) for the second of two
                classes or for a number, else (n_classes, n_features).
            bias: one number for each score; by default 0.
            site: name of the site, such as `blocks.12.hook_resid_post`.
            model: name or folder of the model.
            classes: labels in the order of the scores; empty for a number.
            threshold: instead of `bias`: projection above which the second class is predicted.
            position: text of `at`, or the keys of `tokens.position`.
            bos: whether beginning-of-text precedes each text; `auto` as in `Tokenizer.encode`.
            chat: whether the chat template wrote each text.
            view: `raw` activations, or rows `normalized` like a layer norm without affine part.
            scores_are_logits: whether the softmax of the scores gives class probabilities.
            rows: activations (n_rows, n_features) whose spread along the direction is the unit of
                steering; without them the probe cannot steer.
            kind: name of the kind of probe.

        Raises:
            UnknownNameError: there is no such site or position.
            ConfigError: another argument has a wrong type or value.
            DataError: an array has no real numbers, shapes and classes are inconsistent, or rows
                have another width or NaN.

        >>> probe = SavedProbe.from_arrays(
        ...     [3.0, 4.0], threshold=1.0, site="blocks.0.hook_resid_post", model="mini"
        ... )
        >>> probe.predict([[1.0, 0.0], [0.0, 0.0]]).tolist()
        ['1', '0']
        """
        if isinstance(classes, str | bytes | Mapping | set | frozenset | None):
            raise ConfigError(f"classes is {classes!r}. Give a list, in the order of the scores.")
        names = plain_texts("classes", classes, distinct=True).tolist()
        weight = np.atleast_2d(numbers_of(direction))
        if threshold is not None and (bias is not None or len(weight) > 1 or not names):
            raise DataError(
                "`threshold` replaces the `bias` of a single direction between two classes. Give "
                "`bias` in its place."
            )
        given = bias if threshold is None else -numbers_of(threshold)
        offset = np.zeros(len(weight)) if given is None else np.atleast_1d(numbers_of(given))
        check_single(str(site))
        try:
            facts = ProbeFacts(
                kind=kind,
                scores_are_logits=scores_are_logits,
                sites=(site,),
                view=view,
                position=foreign.position_facts(position),
                bos=bos,
                chat=chat,
                model=model,
                compute="float32",
                dtype="float32",
                weights="",
                tokenizer="",
                cache="",
                is_tested=False,
                seed=0,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=versions(),
            )
        except ValidationError as error:
            raise ConfigError(f"{probe_files.problems(error)}.") from error
        probe = cls((AffineLayer(weight, offset),), tuple(names), facts)
        if rows is None:
            return probe
        rows = numbers_of(rows)
        if len(rows) < 2:
            raise DataError("`rows` needs at least 2 rows, because their spread is measured.")
        spread = tuple((probe._raw(rows) @ probe.unit_directions.T).std(axis=0).tolist())
        return replace(probe, facts=facts.model_copy(update={"projection_sd": spread}))

    @classmethod
    def from_sklearn(
        cls,
        classifier: Any,
        *,
        site: str,
        model: str,
        position: str | Mapping[str, Scalar] = "last",
        bos: Bos = "auto",
        chat: bool = False,
        view: Literal["raw", "normalized"] = "raw",
        rows: ArrayLike | Path | None = None,
    ) -> SavedProbe:
        """Return the probe of a fitted linear model of scikit-learn.

        A StandardScaler before it, in a Pipeline, is folded into the weights.

        Args:
            classifier: the model, or the path of a .skops file in which all types are among those
                that skops considers safe. Pickles are never read.
            site: name of the site.
            model: name or folder of the model whose activations it reads.
            position: see `from_arrays`, as for the arguments below.
            bos: whether beginning-of-text precedes each text; `auto` as in `Tokenizer.encode`.
            chat: whether the chat template wrote each text.
            view: `raw` activations, or `normalized` ones.
            rows: activations whose spread is the unit of steering.

        Raises:
            ConfigError: the package skops is not installed, or an argument is invalid; see
                `from_arrays`.
            DataError: it is not a fitted linear model, or the file has other contents.
        """
        weight, bias, labels, kind = foreign.linear_model(classifier)
        return cls.from_arrays(
            weight,
            bias,
            site=site,
            model=model,
            classes=labels,
            position=position,
            bos=bos,
            chat=chat,
            view=view,
            scores_are_logits=foreign.LINEAR_MODELS[kind],
            rows=rows,
            kind=kind,
        )

    @classmethod
    def load(cls, path: Path | str) -> SavedProbe:
        """Return a saved probe.

        Args:
            path: the common stem of its files, or the path of one of them.

        Raises:
            ConfigError: the path is neither a string nor a path.
            MissingError: a file does not exist.
            DataError: the files do not contain a probe, or one of them cannot be used; see
                `read_probe`.
        """
        path = path_of("path", path)
        layers, classes, facts = probe_files.read_probe(path)
        try:
            return cls(layers, classes, facts)
        except DataError as error:
            raise probe_files.damaged_probe(path, str(error)) from error

    def _of_classes(self, scores: Floats) -> Floats:
        """Return one score per class (n_samples, n_classes); the first of two classes gets 0."""
        return scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], axis=1)


def _finite(rows: Floats, problem: str) -> Floats:
    """Return rows unchanged; raise DataError if they contain NaN or infinity."""
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise DataError(
            f"{len(wrong)} of {len(rows)} rows {problem}, first row {wrong[0]}. Remove these rows."
        )
    return rows


def _frozen(array: ArrayLike) -> Floats:
    """Return a read-only float64 copy, C-contiguous as safetensors requires."""
    copy = np.array(array, dtype=np.float64, order="C")
    copy.setflags(write=False)
    return copy
