"""Predictions and results of single sites, saved as soon as they are computed.

A killed run resumes from them; comparisons and calibration are computed from the predictions,
without refitting.

    sites/<site>.safetensors  predictions and scores of each probe and target at the site; for a
                              nested cross-validation also the fold of each row
    sites/<site>.json         measurements, digests of the fitted probes' weights, and a digest of
                              both files; written last
    sites/<offset>/<site>.*   the same for a position with this offset other than 0, such as -1
    sites/chosen.*            the same for the nested choice
    sites/baselines.*         the same for the baselines
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from probekit.errors import DataError, MissingError, StoreError
from probekit.files import as_store_error, inside, write_atomic
from probekit.probes.probe_files import probe_files, read_probe
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.score.scored import Measurement, Predictions, Predictor, SiteResult
from probekit.provenance import digest, digest_json, pretty_json
from probekit.results.record import changed_files
from probekit.section import DEVICES

SEPARATOR = "|"


def pack(predictions: Mapping[Predictor, Predictions]) -> bytes:
    """Return predictions as the bytes of a safetensors file, without predictions of trees."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for predictor, answers in predictions.items():
        if not isinstance(answers, ClassPredictions | NumberPredictions):
            continue
        parts: dict[str, NDArray[np.generic]] = {"guess": np.ascontiguousarray(answers.guess)}
        if answers.folds is not None:
            # True labels are stored, because each draw of the control task has labels of its own.
            parts["fold"] = answers.folds.astype(np.int32)
            parts["truth"] = np.ascontiguousarray(answers.truth)
        if isinstance(answers, ClassPredictions):
            parts["guess"] = answers.guess.astype(np.int32)
            if answers.positive is not None:
                parts["positive"] = np.array([answers.positive], dtype=np.int32)
            for name in ("alarms", "scaled"):
                if (numbers := getattr(answers, name)) is not None:
                    parts[name] = np.ascontiguousarray(numbers, dtype=np.float32)
            if answers.scores is not None:
                kind = "logs" if answers.scores_are_log_probabilities else "scores"
                # In float64: rounding would make ties, which metrics of ranks count as half.
                parts[kind] = np.ascontiguousarray(answers.scores, dtype=np.float64)
        for kind, array in parts.items():
            arrays[SEPARATOR.join((*predictor, kind))] = array
    return safetensors.numpy.save(arrays)


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
    """Return the predictions in arrays by kind; `truth` is used if they contain no true labels."""
    guess, truth = arrays["guess"], arrays.get("truth", truth)
    folds = arrays["fold"].astype(np.int64) if "fold" in arrays else None
    if guess.dtype.kind == "f":
        return NumberPredictions(truth.astype(np.float64), guess.astype(np.float64), folds)
    scores = arrays.get("logs", arrays.get("scores"))
    return ClassPredictions(
        truth=truth.astype(np.int64),
        guess=guess.astype(np.int64),
        n_classes=n_classes,
        scores=None if scores is None else scores.astype(np.float64),
        scores_are_log_probabilities="logs" in arrays,
        folds=folds,
        positive=int(arrays["positive"][0]) if "positive" in arrays else None,
        **{
            name: arrays[name].astype(np.float64) for name in ("alarms", "scaled") if name in arrays
        },
    )


FORMAT = 1  # number of the format of a site's files
# Exceptions that reading a truncated or changed file can raise.
_READ_ERRORS = (ValueError, TypeError, KeyError, RecursionError, SafetensorError)
NESTED_SITE = "chosen"  # takes the place of a site's name for the nested choice
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 ._=+\[\]-]*(?<![ .])")  # valid on every system
LONGEST_NAME = 100  # characters of a file name; file systems allow 255 bytes


def site_stem(site: str, offset: int = 0) -> Path:
    """Return the path of a site's files relative to the run's folder, without suffix.

    Args:
        site: the name of the site; `NESTED_SITE`, or `baselines`.
        offset: the offset of the probed position in tokens, a setting of the position. Each other
            than 0 has a folder of its own.

    >>> site_stem("blocks.0.hook_resid_pre", -1).as_posix()
    'sites/-1/blocks.0.hook_resid_pre'
    """
    return Path("sites") / (f"{offset:+d}" if offset else "") / file_name(site)


