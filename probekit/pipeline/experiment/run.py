"""Run an experiment, or return the results of a finished run of it.

A finished run is recognised from the digest of its input files, without reading the data as rows or
importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from probekit.errors import path_of
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.loader import make_any, make_experiment
from probekit.experiment.study import Study
from probekit.memory import device_text, importing
from probekit.pipeline.experiment.finished import find_finished, finished_result, inputs_digest
from probekit.progress import shown_progress
from probekit.terminal import Watcher

if TYPE_CHECKING:
    from probekit.activations.records import Location
    from probekit.model.network import Network
    from probekit.report.notebooks.run_result import RunResult
    from probekit.results.study import StudyResult


class _Options(TypedDict, total=False):
    """The other keywords of `run`."""

    model: Network | None
    data: Any
    out: Path | str
    cache_root: Location | None
    device: str | Sequence[str]
    workers: int | None
    engine: Literal["processes", "ray"]
    address: str | None
    watcher: Watcher | None
    progress: bool
    page: bool


@overload
def run(
    experiment: AnyExperiment | Mapping[str, Any] | str | Path,
    *,
    over: None = None,
    **options: Unpack[_Options],
) -> RunResult: ...


@overload
def run(
    experiment: AnyExperiment | Study | Mapping[str, Any] | str | Path,
    *,
    over: Mapping[str, Any] | None = None,
    **options: Unpack[_Options],
) -> RunResult | StudyResult: ...


def run(  # noqa: PLR0913  # one call, whose options have defaults
    experiment: AnyExperiment | Study | Mapping[str, Any] | str | Path,
    *,
    over: Mapping[str, Any] | None = None,
    model: Network | None = None,
    data: Any = None,
    out: Path | str = "runs",
    cache_root: Location | None = None,
    device: str | Sequence[str] = "cpu",
    workers: int | None = None,
    engine: Literal["processes", "ray"] = "processes",
    address: str | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
    page: bool = True,
) -> RunResult | StudyResult:
    """Run an experiment, or each experiment of a study, and return the results.

    Captured shards and probed sites are saved as soon as they are complete: an interrupted run
    resumes where it stopped. A second run of the same experiment returns the results of the first
    one, after checking the digests of its files, and computes nothing.

    Args:
        experiment: an experiment, the path of its file, or nested dicts with the keys of a file.
        over: values of each varied key, as in the section `over` of a study, such as
            `{"data": ["tasks/*.csv"], "probe.folds": [3, 5]}`. There is an experiment for each
            combination, whose run is in `<out>/<name>/cells`, and a `StudyResult` is returned.
        model: network in memory, in place of that of the experiment, whose `model.source` then
            names only the tokenizer; see `Experiment.with_model`. It stays on its own device.
        data: rows in memory, for an experiment whose section `data` names no file: a data frame of
            pandas or polars, a list of dicts, a `datasets.Dataset`, or a dict of two of these,
            "train" and "test".
        out: results folder; the run is written to `<out>/<name>/<key>`.
        cache_root: folder of the activation caches; None for the user's default.
        device: device that the model runs on and probes are fitted on. Several, as a list or as in
            `cuda:0,cuda:1`, each hold some blocks of the model; probes are fitted on the first.
        workers: number of sites probed in parallel, in worker processes where that is faster;
            None for one per core, or fewer if memory is short; 0 waits for `probekit worker FOLDER`
            processes, which may be on other machines. Other devices than the CPU probe one site at
            a time. Results do not depend on it.
        engine: what measures the sites and computes the edits: processes of this machine, or `ray`
            for tasks of a cluster.
        address: address of the Ray cluster; None for RAY_ADDRESS, or this machine.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress, unless a watcher is given.
        page: whether to write report.html, of a study also in the runs of its cells.

    Raises:
        ConfigError: another process is running the same experiment in the same folder, or a study
            is given rows or a network in memory.
        DeviceLostError: the device failed; the same call resumes the run.
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    given, device = make_any(experiment, over), device_text(device)
    results_folder = path_of("out", out)
    if cache_root is not None:
        path_of("cache_root", cache_root)
    if isinstance(given, Study) and data is None and model is None:
        from probekit.accelerators import check_device
        from probekit.pipeline.experiment.run_study import run_study
        from probekit.workers import check_workers

        check_workers(workers, least=0)
        check_device(device, several=True)
        run_one = partial(
            run, cache_root=cache_root, device=device, engine=engine, address=address, page=page
        )
        shares_cells = device == "cpu" and engine == "processes" and workers != 0
        study = partial(run_study, given, run_one, out=results_folder, workers=workers, page=page)
        with shown_progress(watcher, progress=progress) as shown:
            return study(shares_cells=shares_cells, watcher=shown)
    made = make_experiment(given, data, model)
    with shown_progress(watcher, progress=progress) as shown:
        inputs = inputs_digest(made, device)
        finished = find_finished(results_folder / made.name, inputs)
        if finished is not None:
            return finished_result(finished, shown, page=page)

        # Data, columns and sites are checked before scikit-learn is imported, which takes seconds.
        with importing():
            from probekit.accelerators import naming_lost_device
            from probekit.pipeline.engines.table import How, prepare
            from probekit.workers import check_workers
        check_workers(workers, least=0)
        how = How(device, replies="generated", cache_root=cache_root, watcher=shown)
        source = prepare(made, how).ready(device)
        if inputs != inputs_digest(made, device):  # a file was changed while it was read
            inputs = None

        with importing():
            from probekit.pipeline.experiment.run_job import by_workers
            from probekit.pipeline.experiment.steps import run_source
        crew = by_workers if workers == 0 else None
        if engine == "ray":
            from probekit.pipeline.experiment.ray_workers import tasks_by_ray

            crew = partial(tasks_by_ray, n_workers=workers, device=device, address=address)
        with naming_lost_device(device):
            start = partial(run_source, source, out=results_folder, device=device, page=page)
            return start(
                inputs=inputs, cache_root=cache_root, workers=workers, crew=crew, watcher=shown
            )
