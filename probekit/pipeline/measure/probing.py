"""Probing the sites of a run: its probers, the memory they need, and their results.

The results of each site are saved as soon as it is done.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from joblib import cpu_count

from probekit.activations.given.given import GivenSite
from probekit.amounts import size_in_words
from probekit.errors import ConfigError, OutOfMemoryError, ProbekitError, TooFewGroupsError
from probekit.experiment.activations import AnyExperiment
from probekit.files import Waiting, as_store_error
from probekit.lazy_rows import LOADED_BYTES, Codes, Features, LazyRows, rows_of_block
from probekit.memory import LIBRARIES, available_memory, is_out_of_memory
from probekit.model.sites.catalogue import component_of, layer_of
from probekit.model.sites.sites import JOINT, SiteSelection
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.measure.run_folder import RunFolder, do_task, pause, until_done
from probekit.pipeline.setup.design import ExperimentDesign, Probed
from probekit.probes.aggregation import text_sides
from probekit.probes.kinds.registry import OWN_WEIGHTS
from probekit.probes.probe_files import HeldOutScore, ProbeFacts, probe_files
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.scored import SiteResult
from probekit.probes.solve.coordinates import hessian_size
from probekit.probes.solve.design import MAPPED_BYTES, RESIDENT_BYTES
from probekit.probes.solve.layers import AffineLayer, apply_layers, unit_rows
from probekit.probes.solve.solver import BATCH_BYTES
from probekit.provenance import digest, versions
from probekit.results.site_results import SavedSiteResults, site_stem
from probekit.terminal import SILENT, Watcher
from probekit.workers import parallel_map

# Measured memory that a row takes in each split besides its features (labels, groups,
# predictions), twice as much if labels are numbers, each with a text of its own. Blocks of rows
# that are in memory together, in float64.
_OF_ROW, _BLOCKS = 350, 5
_MEANS = {"mass_mean", "nearest_mean"}  # kinds without a matrix of features by features

# A site to probe, or None for the baselines, with the stem and origin of its saved results.
SiteTask: TypeAlias = tuple[Probed | None, Path, Mapping[str, str]]


def make_probers(
    experiment: AnyExperiment, design: ExperimentDesign, device: str = "cpu"
) -> tuple[Prober, ...]:
    """Return one prober per position; a prober uses the same folds and controls at all sites.

    Probers of two positions differ in control labels and scaling, which depend on the tokens.

    Raises:
        DataError: the labels, groups or split cannot be probed. Raised before the model runs.
        ConfigError: a requested control task cannot be drawn.
    """
    settings = experiment.probe.on(device)
    if not design.has_types:  # no lookup of words, and no control labels by word
        baselines = tuple(name for name in settings.baselines if name != "word_identity")
        draws = 0 if settings.control_by == "word" else settings.control_draws
        settings = settings.changed(baselines=baselines, control_draws=draws)
    probers = []
    for position, at_position in enumerate(design.positions):
        try:
            positive = experiment.data.positive
            data = design.data(position, positive, design.splits)
            within = design.data(position, positive, design.within)
            if settings.reads == "classes":
                with experiment.at("data", "positive"):
                    # The property raises if no training row has the label.
                    _ = [split.positive_code for split in data]
            try:
                probers.append(Prober(data, settings, within))
            except (TooFewGroupsError, ConfigError) as error:  # other DataErrors name their rows
                is_of_folds = isinstance(error, TooFewGroupsError)
                with experiment.at("probe", "folds" if is_of_folds else "control_draws"):
                    raise
        except ProbekitError as error:
            is_sweep = len(design.positions) > 1
            error.args = (f"At {at_position.text}: {error}" if is_sweep else str(error),)
            raise
    return tuple(probers)


def probing_bytes(probers: Sequence[Prober], widths: Sequence[int]) -> int:
    """Return the predicted peak memory of one process that probes the sites, in bytes.

    Pages of mapped files are not counted. Activations that the caller holds come on top.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
    """
    prober, d = probers[0], max(widths)
    settings, n_rows, n_train = prober.settings, len(prober.data.y), len(prober.data.train)
    site = 4 * n_rows * d
    is_loaded = site <= LOADED_BYTES
    n_splits = sum(len(one.splits) + len(one.within) for one in probers)
    of_row = _OF_ROW * n_splits * (1 + settings.reads_numbers)
    size = LIBRARIES + of_row * n_rows + is_loaded * site
    # Standardised rows; kinds without blocks have two copies, means none.
    kinds = {one.kind for one in settings.specs}
    # Aggregated probes read tokens by blocks, unless a rule has weights of its own.
    in_blocks = set() if OWN_WEIGHTS & {*settings.rules} else {"aggregated"}
    of_tokens = {one.kind for one in settings.specs if one.task in ("text", "tree")}
    if any(one.traits.copies_rows for one in settings.specs) or of_tokens - in_blocks:
        size += 16 * n_train * d
    elif kinds - _MEANS:
        size += min(4 * n_train * d, RESIDENT_BYTES if is_loaded else MAPPED_BYTES)
    n_scores = len(prober.data.classes) if len(prober.data.classes) > 2 else 1
    n_groups = n_scores * len(settings.C) * (1 + settings.control_draws * prober.has_control)
    if "aggregated" in kinds:  # held-out scores of all tokens at each C
        size += 8 * n_train * max(2, n_scores) * len(settings.C)
    # At most: only fits of many iterations need Hessians.
    if kinds & {"logistic", "k_sparse", "aggregated"}:
        size += min(4 * n_groups * hessian_size(d), BATCH_BYTES)
    if kinds - _MEANS:
        size += 32 * min(d, n_train) ** 2
    return size + 8 * _BLOCKS * min(rows_of_block(d), n_rows) * d


def tasks_of(source: Engine, position: int, key: str) -> list[SiteTask]:
    """Return the tasks of a position of a run: the baselines, then each site in forward order."""
    of_rows, tasks = source.design.positions[position], list[SiteTask]()
    for selection in (None, *source.selections):
        name = "baselines" if selection is None else selection.text
        origin = {"run": key, "position": of_rows.text, "site": name}
        tasks.append((selection, site_stem(name, of_rows.offset), origin))
    return tasks


def threads_of_site(source: Engine) -> int:
    """Return the number of threads that measure a site of a run.

    It does not depend on the number of processes or of missing sites, because it may change the
    last bits of results.
    """
    return int(max(1, cpu_count() // len(source.selections)))


def probe_sites(
    source: Engine,
    position: int,
    prober: Prober,
    folder: RunFolder,
    watcher: Watcher,
    workers: int | None = 1,
    seconds: float | None = None,
    wait: Callable[[], None] | None = None,
) -> list[SiteResult]:
    """Return the results of the baselines, then of every site in forward order.

    Args:
        source: the activation rows.
        position: index of the position.
        prober: measures each site.
        folder: folder of the run; finished sites are saved in its folder `sites` and reused.
        watcher: receives the progress.
        workers: number of sites probed in parallel, each in a process; None for one per core.
        seconds: estimated time for all sites in one process, if it is known.
        wait: waits for other processes that measure all sites; None if this process and its
            workers measure them.

    Raises:
        StoreError: a file cannot be written, or the folder was deleted during the run.
    """
    selections, of_rows = source.selections, source.design.positions[position]
    n_threads = threads_of_site(source)
    job = SiteJob(source, position, prober, folder.path, folder.created, watcher)
    tasks = tasks_of(source, position, folder.path.name)
    read = {stem: job.read((selection, stem, origin)) for selection, stem, origin in tasks}
    saved = {stem: site for stem, site in read.items() if site is not None}
    for site in saved.values():
        folder.note(site.files)
    # Baselines, the first task, come last: while workers start at the front, this process starts at
    # the back. They are not part of the progress, because they take a different time than a site.
    missing = [task for task in (*tasks[1:], tasks[0]) if task[1] not in saved]
    n_missing = sum(selection is not None for selection, *_ in missing)
    job.progress.done = len(selections) - n_missing
    if seconds is not None:
        seconds *= len(missing) / len(tasks)
    if n_missing < 2:
        workers = 1  # one site needs no other process

    def attempt(to_do: Sequence[SiteTask]) -> Iterable[SiteResult | None]:
        folder.note({})  # raises if the folder was deleted, which no other process would report
        if wait is not None:
            return map(job.read, to_do)
        return parallel_map(job, to_do, workers, n_threads, seconds)

    pausing = partial(pause, Waiting(folder.path, watcher.tell), folder.path)
    for (selection, stem, _), site in until_done(missing, attempt, wait or pausing):
        saved[stem] = site
        folder.note(site.files)
        job.progress.done += selection is not None
        job.progress.report()
    watcher.progress("probe", len(selections), len(selections))
    facts = source.activations.probe_facts(position)
    settings = source.experiment
    of_position = {"run": settings.name, "model": facts["model"], "dataset": settings.data.name}
    of_position |= {"position": of_rows.text, "positive": prober.positive}
    of_position["main_metric"] = " ".join(settings.probe.main_metrics)
    return [
        replace(saved[stem], place=of_position | _site_columns(selection, facts["view"]))
        for selection, stem, _ in tasks
    ]


def _site_columns(selection: Probed | None, view: str) -> dict[str, Any]:
    """Return the columns for the site; those that it lacks are None, for the baselines all."""
    place: dict[str, Any] = dict.fromkeys(("site", "layer", "component", "head", "order", "view"))
    if selection is None:
        return place
    if isinstance(selection, GivenSite):
        columns = ("site", "component", "layer", "order")
        return place | {name: getattr(selection, name) for name in columns} | {"view": view}
    components = dict.fromkeys(component_of(part.site) for part in selection.parts)
    place |= {"site": selection.text, "component": JOINT.join(components), "view": view}
    if isinstance(selection, SiteSelection):
        whole = replace(selection, head=None).text
        place |= {"site": whole, "layer": layer_of(selection.site), "head": selection.head}
    return place


@dataclass
class _Progress:
    """Reports progress: the finished sites plus the finished fraction of the current site.

    Sites may finish in any order; the reported progress never decreases. A copy in another process
    reports nothing.
    """

    watcher: Watcher
    done: int
    n_sites: int
    reported: float = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"watcher": SILENT}

    def report(self, fraction: float = 0.0) -> None:
        """Report the number of finished sites plus a fraction of the current one."""
        self.reported = max(self.reported, round(self.done + fraction, 2))
        self.watcher.progress("probe", self.reported, self.n_sites)

    def on_fit(self, number: int, n_parts: int, done: int, total: int) -> None:
        """Report that `done` of `total` fits of a part of the current site are done.

        The part is `number`, from 0, of `n_parts`: the trained model, then untrained ones if any.
        """
        self.report((number + done / total) / n_parts)


class SiteJob:
    """Callable that measures one site and saves the results; picklable for worker processes.

    Args:
        source: the activation rows.
        position: index of the position.
        prober: measures each site.
        run_dir: folder of the run.
        created: start time of the run; saved with the probes, so that all processes write the same.
        watcher: receives the progress of the fits.
    """

    def __init__(
        self,
        source: Engine,
        position: int,
        prober: Prober,
        run_dir: Path,
        created: str,
        watcher: Watcher,
    ) -> None:
        self.activations, self.untrained = source.activations, source.networks[1:]
        self.position, self.prober, self.run_dir, self.created = position, prober, run_dir, created
        self.saved = SavedSiteResults(run_dir, prober.truth_of, len(prober.data.classes))
        self.progress = _Progress(watcher, 0, len(source.selections))
        self.needed = probing_bytes([prober], source.widths)  # memory of a process

    def __call__(self, task: SiteTask) -> SiteResult | None:
        """Return the results of a site, measured now or before; None if another process does it."""
        return self.read(task) or self.measure(task)

    def measure(self, task: SiteTask) -> SiteResult | None:
        """Measure a site, save its results, and return them as read back from the file.

        Reading them back makes a resumed run, which only reads them, identical. None if another
        process measures the site, or has measured it.
        """
        _, stem, origin = task

        def compute() -> SiteResult:
            # There is nothing to read if the file was deleted, which is reported later.
            measured = self.saved.write(stem, origin, self._measured(task))
            return self.read(task) or measured

        return do_task(self.run_dir, stem, partial(self.read, task), compute)

    def read(self, task: SiteTask) -> SiteResult | None:
        """Return the saved results of a site; None without them."""
        _, stem, origin = task
        return self.saved.read(stem, origin)

    def _measured(self, task: SiteTask) -> SiteResult:
        """Return the results of a site or of the baselines."""
        selection, stem, origin = task
        try:
            if selection is None:
                return self.prober.baselines(self.activations.outputs(self.position))
            return self._of_site(selection, Path("probes") / stem.relative_to("sites"))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error) or "an allocation failed"
            raise OutOfMemoryError(
                f"There is not enough memory to probe {origin['site']} ({reason}): each process "
                f"needs about {size_in_words(self.needed)}, and "
                f"{size_in_words(available_memory())} are available. Probe one site at a time with "
                "`--workers 1`, or set `probe.fit_rows` to fit probes on fewer rows. Results of "
                "finished sites are kept."
            ) from error

    def _of_site(self, selection: Probed, folder: Path) -> SiteResult:
        """Return the results at a site; save the probes of the trained model.

        They are saved in `folder`, which is relative to the folder of the run.
        """
        prober, untrained = self.prober, self.untrained
        on_fit, n_parts = self.progress.on_fit, 2 if untrained else 1
        settings, X = prober.settings, self.activations.block(selection, self.position)
        site = prober.site(X, on_fit=partial(on_fit, 0, n_parts))
        for kind, fit in site.fits.items():
            stem, C = folder / kind.replace(":", "-"), site.penalties[kind]
            spec = settings.spec(kind)
            penalty = {} if C is None else {spec.grid_name or "C": C}
            is_of_texts = spec.traits.scores_texts
            rows = text_sides(prober)[-1][0].rows if is_of_texts else prober.saved_rows.rows
            # Classes that were absent in training have no scores.
            classes = () if settings.reads_numbers else prober.data.classes[fit.classes]
            metrics = {}
            for one in site.of_kind(kind):
                # A probe of a nested cross-validation is fitted on all rows, the test rows too.
                if not prober.is_nested and one.target == "task" and one.split == "test":
                    limits = {name: getattr(one, name) for name in ("ci_low", "ci_high", "chance")}
                    known = {name: None if math.isnan(x) else x for name, x in limits.items()}
                    metrics[one.metric] = HeldOutScore(
                        value=one.value, n=one.n_test, n_groups=one.n_groups, **known
                    )
            facts = ProbeFacts(
                kind=kind,
                # With class weights, the softmax gives probabilities of equally frequent classes.
                scores_are_logits=spec.logits and settings.class_weight is None,
                sites=tuple(part.text for part in selection.parts),
                **self.activations.probe_facts(self.position),
                hyperparameters={**spec.options, **penalty},
                aggregation=getattr(fit, "aggregation", None),
                metrics=metrics,
                projection_sd=projection_sds(fit.layers, X, rows),
                is_tested=not prober.is_nested,
                seed=settings.seed,
                created=self.created,
                versions=versions(),
            )
            SavedProbe(fit.layers, tuple(map(str, classes)), facts).save(self.run_dir / stem)
            _, weights = probe_files(stem)
            with as_store_error("read", self.run_dir / weights):
                site.probes[weights.as_posix()] = digest([(self.run_dir / weights).read_bytes()])
        if untrained:
            # One network at a time, so that the features of all are never in memory together.
            blocks = (self.activations.block(selection, self.position, name) for name in untrained)
            random = prober.random_site(blocks, len(untrained), partial(on_fit, 1, n_parts))
            site.measurements.extend(random.measurements)
            site.predictions.update(random.predictions)
        return site


def projection_sds(
    layers: Sequence[AffineLayer], X: Features | LazyRows, rows: Codes
) -> tuple[float, ...]:
    """Return the standard deviation of the projection on each direction of a probe.

    It is empty for a probe without directions: one of several layers, or with a direction whose
    weights are all 0.

    Args:
        layers: weight (n_out, n_in) and bias of each layer, for raw activations.
        X: features (n_rows, n_in) of all rows.
        rows: numbers of the rows that the probe was fitted on.

    >>> layer = np.array([[0.0, 2.0]]), np.zeros(1)
    >>> projection_sds((layer,), np.array([[5.0, 1.0], [0.0, 7.0]]), np.array([0, 1]))
    (3.0,)
    """
    weights = np.asarray(layers[0][0], np.float64)
    unit = unit_rows(weights) if len(layers) == 1 else None
    if unit is None:
        return ()
    projection = AffineLayer(unit, np.zeros(len(unit)))
    projections = apply_layers((projection,), LazyRows.of(X).select(rows))
    return tuple(projections.std(axis=0).tolist())
