"""What is found at a site is kept as soon as it is found, so that a killed run goes on from there.

<name>.safetensors   what the probes said of the test rows
<name>.json          the measurements, the digests of the weights of the fitted probes, and a
                     digest over all; written last
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from probekit.disk import as_store_error, inside
from probekit.errors import DataError, MissingError, StoreError
from probekit.probes.saved.files import probe_files, read_probe
from probekit.probes.score.measurement import Measurement, Predictions
from probekit.provenance import digest, digest_json, pretty_json, write_atomic
from probekit.results.columns import RESULTS
from probekit.results.predictions import Predictor, pack, unpack
from probekit.results.record import changed_files

# What a file that was cut or changed may raise when it is read.
_NOT_WHOLE = (ValueError, TypeError, KeyError, RecursionError, SafetensorError)
LONGEST_NAME = 100  # characters of a file's name; file systems end at 255 bytes


@dataclass(frozen=True, eq=False)
class SiteResult:
    """The measurements of one site, or of the baselines, and the predictions on test rows.

    Attributes:
        measurements: the rows of results.csv, without the columns that they share.
        said: the predictions of each probe on the test rows.
        place: the columns of results.csv that name run, site and position.
        probes: digests of the weights of the fitted probes, by the names of their files within the
            run's folder.
        files: digests of all files of the site, the probes' included; empty before it is saved.
    """

    measurements: list[Measurement]
    said: dict[Predictor, Predictions]
    place: Mapping[str, Any] = field(default_factory=dict)
    probes: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.csv."""
        rows = [{**self.place, **asdict(measurement)} for measurement in self.measurements]
        return [{column.name: row.get(column.name) for column in RESULTS} for row in rows]


def site_stem(site: str, offset: int = 0) -> Path:
    """Return the path of a site's files in the folder of a run, without their endings.

    >>> site_stem("blocks.0.hook_resid_pre", -1).as_posix()
    'sites/-1/blocks.0.hook_resid_pre'
    """
    return Path("sites") / (f"{offset:+d}" if offset else "") / file_name(site)


def file_name(text: str) -> str:
    """Return a name that no file system finds too long, as those of many sites are.

    >>> file_name("blocks.0.hook_resid_pre")
    'blocks.0.hook_resid_pre'
    """
    return text if len(text) <= LONGEST_NAME else digest_json(text)[:24]


def _read_site(
    run_dir: Path,
    stem: Path,
    origin: Mapping[str, str],
    truth_of: Callable[[str], NDArray[np.generic]],
    n_classes: int,
) -> SiteResult | None:
    """Return the site saved under a stem; None if it is damaged, or of another origin."""
    names = _names(stem)
    try:
        data, answers = (inside(run_dir / name, run_dir).read_bytes() for name in names)
        content = json.loads(data)
        written, probes = content["digest"], content.get("probes")
        if written != _digest(origin, content["measurements"], answers, probes):
            return None
        if pretty_json(content).encode() != data:  # white space is not part of the digest
            return None
        measurements = [Measurement(**entry) for entry in content["measurements"]]
        files = dict(zip(names, (digest([data]), digest([answers])), strict=True))
        predictions = unpack(answers, truth_of, n_classes)
        return SiteResult(measurements, predictions, probes=probes or {}, files=files)
    except (FileNotFoundError, *_NOT_WHOLE):
        return None
    except OSError as error:
        raise StoreError(f"{run_dir / stem} cannot be read: {error.strerror}.") from error


class SavedSiteResults:
    """The sites of a run that are on disk.

    Args:
        run_dir: the folder of the run.
        truth_of: returns for a probe the labels (n_test,) that its predictions are compared with.
        n_classes: the number of labels.
    """

    def __init__(
        self, run_dir: Path, truth_of: Callable[[str], NDArray[np.generic]], n_classes: int
    ) -> None:
        self._run_dir = run_dir
        self._truth_of = truth_of
        self._n_classes = n_classes

    def read(self, stem: Path, origin: Mapping[str, str]) -> SiteResult | None:
        """Return a saved site; None if it is missing, damaged or of another run, position or site.

        A site is whole if the files of its probes are, too.

        Raises:
            StoreError: The system does not let it be read.
        """
        site = _read_site(self._run_dir, stem, origin, self._truth_of, self._n_classes)
        if site is None or any(changed_files(self._run_dir, site.probes)):
            return None
        try:
            for weights in site.probes:
                read_probe(self._run_dir / weights)
        except (DataError, MissingError):
            return None
        return replace(site, files=site.files | self._probe_files(site))

    def write(self, stem: Path, origin: Mapping[str, str], site: SiteResult) -> SiteResult:
        """Write a site and return it with the digests of its files.

        Raises:
            StoreError: A file cannot be written, or one of a probe is not there any more.
        """
        answers = pack(site.said)
        entries = [_finite(asdict(measurement)) for measurement in site.measurements]
        content = {
            "digest": _digest(origin, entries, answers, site.probes),
            "measurements": entries,
            "probes": site.probes,
        }
        data = pretty_json(content).encode()
        json_name, answers_name = _names(stem)
        write_atomic(self._run_dir / answers_name, answers)
        write_atomic(self._run_dir / json_name, data)
        files = {json_name: digest([data]), answers_name: digest([answers])}
        return replace(site, files=files | self._probe_files(site))

    def _probe_files(self, site: SiteResult) -> dict[str, str]:
        """Return the digests of all files of the fitted probes of a site."""
        files = dict(site.probes)
        for weights in map(Path, site.probes):
            facts, _ = probe_files(weights)  # has a time in it, so its digest is not kept
            with as_store_error("read", self._run_dir / facts):
                files[facts.as_posix()] = digest([(self._run_dir / facts).read_bytes()])
        return files


def _names(stem: Path) -> tuple[str, str]:
    # Not `with_suffix`: the names of sites hold dots.
    return f"{stem.as_posix()}.json", f"{stem.as_posix()}.safetensors"


def _digest(
    origin: Mapping[str, str],
    entries: list[dict[str, Any]],
    answers: bytes,
    probes: dict[str, str] | None,
) -> str:
    # Older releases did not digest probes.
    more = [] if probes is None else [probes]
    return digest_json([origin, entries, digest([answers]), *more])


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with None for numbers that JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in entry.items()
    }
