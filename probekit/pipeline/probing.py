"""Probing captured sites: each site's measurements are kept as soon as they are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import ProbekitError, StoreError
from probekit.experiment.schema import Experiment
from probekit.model.sites import JOINT, SiteSelection, describe, layer_of
from probekit.pipeline.features import FeatureReader, Probed
from probekit.pipeline.prepare import Prepared
from probekit.pipeline.rows import PositionRows
from probekit.probes.curve import Prober
from probekit.probes.data import ProbeData, ProbeSettings
from probekit.probes.measurement import Measurement
from probekit.provenance import digest_json, pretty_json, write_atomic
from probekit.watcher import Watcher

COLUMNS = (
    "run", "model", "dataset", "site", "layer", "component", "head", "position", "probe",
    "target", "split", "metric", "value", "ci_low", "ci_high", "chance", "n_train", "n_test",
    "n_groups", "C", "n_iter", "converged", "seed", "view",
)  # fmt: skip

LONGEST_NAME = 100  # characters of a file's name; file systems end at 255 bytes


def make_probers(experiment: Experiment, prepared: Prepared) -> tuple[Prober, ...]:
    """Return for each position what probes all sites under the same folds, controls and resamples.

    Those of two positions differ in what hangs on the tokens there: control labels and scaling.

    Raises:
        DataError: the labels, groups or split cannot be probed; known before the model runs.
    """
    is_sweep = len(prepared.positions) > 1
    probers = []
    for at in prepared.positions:
        try:
            probers.append(_make_prober(experiment, prepared, at))
        except ProbekitError as error:
            error.args = (f"At {at.position.text}: {error}" if is_sweep else str(error),)
            raise
    return tuple(probers)


def _make_prober(experiment: Experiment, prepared: Prepared, at: PositionRows) -> Prober:
    data = ProbeData(
        y=prepared.labels,
        groups=prepared.groups,
        types=at.types,
        train=prepared.train,
        test=prepared.test,
        typical=at.typical,
    )
    with experiment.at("probe", "C"):
        settings = ProbeSettings(**experiment.probe.model_dump())
    return Prober(data, settings)


def probe_sites(
    experiment: Experiment,
    prober: Prober,
    stores: Mapping[str, FeatureReader],
    selections: Sequence[Probed],
    run_dir: Path,
    watcher: Watcher,
) -> list[dict[str, Any]]:
    """Return the rows of results.csv: baselines first, then every site in forward order.

    Args:
        experiment: gives the names, and the position, which is one.
        prober: measures each site.
        stores: read the trained model's activations under `task`, those of untrained weights, if
            wanted, under `random_weights`.
        selections: the sites.
        run_dir: finished sites are kept in its folder `sites` and not computed again.
        watcher: hears of each finished site.
    """
    offset, position = experiment.tokens.position.offset, experiment.tokens.position.text
    folder = run_dir / "sites" / (f"{offset:+d}" if offset else "")
    rows = _table_rows(experiment, None, prober.baselines())
    for done, selection in enumerate(selections):
        kept = folder / f"{_file_name(selection)}.json"
        origin = {"run": run_dir.name, "position": position, "site": selection.text}
        measured = _read(kept, origin)
        if measured is None:
            measured = _measure(prober, stores, selection, _Inner(watcher, done, len(selections)))
            entries = [_finite(asdict(measurement)) for measurement in measured]
            content = {"digest": digest_json([origin, entries]), "measurements": entries}
            write_atomic(kept, pretty_json(content))
        rows += _table_rows(experiment, selection, measured)
    watcher.progress("probe", len(selections), len(selections))
    return rows


@dataclass(frozen=True)
class _Inner:
    """Tells a watcher of the fits within one of several sites."""

    watcher: Watcher
    sites_done: int
    n_sites: int

    def part(self, number: int, n_parts: int) -> Callable[[int, int], None]:
        """Return what hears of the fits of one target of the site."""

        def on_fit(done: int, total: int) -> None:
            inner = (number + done / total) / n_parts
            self.watcher.progress("probe", round(self.sites_done + inner, 2), self.n_sites)

        return on_fit


def _measure(
    prober: Prober,
    stores: Mapping[str, FeatureReader],
    selection: Probed,
    inner: _Inner,
) -> list[Measurement]:
    return [
        measurement
        for number, (target, store) in enumerate(stores.items())
        for measurement in prober.site(
            store.features(selection),
            random=target == "random_weights",
            on_fit=inner.part(number, len(stores)),
        )
    ]


def _file_name(selection: Probed) -> str:
    """Return a name that no file system finds too long, as those of many sites are."""
    text = selection.text
    return text if len(text) <= LONGEST_NAME else digest_json(text)[:24]


def _read(path: Path, origin: Mapping[str, str]) -> list[Measurement] | None:
    """Return the kept measurements; None, so that they are made anew, if not whole or of others."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["digest"] != digest_json([origin, content["measurements"]]):
            return None
        return [Measurement(**entry) for entry in content["measurements"]]
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def _finite(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with None for numbers that JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in entry.items()
    }


def _table_rows(
    experiment: Experiment, selection: Probed | None, measured: Sequence[Measurement]
) -> list[dict[str, Any]]:
    names = {
        "run": experiment.name,
        "model": experiment.model.source,
        "dataset": experiment.data.name,
        "position": experiment.tokens.position.text,
    }
    place: dict[str, Any] = {"probe": "none"}
    if selection is not None:
        place = _place(selection) | {"probe": "logistic", "view": experiment.capture.view}
    rows = [names | place | asdict(measurement) for measurement in measured]
    return [{column: row.get(column) for column in COLUMNS} for row in rows]


def _place(selection: Probed) -> dict[str, Any]:
    """Return the columns that say where a probe read; a concatenation has no layer and no head."""
    components = dict.fromkeys(describe(part.site).component for part in selection.parts)
    place: dict[str, Any] = {"site": selection.text, "component": JOINT.join(components)}
    if isinstance(selection, SiteSelection):
        place |= {
            "site": selection.without_head.text,
            "layer": layer_of(selection.site),
            "head": selection.head,
        }
    return place
