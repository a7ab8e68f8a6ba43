"""Probing captured sites: each site's measurements are kept as soon as they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joblib import cpu_count

from probekit.disk import as_store_error
from probekit.errors import ConfigError, ProbekitError, TooFewGroupsError
from probekit.experiment.schema import Experiment
from probekit.model.sites import JOINT, SiteSelection, describe, layer_of
from probekit.pipeline.experiment.features import FeatureReader, Probed
from probekit.pipeline.experiment.prepare import Prepared
from probekit.pipeline.experiment.rows import PositionRows
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.saving import FittedProbe, save_probe
from probekit.probes.curve import Prober, ProbeResult
from probekit.probes.data import ProbeData
from probekit.probes.saved.files import probe_files
from probekit.provenance import digest
from probekit.results.predictions import Predictor
from probekit.results.site_results import SavedSiteResults, SiteResult, site_stem
from probekit.watcher import InProcessWatcher, Watcher
from probekit.workers import parallel_map


def make_probers(
    experiment: Experiment, prepared: Prepared, device: str = "cpu"
) -> tuple[Prober, ...]:
    """Return for each position what probes all sites under the same folds, controls and resamples.

    Those of two positions differ in what hangs on the tokens there: control labels and scaling.

    Raises:
        DataError: the labels, groups or split cannot be probed; known before the model runs.
    """
    is_sweep = len(prepared.positions) > 1
    probers = []
    for at in prepared.positions:
        try:
            probers.append(_make_prober(experiment, prepared, at, device))
        except ProbekitError as error:
            error.args = (f"At {at.position.text}: {error}" if is_sweep else str(error),)
            raise
    return tuple(probers)


def _make_prober(
    experiment: Experiment, prepared: Prepared, at: PositionRows, device: str
) -> Prober:
    data = [
        ProbeData(
            y=prepared.labels,
            groups=prepared.groups,
            types=at.types,
            train=split.train,
            test=split.test,
            typical=at.typical,
            texts=prepared.texts,
            examples=prepared.wholes,
        )
        for split in prepared.splits
    ]
    with experiment.at("probe", "kinds"):
        settings = experiment.probe.settings(device)
    try:
        return Prober(data, settings)
    except TooFewGroupsError:
        with experiment.at("probe", "folds"):
            raise
    except ConfigError:  # what else is wrong with the data is placed by its rows
        with experiment.at("probe", "control_draws"):
            raise


def probe_sites(
    experiment: Experiment,
    prober: Prober,
    stores: Mapping[str, FeatureReader],
    selections: Sequence[Probed],
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None = 1,
) -> list[SiteResult]:
    """Return what was found by the baselines, then at every site in forward order.

    Args:
        experiment: gives the names, and the position, which is one.
        prober: measures each site.
        stores: read the trained model's activations under `task`, those of untrained weights, if
            wanted, under `random_weights`.
        selections: the sites.
        folder: of the run; finished sites are kept in its folder `sites` and not computed again.
        watcher: hears of each finished site.
        workers: how many sites are probed at once, each in a process; None for one a core.

    Raises:
        StoreError: a file cannot be written, or the folder was deleted during the run.
    """
    kept = SavedSiteResults(folder.path, prober.truth_of, len(prober.data.classes))
    spots = [_Spot.of(selection, experiment, folder.path) for selection in (None, *selections)]
    sites = [kept.read(spot.stem, spot.origin) for spot in spots]
    n_kept = sum(site is not None for site in sites[1:])
    progress = _Progress(InProcessWatcher(watcher), n_kept, len(selections))
    job = _Job(experiment, prober, stores, kept, folder.path, progress)
    if sites[0] is None:  # takes another time than a site
        sites[0] = job(spots[0])
    for site in filter(None, sites):
        folder.note(site.files)
    missing = [number for number, site in enumerate(sites) if site is None]
    items = [spots[number] for number in missing]
    # Not a matter of how many are left or run at once: threads may change the last bits.
    n_threads = max(1, cpu_count() // len(selections))
    for done, site in enumerate(parallel_map(job, items, workers, n_threads)):
        sites[missing[done]] = site
        folder.note(site.files)
        progress.done = n_kept + done + 1
        progress.tell()
    watcher.progress("probe", len(selections), len(selections))
    return [
        replace(site, place=_place(experiment, spot.selection))
        for spot, site in zip(spots, sites, strict=True)
        if site is not None
    ]


@dataclass(frozen=True)
class _Spot:
    """A site, or None for the baselines, and where and under what origin its numbers are kept."""

    selection: Probed | None
    stem: Path
    origin: Mapping[str, str]

    @classmethod
    def of(cls, selection: Probed | None, experiment: Experiment, run_dir: Path) -> _Spot:
        offset, position = experiment.tokens.position.offset, experiment.tokens.position.text
        name = "baselines" if selection is None else selection.text
        origin = {"run": run_dir.name, "position": position, "site": name}
        return cls(selection, site_stem(name, offset), origin)


@dataclass(frozen=True)
class _Job:
    """Measures one site, in this process or another, and keeps what is found."""

    experiment: Experiment
    prober: Prober
    stores: Mapping[str, FeatureReader]
    kept: SavedSiteResults
    run_dir: Path
    progress: _Progress

    def __call__(self, spot: _Spot) -> SiteResult:
        """Return what is found at a site, as a later run sees it."""
        if spot.selection is None:
            site = _baselines(self.prober)
        else:
            site = _measure(self, spot.selection, Path("probes") / spot.stem.relative_to("sites"))
        site = self.kept.write(spot.stem, spot.origin, site)
        return self.kept.read(spot.stem, spot.origin) or site


@dataclass
class _Progress:
    """Tells a watcher how many sites are done, and of the fits in the one under way here.

    Sites are begun in any order, so that one may end before those that are counted first: what was
    told is never taken back.
    """

    watcher: Watcher
    done: int
    n_sites: int
    told: float = 0.0

    def tell(self, inner: float = 0.0) -> None:
        """Tell how many sites are done, and what part of one more."""
        self.told = max(self.told, round(self.done + inner, 2))
        self.watcher.progress("probe", self.told, self.n_sites)

    def part(self, number: int, n_parts: int) -> Callable[[int, int], None]:
        """Return what hears of the fits of one target of the site."""

        def on_fit(done: int, total: int) -> None:
            self.tell((number + done / total) / n_parts)

        return on_fit


def _baselines(prober: Prober) -> SiteResult:
    found = prober.baselines()
    return SiteResult(
        [measurement for result in found.values() for measurement in result.measurements],
        {Predictor("none", target): result.said for target, result in found.items()},
    )


def _measure(job: _Job, selection: Probed, folder: Path) -> SiteResult:
    """Return what is found at a site; fitted probes of the trained model are saved.

    Args:
        job: what is measured.
        selection: the site.
        folder: of its probes, within that of the run.
    """
    site = SiteResult([], {})
    for number, (target, store) in enumerate(job.stores.items()):
        is_random = target == "random_weights"
        on_fit = job.progress.part(number, len(job.stores))
        results = job.prober.site(store.features(selection), random=is_random, on_fit=on_fit)
        for result in results:
            site.measurements.extend(result.measurements)
            assert result.spec is not None
            site.said[Predictor(result.spec.text, target)] = result.said
            if not is_random and result.solution is not None:
                stem = folder / result.spec.text.replace(":", "-")
                _save(job.run_dir / stem, result, job.experiment, job.prober, store, selection)
                _, weights = probe_files(stem)
                with as_store_error("read", job.run_dir / weights):
                    site.probes[weights.as_posix()] = digest([(job.run_dir / weights).read_bytes()])
    return site


def _save(
    path: Path,
    result: ProbeResult,
    experiment: Experiment,
    prober: Prober,
    store: FeatureReader,
    selection: Probed,
) -> None:
    """Keep a fitted probe; one that knows fewer than all classes has no scores for the rest."""
    spec, solution = result.spec, result.solution
    assert spec is not None
    assert solution is not None
    classes = () if prober.settings.reads_numbers else prober.data.classes[solution.classes]
    first = result.measurements[0]
    penalty = {} if first.C is None else {spec.grid_name or "C": first.C}
    fitted = FittedProbe(
        kind=spec.text,
        layers=solution.layers,
        classes=tuple(map(str, classes)),
        scores_are_logits=spec.logits,
        hyperparameters={**dict(spec.options), **penalty},
    )
    save_probe(
        path,
        fitted,
        experiment,
        store.identity,
        sites=[part.text for part in selection.parts],
        measured=result.measurements,
        view=experiment.capture.view,
    )


def _place(experiment: Experiment, selection: Probed | None) -> dict[str, Any]:
    """Return the columns that name run, site and position; baselines have no site."""
    names = {
        "run": experiment.name,
        "model": experiment.model.source,
        "dataset": experiment.data.name,
        "position": experiment.tokens.position.text,
    }
    if selection is None:
        return names
    return names | _site_columns(selection) | {"view": experiment.capture.view}


def _site_columns(selection: Probed) -> dict[str, Any]:
    """Return the columns that name the site; a concatenation has no layer and no head."""
    components = dict.fromkeys(describe(part.site).component for part in selection.parts)
    place: dict[str, Any] = {"site": selection.text, "component": JOINT.join(components)}
    if isinstance(selection, SiteSelection):
        place |= {
            "site": selection.without_head.text,
            "layer": layer_of(selection.site),
            "head": selection.head,
        }
    return place