def file_name(text: str) -> str:
    """Return a text as a file name: with a digest if it is not valid, only a digest if too long.

    Names of many concatenated sites are too long, and those of given sites may have any characters.

    >>> file_name("blocks.0.hook_resid_pre"), file_name("model/h/0")
    ('blocks.0.hook_resid_pre', 'model_h_0-3521761392b4')
    """
    if len(text) > LONGEST_NAME:
        return digest_json(text)[:24]
    if _PLAIN.fullmatch(text) and not DEVICES.fullmatch(text):
        return text
    return f"{re.sub('[^A-Za-z0-9_-]', '_', text)}-{digest_json(text)[:12]}"


class SavedSiteResults:
    """Reads and writes the results of the sites of a run.

    Args:
        run_dir: the folder of the run.
        truth_of: returns the true labels of the rows that a probe is scored on, given its name.
        n_classes: the number of classes.
    """

    def __init__(
        self, run_dir: Path, truth_of: Callable[[str], NDArray[np.generic]], n_classes: int
    ) -> None:
        self._run_dir = run_dir
        self._truth_of = truth_of
        self._n_classes = n_classes

    def read(self, stem: Path, origin: Mapping[str, str]) -> SiteResult | None:
        """Return a saved result; None if it is missing, damaged or of another origin.

        A result also counts as damaged if a file of its saved probes is damaged.

        Args:
            stem: see `site_stem`.
            origin: the run, position and site that the result must have.

        Raises:
            StoreError: The operating system denies access to a file of the site.
            DataError: The weights of a saved probe exist but cannot be read.
        """
        run_dir, names = self._run_dir, _names(stem)
        try:
            data, answers = (inside(run_dir / name, run_dir).read_bytes() for name in names)
            content = json.loads(data)
            entries, probes = content["measurements"], content["probes"]
            expected = digest_json([FORMAT, origin, entries, digest([answers]), probes])
            # The digest does not cover white space, so the text is compared, too.
            if content["digest"] != expected or pretty_json(content).encode() != data:
                return None
            measurements = [Measurement(**entry) for entry in entries]
            predictions = unpack(answers, self._truth_of, self._n_classes)
        except (FileNotFoundError, *_READ_ERRORS):
            return None
        except OSError as error:
            raise StoreError(f"{run_dir / stem} cannot be read: {error.strerror}.") from error
        if any(changed_files(run_dir, probes)):
            return None
        # `probes` has digests of the weights only, so the JSON file of each probe is read as well.
        try:
            for weights in probes:
                read_probe(run_dir / weights)
        except (DataError, MissingError):
            return None
        files = dict(zip(names, (digest([data]), digest([answers])), strict=True))
        site = SiteResult(measurements, predictions, probes=probes, files=files)
        return replace(site, files=files | self._probe_files(site))

    def write(self, stem: Path, origin: Mapping[str, str], site: SiteResult) -> SiteResult:
        """Write a result and return it with the digests of its files.

        Raises:
            StoreError: A file cannot be written, or a file of a probe no longer exists.
        """
        answers = pack(site.predictions)
        entries = [_finite(asdict(measurement)) for measurement in site.measurements]
        content = {
            "digest": digest_json([FORMAT, origin, entries, digest([answers]), site.probes]),
            "measurements": entries,
            "probes": site.probes,
        }
        data = pretty_json(content).encode()
        json_name, answers_name = _names(stem)
        # The JSON file is last, so that it exists only together with the file it has a digest of.
        write_atomic(self._run_dir / answers_name, answers)
        write_atomic(self._run_dir / json_name, data)
        files = {json_name: digest([data]), answers_name: digest([answers])}
        return replace(site, files=files | self._probe_files(site))

    def _probe_files(self, site: SiteResult) -> dict[str, str]:
        """Return the digests of all files of the fitted probes of a site."""
        files = dict(site.probes)
        for weights in map(Path, site.probes):
            facts, _ = probe_files(weights)  # contains a time, so its digest is not saved
            with as_store_error("read", self._run_dir / facts):
                files[facts.as_posix()] = digest([(self._run_dir / facts).read_bytes()])
        return files


def _names(stem: Path) -> tuple[str, str]:
    """Return the names of the JSON file and of the predictions of a site."""
    # `Path.with_suffix` would cut off parts of site names, which contain dots.
    return f"{stem.as_posix()}.json", f"{stem.as_posix()}.safetensors"


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with NaN and infinity replaced by None, for JSON."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in entry.items()
    }
