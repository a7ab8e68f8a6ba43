"""Probing captured sites; the results of each site are saved as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joblib import cpu_count

from probekit.activations.given.sites import GivenSite
from probekit.errors import ConfigError, ProbekitError, TooFewGroupsError
from probekit.experiment.activations import AnyExperiment
from probekit.files import as_store_error
from probekit.model.sites.catalogue import component_of, layer_of
from probekit.model.sites.sites import JOINT, SiteSelection
from probekit.pipeline.experiment.features import Probed
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.rows import PositionRows
from probekit.pipeline.experiment.source import RowsOrigin, RowsReader
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.saving import FittedProbe, projection_sds, save_probe
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import probe_files
from probekit.probes.score.scored import SiteResult
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features
from probekit.provenance import digest
from probekit.results.site_results import SavedSiteResults, site_stem
from probekit.terminal import InProcessWatcher, Watcher
from probekit.workers import parallel_map


def make_probers(
    experiment: AnyExperiment, prepared: PreparedRows, device: str = "cpu"
) -> tuple[Prober, ...]:
    """Return one prober per position; a prober uses the same folds and controls at all sites.

    Probers of two positions differ in control labels and scaling, which depend on the tokens.

    Raises:
        DataError: the labels, groups or split cannot be probed. Raised before the model runs.
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
    experiment: AnyExperiment, prepared: PreparedRows, at: PositionRows, device: str
) -> Prober:
    data = [
        ProbeData(
            y=prepared.labels,
            groups=prepared.groups,
            types=at.types,
            train=split.train,
            test=split.test,
            typical=at.typical,
            words=at.words,
            texts=prepared.texts,
            neighbours=at.neighbours,
            examples=prepared.text_indices,
            positive=experiment.data.positive,
        )
        for split in prepared.splits
    ]
    with experiment.at("probe", "kinds"):
        settings = experiment.probe.settings(device)
    if not prepared.has_types:
        settings = _without_types(settings)
    if settings.reads == "classes":
        with experiment.at("data", "positive"):
            _ = [split.positive_code for split in data]  # raises if it is no training label
    try:
        return Prober(data, settings)
    except TooFewGroupsError:
        with experiment.at("probe", "folds"):
            raise
    except ConfigError:  # a DataError names its rows itself
        with experiment.at("probe", "control_draws"):
            raise


def _without_types(settings: ProbeSettings) -> ProbeSettings:
    """Return the settings without the baseline and the control task that need words."""
    baselines = tuple(name for name in settings.baselines if name != "word_identity")
    draws = 0 if settings.control_by == "word" else settings.control_draws
    return replace(settings, baselines=baselines, control_draws=draws)


@dataclass(frozen=True, eq=False)
class PositionProbing:
    """Inputs of probing at one position.

    Attributes:
        experiment: gives the names.
        at: the rows at the position.
        origin: origin of their activations.
        prober: measures each site.
        readers: readers by target: `task`, then one for each untrained network.
    """

    experiment: AnyExperiment
    at: PositionRows
    origin: RowsOrigin
    prober: Prober
    readers: Mapping[str, RowsReader]


