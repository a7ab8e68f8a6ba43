"""Saved probes: functions of raw activations, with metadata, in two files.

NAME.safetensors    layers.0.weight, layers.0.bias, ... in float64
NAME.json           classes, facts, digests of itself and of the file above; written last

The files are written atomically and checked by digests when read. Feature scaling is folded into
the weights, so that other tools can apply the files with matrix products alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from scipy.special import log_softmax

from probekit.data.examples import check_field
from probekit.data.frames import plain_texts
from probekit.errors import ConfigError, DataError, MissingError, path_of
from probekit.files import inside, regular, write_atomic
from probekit.model.config import Bos, SpecialTokens
from probekit.model.sites.catalogue import check_single
from probekit.probes.aggregation import Aggregation
from probekit.probes.arrays import Floats
from probekit.probes.foreign import (
    LINEAR_MODELS,
    linear_model,
    numbers_of,
    position_facts,
    problems,
)
from probekit.probes.solve.layers import AffineLayer, apply_layers, unit_rows
from probekit.provenance import digest, digest_json, pretty_json, versions

Scalar = str | int | float | bool | None

# Separates the names of concatenated sites.
SITE_SEPARATOR = " + "
_UNTESTED = (
    "The probe is untested: no held-out rows. It was fitted on all rows after a nested "
    "cross-validation, whose scores are those of other fits."
)
_OF_OTHERS = "The probe is untested: it was fitted by another tool and has not been evaluated."


class Facts(BaseModel):
    """Base class of the metadata: immutable, no unknown keys, no NaN.

    Types are not converted, except integers to floats and some lists to tuples.
    """

    # The minimum, which all texts have, makes pydantic refuse lone surrogates.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_min_length=0
    )


class HeldOutScore(Facts):
    """One metric on held-out rows, with its 95 % confidence interval."""

    value: float
    ci_low: float | None = None
    ci_high: float | None = None
    chance: float | None = None
    n: int
    n_groups: int | None = None


class AlarmThreshold(Facts):
    """A threshold of a monitor, fixed on negatives that are not among the data of the probe.

    Attributes:
        fpr: the requested false positive rate.
        threshold: the score that an alarm exceeds; see `SavedProbe.for_class`.
        fpr_bound: upper 95 % bound of the rate on new negatives.
        false_positives: number of these negatives with an alarm.
        n_negatives: number of negatives.
        n_groups: number of their groups.
    """

    fpr: float
    threshold: float
    fpr_bound: float
    false_positives: int
    n_negatives: int
    n_groups: int


class ProbeFacts(Facts):
    """Metadata of a probe: its training data, and the model properties that must match on use.

    Attributes:
        kind: the kind of probe, such as `logistic` or `k_sparse:16`.
        scores_are_logits: whether the softmax of its scores gives class probabilities.
        sites: the sites of its features, in order of concatenation; a head or neuron follows the
            name of its site.
        view: `raw` rows, or rows `normalized` like a layer norm without the affine part.
        position: the section `tokens.position` of the experiment.
        bos: whether beginning-of-text was prepended to each text; `auto` if the model's own
            tokenizer decides; False for a chat, whose template writes it.
        chat: whether the model's chat template wrote each text as the user's turn.
        special_tokens: how special tokens that are written out in a text are read.
        model: the source of the model, or the name of a network that was passed in Python.
        tokenizer_source: the source of the tokenizer of a network that was passed in Python, which
            cannot be loaded again by its name; else None.
        compute: the floating-point format of the forward pass.
        dtype: the floating-point format of the stored rows.
        weights: the digest of the model's weights; "" if it is not known.
        n_heads: the number of heads of the model, which the weights do not determine; None if it
            is not known.
        layer_norm_epsilon: the epsilon of the model's layer norms; None if it is not known.
        tokenizer: the digest of the vocabulary; "" if it is not known.
        cache: the key of the cache that the rows were read from; "" for a probe of another tool.
        hyperparameters: the hyperparameters of the fit, such as the selected C.
        aggregation: the rule by which an aggregated probe scores a text; None for other probes.
        metrics: scores on the test rows, by the name of the metric.
        projection_sd: the standard deviation over the fitted rows of the projection on each of
            `SavedProbe.unit_directions`, the unit of steering; empty for probes without directions.
        positive: the label whose rows a monitor detects; None without a monitor.
        thresholds: the thresholds of a monitor.
        is_tested: whether rows were held out to test it. Not after a nested cross-validation, whose
            saved probes are fitted on all rows.
        seed: the random seed for folds and draws.
        created: the time of creation, of a probe of a run its start, in ISO 8601.
        versions: the versions of the libraries.
    """

    kind: str = Field(min_length=1)
    scores_are_logits: bool
    sites: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    view: Literal["raw", "normalized"] = "raw"
    position: dict[str, Scalar]
    bos: Literal[True, False, "auto"]
    chat: bool = False
    special_tokens: SpecialTokens = "text"
    model: str
    tokenizer_source: str | None = None
    compute: Literal["float32", "float16", "bfloat16", "float64"]
    dtype: Literal["float32", "float16", "bfloat16"]
    weights: str
    n_heads: int | None = None
    layer_norm_epsilon: float | None = None
    tokenizer: str
    cache: str
    hyperparameters: dict[str, Scalar] = {}
    aggregation: Aggregation | None = None
    metrics: dict[str, HeldOutScore] = {}
    projection_sd: Annotated[tuple[float, ...], Field(strict=False)] = ()
    positive: str | None = None
    thresholds: Annotated[tuple[AlarmThreshold, ...], Field(strict=False)] = ()
    is_tested: bool = True
    seed: int
    created: str
    versions: dict[str, str]

    @property
    def untested(self) -> str:
        """A warning for users of an untested probe; "" if held-out rows tested the probe."""
        return "" if self.is_tested else _UNTESTED if self.cache else _OF_OTHERS

    @property
    def site(self) -> str:
        """The site as text: `blocks.3.hook_resid_post`, or several sites joined by a plus."""
        return SITE_SEPARATOR.join(self.sites)

    @property
    def at(self) -> str:
        """The token position that the probe was trained at: `last`, `word`, ...; `None` if unknown.

        This is the text of `at` in `position`.
        """
        return str(self.position.get("at"))


FORMAT = 1
_SUFFIXES = (".json", ".safetensors")
_PARTS = ("weight", "bias")
_MOST_NAMED = 10  # probes listed in a message
# Advice by the contents of a folder that is no probe, with the glob patterns of these contents; a
# sweep adds a folder level.
_IN_FOLDERS = (
    (
        "It is the folder of a run. Give one of its probes",
        ("probes/*.safetensors", "probes/*/*.safetensors", "probes/*/*/*.safetensors"),
    ),
    (
        "It contains runs. Give a probe of one of them, as RUN/probes/SITE/KIND or "
        "RUN/probes/final",
        ("*/probes", "*/*/probes"),
    ),
    ("Give one of its probes", ("*.safetensors", "*/*.safetensors")),  # last: runs have others
)


class _Record(Facts):
    """The contents of the JSON file without its own digest."""

    format: int
    tensors: str  # the digest of the other file
    classes: Annotated[tuple[str, ...], Field(strict=False)]
    facts: ProbeFacts


def read_probe(path: Path) -> tuple[tuple[AffineLayer, ...], tuple[str, ...], ProbeFacts]:
    """Return layers, classes and facts of a saved probe.

    Args:
        path: the common stem of the files, or the path of one of them.

    Raises:
        MissingError: a file does not exist.
        DataError: a file cannot be read, is damaged, has another format, or is a link that leaves
            its run.
    """
    # A path without a name, such as `.`, is a folder.
    if not path.name or (path.is_dir() and not _with_suffix(path, ".json").exists()):
        raise MissingError(f"{path} is a folder. {_suggestion(path)}")
    json_path, tensor_path = probe_files(path)
    record = _read_record(json_path)
    content = _read_bytes(tensor_path)
    if digest([content]) != record.tensors:
        raise damaged_probe(tensor_path, f"its digest does not match the one in {json_path.name}")
    try:
        tensors = safetensors.numpy.load(content)
        numbers = range(len(tensors) // 2)
        expected = {f"layers.{number}.{part}" for number in numbers for part in _PARTS}
        if tensors.keys() != expected or any(t.dtype != np.float64 for t in tensors.values()):
            got = ", ".join(f"{name} {tensor.dtype}" for name, tensor in sorted(tensors.items()))
            raise DataError(f"it contains {got} instead of float64 layers of a probe")
        pairs = ((tensors[f"layers.{n}.weight"], tensors[f"layers.{n}.bias"]) for n in numbers)
        layers = tuple(AffineLayer(weight, bias) for weight, bias in pairs)
    except (DataError, SafetensorError) as error:
        raise damaged_probe(tensor_path, str(error)) from error
    return layers, record.classes, record.facts


def probe_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the JSON and the tensor file, given their stem or one of the paths.

    >>> [path.as_posix() for path in probe_files(Path("blocks.0.hook_resid_pre/svm"))]
    ['blocks.0.hook_resid_pre/svm.json', 'blocks.0.hook_resid_pre/svm.safetensors']
    """
    return _with_suffix(path, ".json"), _with_suffix(path, ".safetensors")


