"""Metadata and files of saved probes: two files for each probe.

NAME.safetensors    layers.0.weight, layers.0.bias, ... in float64
NAME.json           classes, facts, digests of itself and of the file above; written last

The files are written atomically and checked by digests when read. Feature scaling is folded into
the weights, so that other tools can apply the files with matrix products alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from probekit.errors import DataError, MissingError
from probekit.files import inside, regular, write_atomic
from probekit.model.config import SpecialTokens
from probekit.probes.aggregation import Aggregation
from probekit.probes.solve.layers import AffineLayer
from probekit.provenance import digest, digest_json, pretty_json

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
        layer_norm_epsilon: the epsilon of the model's norms; None if it is not known.
        norm_is_centred: whether these subtract the mean (layer norm) or not (RMS norm); None if it
            is not known.
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
    norm_is_centred: bool | None = None
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
    if not path.name or (path.is_dir() and not probe_files(path)[0].exists()):
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
    # `Path.with_suffix` would cut off parts of site names, which contain dots.
    stem = path.name.removesuffix(".json").removesuffix(".safetensors")
    return path.with_name(f"{stem}.json"), path.with_name(f"{stem}.safetensors")


def damaged_probe(path: Path, why: str) -> DataError:
    """Return the error for a probe file that cannot be used."""
    return DataError(
        f"{path} cannot be used: {why.rstrip('.')}. Copy both files of the probe again from their "
        "source, or fit the probe again."
    )


def _suggestion(folder: Path) -> str:
    """Return a sentence that lists up to 10 probes, or runs with probes, in a folder."""
    for advice, patterns in _IN_FOLDERS:
        found = sorted(path for pattern in patterns for path in folder.glob(pattern))
        paths = [path for path in found if path.is_dir() or probe_files(path)[0].exists()]
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


def write_probe(
    path: Path, layers: tuple[AffineLayer, ...], classes: tuple[str, ...], facts: ProbeFacts
) -> Path:
    """Write the two files of a probe and return the path of the JSON file.

    The arguments are the common stem of the files and the values of `read_probe`.

    Raises:
        StoreError: a file cannot be written.
    """
    tensors: bytes = safetensors.numpy.save(
        {
            f"layers.{number}.{part}": array
            for number, layer in enumerate(layers)
            for part, array in zip(_PARTS, layer, strict=True)
        }
    )
    record = _Record(format=FORMAT, tensors=digest([tensors]), classes=classes, facts=facts)
    content = record.model_dump(mode="json")
    json_path, tensor_path = probe_files(path)
    write_atomic(tensor_path, tensors)
    # If the process is killed between the two writes, the digests do not match.
    write_atomic(json_path, pretty_json({"digest": digest_json(content)} | content))
    return json_path


def problems(error: ValidationError) -> str:
    """Return the key and the problem of each fault."""
    faults = error.errors(include_url=False)
    places = (".".join(map(str, one["loc"])) for one in faults)
    pairs = zip(places, (one["msg"] for one in faults), strict=True)
    return "; ".join(f"{place}: {problem}" if place else problem for place, problem in pairs)