def probe_sites(
    probing: PositionProbing,
    selections: Sequence[Probed],
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None = 1,
) -> list[SiteResult]:
    """Return the results of the baselines, then of every site in forward order.

    Args:
        probing: the rows, their readers and the prober.
        selections: the sites.
        folder: folder of the run; finished sites are saved in its folder `sites` and reused.
        watcher: receives the progress.
        workers: number of sites probed in parallel, each in a process; None for one per core.

    Raises:
        StoreError: a file cannot be written, or the folder was deleted during the run.
    """
    prober = probing.prober
    saved = SavedSiteResults(folder.path, prober.truth_of, len(prober.data.classes))
    tasks = [_Task.of(selection, probing.at, folder.path) for selection in (None, *selections)]
    sites = [saved.read(task.stem, task.origin) for task in tasks]
    n_saved = sum(site is not None for site in sites[1:])
    progress = _Progress(InProcessWatcher(watcher), n_saved, len(selections))
    job = _Job(probing, saved, folder.path, progress)
    if sites[0] is None:  # not part of the progress: baselines take a different time than a site
        sites[0] = job(tasks[0])
    for site in filter(None, sites):
        folder.note(site.files)
    missing = [number for number, site in enumerate(sites) if site is None]
    items = [tasks[number] for number in missing]
    # The same for any number of workers and missing sites: it may change the last bits of results.
    n_threads = max(1, cpu_count() // len(selections))
    for done, site in enumerate(parallel_map(job, items, workers, n_threads)):
        sites[missing[done]] = site
        folder.note(site.files)
        progress.done = n_saved + done + 1
        progress.report()
    watcher.progress("probe", len(selections), len(selections))
    return [
        replace(site, place=_place(probing, task.selection) | {"positive": prober.positive})
        for task, site in zip(tasks, sites, strict=True)
        if site is not None
    ]


@dataclass(frozen=True)
class _Task:
    """A site to probe, or None for the baselines, with the stem and origin of its saved results."""

    selection: Probed | None
    stem: Path
    origin: Mapping[str, str]

    @classmethod
    def of(cls, selection: Probed | None, at: PositionRows, run_dir: Path) -> _Task:
        offset, position = at.position.offset, at.position.text
        name = "baselines" if selection is None else selection.text
        origin = {"run": run_dir.name, "position": position, "site": name}
        return cls(selection, site_stem(name, offset), origin)


@dataclass(frozen=True)
class _Job:
    """Callable that measures one site and saves the results; picklable for worker processes."""

    probing: PositionProbing
    saved: SavedSiteResults
    run_dir: Path
    progress: _Progress

    def __call__(self, task: _Task) -> SiteResult:
        """Measure a site, save its results, and return them as read back from the file.

        Reading them back makes a resumed run, which only reads them, identical.
        """
        if task.selection is None:
            site = self.probing.prober.baselines()
        else:
            site = _measure(self, task.selection, Path("probes") / task.stem.relative_to("sites"))
        site = self.saved.write(task.stem, task.origin, site)
        return self.saved.read(task.stem, task.origin) or site


@dataclass
class _Progress:
    """Reports progress: the finished sites plus the finished fraction of the current site.

    Sites may finish in any order; the reported progress never decreases.
    """

    watcher: Watcher
    done: int
    n_sites: int
    reported: float = 0.0

    def report(self, fraction: float = 0.0) -> None:
        """Report the number of finished sites plus a fraction of the current one."""
        self.reported = max(self.reported, round(self.done + fraction, 2))
        self.watcher.progress("probe", self.reported, self.n_sites)

    def part(self, number: int, n_parts: int) -> Callable[[int, int], None]:
        """Return the callback for the fits of one target: `number` of the `n_parts` of a site."""

        def on_fit(done: int, total: int) -> None:
            self.report((number + done / total) / n_parts)

        return on_fit


def _measure(job: _Job, selection: Probed, folder: Path) -> SiteResult:
    """Return the results at a site and save the probes fitted on the trained model.

    Args:
        job: rows, readers and prober.
        selection: the site.
        folder: folder of the site's probes, relative to the run folder.
    """
    prober, ((_, reader), *untrained) = job.probing.prober, job.probing.readers.items()
    parts = [job.progress.part(n, 2 if untrained else 1) for n in range(2)]
    X = reader.features(selection)
    site = prober.site(X, on_fit=parts[0])
    site.probes.update(_save_probes(job, site, X, selection, folder))
    if untrained:
        # One network at a time, so that the features of all are never in memory together.
        networks = (network.features(selection) for _, network in untrained)
        random = prober.random_site(networks, len(untrained), parts[1])
        site.measurements.extend(random.measurements)
        site.predictions.update(random.predictions)
    return site


def _save_probes(
    job: _Job, result: SiteResult, X: Features, selection: Probed, folder: Path
) -> dict[str, str]:
    """Save the fitted probes of a site and return the digests of their weights by file name."""
    digests = {}
    for spec in job.probing.prober.settings.kinds:
        if spec.text in result.fits:
            stem = folder / spec.text.replace(":", "-")
            _save(job, stem, spec, result, X, selection)
            _, weights = probe_files(stem)
            with as_store_error("read", job.run_dir / weights):
                digests[weights.as_posix()] = digest([(job.run_dir / weights).read_bytes()])
    return digests


def _save(
    job: _Job, stem: Path, spec: ProbeSpec, result: SiteResult, X: Features, selection: Probed
) -> None:
    """Save a fitted probe; classes that were absent in training have no scores."""
    prober = job.probing.prober
    data, fit = prober.data, result.fits[spec.text]
    classes = () if prober.settings.reads_numbers else data.classes[fit.classes]
    C = result.penalties[spec.text]
    penalty = {} if C is None else {spec.grid_name or "C": C}
    fitted = FittedProbe(
        kind=spec.text,
        layers=fit.layers,
        classes=tuple(map(str, classes)),
        # With class weights, the softmax gives the probabilities of equally frequent classes.
        scores_are_logits=spec.logits and prober.settings.class_weight is None,
        hyperparameters={**dict(spec.options), **penalty},
        projection_sd=projection_sds(fit.layers, X, prober.saved_rows.rows),
    )
    save_probe(
        job.run_dir / stem,
        fitted,
        job.probing.origin,
        seed=prober.settings.seed,
        sites=[part.text for part in selection.parts],
        measured=None if prober.is_nested else result.of_kind(spec.text),
    )


_SITE_COLUMNS = ("site", "layer", "component", "head", "order")


def _place(probing: PositionProbing, selection: Probed | None) -> dict[str, Any]:
    """Return the columns for run, site and position; those of the site are None for baselines."""
    experiment, origin = probing.experiment, probing.origin
    names: dict[str, Any] = {
        "run": experiment.name,
        "model": origin.model,
        "dataset": experiment.data.name,
        "position": probing.at.position.text,
        "main_metric": " ".join(experiment.probe.settings().main_metrics),
    }
    if selection is None:
        return names | dict.fromkeys((*_SITE_COLUMNS, "view"))
    return names | _site_columns(selection) | {"view": origin.view}


def _site_columns(selection: Probed) -> dict[str, Any]:
    """Return the columns for the site; a concatenation has no layer and no head."""
    place: dict[str, Any] = dict.fromkeys(_SITE_COLUMNS)
    if isinstance(selection, GivenSite):
        named = {"site": selection.site, "component": selection.component}
        return place | named | {"layer": selection.layer, "order": selection.order}
    components = dict.fromkeys(component_of(part.site) for part in selection.parts)
    place |= {"site": selection.text, "component": JOINT.join(components)}
    if isinstance(selection, SiteSelection):
        place |= {
            "site": selection.without_head.text,
            "layer": layer_of(selection.site),
            "head": selection.head,
        }
    return place
