"""Probing captured sites: each site's measurements are kept as soon as they are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.store import ActivationStore, FloatArray
from probekit.errors import StoreError
from probekit.experiment.schema import Experiment
from probekit.model.sites import SiteSelection, describe, layer_of
from probekit.pipeline.prepare import Prepared
from probekit.probes.curve import Prober
from probekit.probes.data import ProbeData, ProbeSettings
from probekit.probes.measurement import Measurement
from probekit.provenance import digest_json, pretty_json, write_atomic
from probekit.watcher import Watcher

COLUMNS = (
    "run", "model", "dataset", "site", "layer", "component", "head", "position", "probe",
    "target", "split", "metric", "value", "ci_low", "ci_high", "chance", "n_train", "n_test",
    "n_groups", "C", "n_iter", "converged", "seed",
)  # fmt: skip


def make_prober(experiment: Experiment, prepared: Prepared) -> Prober:
    """Return what probes all sites of an experiment under the same folds, controls and resamples.

    Raises:
        DataError: the labels, groups or split cannot be probed; known before the model runs.
    """
    data = ProbeData(
        y=prepared.labels,
        groups=prepared.groups,
        types=prepared.types,
        train=prepared.train,
        test=prepared.test,
        typical=prepared.typical,
    )
    with experiment.at("probe", "C"):
        settings = ProbeSettings(**experiment.probe.model_dump())
    return Prober(data, settings)


def probe_sites(
    experiment: Experiment,
    prober: Prober,
    stores: Mapping[str, ActivationStore],
    selections: Sequence[SiteSelection],
    run_dir: Path,
    watcher: Watcher,
) -> list[dict[str, Any]]:
    """Return the rows of results.csv: baselines first, then every site in forward order.

    Args:
        experiment: gives the names.
        prober: measures each site.
        stores: the trained model's activations under `task`, those of untrained weights, if
            wanted, under `random_weights`.
        selections: the sites.
        run_dir: finished sites are kept in its folder `sites` and not computed again.
        watcher: hears of each finished site.
    """
    rows = _table_rows(experiment, None, prober.baselines())
    for done, selection in enumerate(selections):
        kept = run_dir / "sites" / f"{selection.text}.json"
        origin = {"run": run_dir.name, "site": selection.text}
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
    stores: Mapping[str, ActivationStore],
    selection: SiteSelection,
    inner: _Inner,
) -> list[Measurement]:
    return [
        measurement
        for number, (target, store) in enumerate(stores.items())
        for measurement in prober.site(
            _features(store, selection),
            random=target == "random_weights",
            on_fit=inner.part(number, len(stores)),
        )
    ]


def _features(store: ActivationStore, selection: SiteSelection) -> FloatArray:
    """Return the rows of a site, or of one head or neuron of it, shape (n_rows, n_features)."""
    values = store.read(selection.site)
    if selection.head is not None:
        values = values[:, selection.head]
    if selection.neuron is not None:
        values = values[:, selection.neuron, None]
    return values.reshape(len(values), -1).astype(np.float32, copy=False)


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
    experiment: Experiment, selection: SiteSelection | None, measured: Sequence[Measurement]
) -> list[dict[str, Any]]:
    names = {
        "run": experiment.name,
        "model": experiment.model.source,
        "dataset": experiment.data.name,
        "position": experiment.tokens.position.text,
    }
    place: dict[str, Any] = {"probe": "none"}
    if selection is not None:
        place = {
            "site": selection.without_head.text,
            "layer": layer_of(selection.site),
            "component": describe(selection.site).component,
            "head": selection.head,
            "probe": "logistic",
        }
    rows = [names | place | asdict(measurement) for measurement in measured]
    return [{column: row.get(column) for column in COLUMNS} for row in rows]