def damaged_probe(path: Path, why: str) -> DataError:
    """Return the error for a probe file that cannot be used."""
    return DataError(
        f"{path} cannot be used: {why.rstrip('.')}. Copy both files of the probe again from their "
        "source, or fit the probe again."
    )


def _with_suffix(path: Path, suffix: str) -> Path:
    """Return the path of a probe's file with a suffix, given the stem or one of the two paths."""
    # `Path.with_suffix` would cut off parts of site names, which contain dots.
    name = path.name
    for known in _SUFFIXES:
        name = name.removesuffix(known)
    return path.with_name(name + suffix)


def _suggestion(folder: Path) -> str:
    """Return a sentence that lists up to 10 probes, or runs with probes, in a folder."""
    for advice, patterns in _IN_FOLDERS:
        paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
        # A run is found by its folder of probes, a probe by its tensors.
        named = (path.parent if path.is_dir() else path for path in paths)
        names = [str(path.relative_to(folder)).removesuffix(".safetensors") for path in named]
        if names:
            more = f", ... ({len(names)} in total)" if len(names) > _MOST_NAMED else ""
            return f"{advice}: {', '.join(names[:_MOST_NAMED])}{more}."
    return "It contains no probe."


def _read_record(path: Path) -> _Record:
    """Return the validated contents of the JSON file of a probe, whose own digest is checked."""
    content = _read_bytes(path)
    try:
        record = json.loads(content)
        if not isinstance(record, dict):
            raise TypeError("it is not a JSON object")
        is_exact = pretty_json(record).encode() == content
        # The stored digest is that of the other keys.
        stored, version = record.pop("digest"), record["format"]
        actual = digest_json(record)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_probe(path, f"it is not the record of a probe ({error})") from error
    if version != FORMAT:
        raise DataError(
            f"{path} has format {version!r}, but this version of probekit reads format {FORMAT}. "
            "Use the version that wrote it, or fit the probe again."
        )
    if stored != actual or not is_exact:
        raise damaged_probe(path, "its contents changed after it was written")
    try:
        return _Record.model_validate(record)
    except ValidationError as error:
        raise damaged_probe(path, problems(error)) from error


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file of a probe; in a run, it must not link to outside of the run."""
    folders = (folder.parent for folder in path.absolute().parents if folder.name == "probes")
    run = next((folder for folder in folders if (folder / "run.json").exists()), None)
    try:
        # Links are checked only inside a run; elsewhere the user chose the path.
        return regular(path if run is None else inside(path.absolute(), run)).read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"There is no probe file {path}. A probe consists of NAME.json and NAME.safetensors; "
            "give NAME or the path of one of them."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


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
        path = path_of("path", path)
        tensors: bytes = safetensors.numpy.save(
            {
                f"layers.{number}.{part}": array
                for number, layer in enumerate(self.layers)
                for part, array in zip(_PARTS, layer, strict=True)
            }
        )
        record = _Record(
            format=FORMAT, tensors=digest([tensors]), classes=self.classes, facts=self.facts
        )
        content = record.model_dump(mode="json")
        json_path, tensor_path = probe_files(path)
        write_atomic(tensor_path, tensors)
        # If the process is killed between the two writes, the digests do not match.
        write_atomic(json_path, pretty_json({"digest": digest_json(content)} | content))
        return json_path

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
        rule = position_facts(position)
        try:
            facts = ProbeFacts(
                kind=kind,
                scores_are_logits=scores_are_logits,
                sites=(site,),
                view=view,
                position=rule,
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
            raise ConfigError(f"{problems(error)}.") from error
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
        weight, bias, labels, kind = linear_model(classifier)
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
            scores_are_logits=LINEAR_MODELS[kind],
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
        layers, classes, facts = read_probe(path)
        try:
            return cls(layers, classes, facts)
        except DataError as error:
            raise damaged_probe(path, str(error)) from error

    def _of_classes(self, scores: Floats) -> Floats:
        """Return one score per class (n_samples, n_classes); the first of two classes gets 0."""
        if scores.ndim == 2:
            return scores
        return np.stack([np.zeros_like(scores), scores], axis=1)


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
