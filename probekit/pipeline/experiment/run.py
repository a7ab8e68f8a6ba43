"""The order of the steps: prepare, capture, probe, look, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from probekit.activations.records import Location
from probekit.errors import StoreError, path_of
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.loader import make_experiment
from probekit.files import csv_text, exclusive, write_atomic
from probekit.pipeline.capture.captures import capture_models
from probekit.pipeline.experiment.key import run_key
from probekit.pipeline.experiment.models import check_device
from probekit.pipeline.experiment.over_training import over_training
from probekit.pipeline.experiment.record import describe_run
from probekit.pipeline.experiment.tables import (
    RunInputs,
    probe_positions,
    read_inputs,
    write_details,
    write_scores,
)
from probekit.pipeline.intervene.of_run import intervene
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.progress import shown_progress
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.run_page import write_report
from probekit.results.judging import judge
from probekit.results.record import pack_record
from probekit.results.table import DIFFERENCES, load_table, read_columns
from probekit.terminal import Watcher
from probekit.workers import check_workers

_BUSY = (
    "Another process is running this experiment in {}. Wait for it to end: the same command then "
    "reuses its results. Or give another --out."
)


@dataclass
class _Clock:
    """Seconds spent in each step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def run(
    experiment: AnyExperiment | Mapping[str, Any] | str | Path,
    *,
    data: Any = None,
    out: Path | str = "runs",
    cache_root: Location | None = None,
    device: str = "cpu",
    workers: int | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
    page: bool = True,
) -> RunResult:
    """Run an experiment and return its results.

    Captured shards and probed sites are saved as soon as they are complete: an interrupted run
    resumes where it stopped, and a second run of the same experiment captures and fits nothing.

    Args:
        experiment: an experiment, the path of its file, or nested dicts with the keys of a file.
        data: rows in memory, for an experiment whose section `data` names no file: a data frame of
            pandas or polars, a list of dicts, a `datasets.Dataset`, or a dict of two of these,
            "train" and "test".
        out: results folder; the run is written to `<out>/<name>/<key>`.
        cache_root: folder of the activation caches; None for the user's default.
        device: device that the model runs on.
        workers: number of sites probed in parallel, in worker processes where that is faster;
            None for one per core. Results do not depend on it.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress.
        page: whether to write report.html.

    Raises:
        ConfigError: another process is running the same experiment in the same folder.
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    experiment = make_experiment(experiment, data)
    with shown_progress(watcher, progress=progress) as shown:
        return run_inputs(
            experiment,
            partial(read_inputs, experiment, device),
            out=out,
            cache_root=cache_root,
            device=device,
            workers=workers,
            watcher=shown,
            page=page,
        )


def run_inputs(
    experiment: AnyExperiment,
    read: Callable[[], RunInputs],
    *,
    out: Path | str,
    cache_root: Location | None = None,
    device: str = "cpu",
    workers: int | None = None,
    watcher: Watcher,
    page: bool = True,
) -> RunResult:
    """Run an experiment whose inputs `read` returns; see `run` for the other arguments."""
    results_folder = path_of("out", out)
    if cache_root is not None:
        path_of("cache_root", cache_root)
    check_workers(workers)
    check_device(device)
    clock = _Clock()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with clock.step("prepare"):
        inputs = read()
        path = results_folder / experiment.name / run_key(inputs)
    with exclusive(path, _BUSY.format(path)):
        # Before the long work, so that an unusable folder fails immediately.
        folder = RunFolder(path, created)
        with clock.step("capture"):
            capture = partial(capture_models, cache_root=cache_root, watcher=watcher)
            features = inputs.source.open(capture)
        with clock.step("probe"):
            n_workers = workers if device == "cpu" else 1  # processes cannot share one accelerator
            results = probe_positions(inputs, features, folder, watcher, n_workers)
        with clock.step("compare"):
            table = write_scores(inputs, results, folder)
        with clock.step("checkpoints"):
            run_one = partial(
                run,
                out=folder.path / "checkpoints",
                cache_root=cache_root,
                device=device,
                watcher=watcher,
                page=False,
            )
            training = over_training(experiment, table, run_one)
            if training is not None:
                folder.write("training.csv", csv_text(training))
        with clock.step("look"):
            prompts = write_details(inputs, features, results, table, folder, watcher)
            norms = inputs.source.norms()
        with clock.step("intervene"):
            intervene(inputs, table, folder, watcher)
        verdict = judge(
            load_table(folder.path / "results.csv"),
            read_columns(folder.path / "differences.csv", DIFFERENCES),
            experiment.probe.C,
        )
        record = describe_run(inputs, features, verdict, prompts, folder.path.name, created)
        ended = {"norms": norms, "seconds": clock.seconds, "files": folder.digests()}
        content = record.model_copy(update=ended).model_dump()
        write_atomic(folder.path / "run.json", pack_record(content))
        folder.finish()
        if page:
            _write_page(folder.path)
        return RunResult(folder.path)


def _write_page(folder: Path) -> None:
    try:
        write_report(folder)
    except StoreError as error:
        raise StoreError(
            f"The run is complete, but its page is not written. {error} Then run `probekit report "
            f"{folder}`; nothing is computed again."
        ) from error
