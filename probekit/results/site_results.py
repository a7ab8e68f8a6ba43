"""What is found at a site is kept as soon as it is found, so that a killed run goes on from there.

<name>.safetensors   what the probes said of the test rows
<name>.json          the measurements, and a digest over both; written last
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from probekit.errors import StoreError
from probekit.probes.score.measurement import Measurement, Predictions
from probekit.provenance import digest, digest_json, pretty_json, write_atomic
from probekit.results.columns import RESULTS
from probekit.results.predictions import Predictor, pack, unpack

# What a file that was cut or changed may raise when it is read.
_NOT_WHOLE = (ValueError, TypeError, KeyError, RecursionError, SafetensorError)
LONGEST_NAME = 100  # characters of a file's name; file systems end at 255 bytes


@dataclass(frozen=True, eq=False)
class SiteResult:
    """The measurements of one site, or of the baselines, and the predictions on test rows.

    `place` has the columns of results.csv that name run, site and position.
    """

    measurements: list[Measurement]
    said: dict[Predictor, Predictions]
    place: Mapping[str, Any] = field(default_factory=dict)

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
    path: Path,
    origin: Mapping[str, str],
    truth_of: Callable[[str], NDArray[np.generic]],
    n_classes: int,
) -> SiteResult | None:
    try:
        content = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
        answers = path.with_name(f"{path.name}.safetensors").read_bytes()
        if content["digest"] != _digest(origin, content["measurements"], answers):
            return None
        measurements = [Measurement(**entry) for entry in content["measurements"]]
        return SiteResult(measurements, unpack(answers, truth_of, n_classes))
    except (FileNotFoundError, *_NOT_WHOLE):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


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

        Raises:
            StoreError: The system does not let it be read.
        """
        return _read_site(self._run_dir / stem, origin, self._truth_of, self._n_classes)

    def write(self, stem: Path, origin: Mapping[str, str], site: SiteResult) -> None:
        """Write a site, unless just this is there already."""
        path = self._run_dir / stem
        answers = pack(site.said)
        entries = [_finite(asdict(measurement)) for measurement in site.measurements]
        content = {"digest": _digest(origin, entries, answers), "measurements": entries}
        write_atomic(path.with_name(f"{path.name}.safetensors"), answers)
        write_atomic(path.with_name(f"{path.name}.json"), pretty_json(content))


def _digest(origin: Mapping[str, str], entries: list[dict[str, Any]], answers: bytes) -> str:
    return digest_json([origin, entries, digest([answers])])


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with None for numbers that JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in entry.items()
    }
