"""Capturing the rows of an experiment from its models, with one or several workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from probekit.activations.capture import Captured, Engine, fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.activations.store import ActivationStore
from probekit.activations.work import compute_locally
from probekit.experiment.schema import Experiment
from probekit.model.network import Network
from probekit.pipeline.capture.devices import check_device_name
from probekit.pipeline.capture.jobs import Job, begin_work
from probekit.pipeline.capture.local_workers import Workers, put_job
from probekit.pipeline.experiment.prepare import TextRows, prepare
from probekit.pipeline.experiment.source import TASK, Models, load_models, target_network, targets
from probekit.terminal import SILENT, Watcher


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
) -> dict[str, Captured]:
    """Capture the activations of an experiment; return them by target.

    The targets are `task`, for the probed model, and one for each network with random weights.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the models.
        watcher: receives progress.
        crew: captures with several workers, each on its own device; None for this process only.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    check_device_name(device)
    prepared = prepare(experiment)
    # With a crew this process only digests the weights, and it may have no GPU.
    models = load_models(experiment, device if crew is None else "cpu")
    return capture_models(
        experiment,
        prepared,
        models,
        cache_root=cache_root,
        watcher=watcher,
        crew=crew,
        device=device,
    )


def capture_models(
    experiment: Experiment,
    prepared: TextRows,
    models: Models,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
) -> dict[str, Captured]:
    """Capture the rows of all probed sites of an experiment; return them by target.

    Args:
        experiment: gives the data type on disk.
        prepared: rows of the experiment.
        models: model of each target.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
        crew: captures with several workers; None to use `models` in this process.
        device: compute device of the crew.
    """
    class_of_device = None if crew is None else device.partition(":")[0]
    return {
        target: capture_rows(
            experiment,
            prepared,
            model,
            cache_root=cache_root,
            step="capture" if target == TASK else "capture, untrained",
            watcher=watcher,
            engine=compute_locally if crew is None else partial(crew, Job(experiment, target)),
            device=class_of_device,
        )
        for target, model in models.items()
    }


def capture_rows(
    experiment: Experiment,
    prepared: TextRows,
    model: Network,
    *,
    cache_root: Location | None,
    step: str,
    watcher: Watcher,
    engine: Engine = compute_locally,
    device: str | None = None,
) -> Captured:
    """Capture the rows of all probed sites of an experiment from one model; return them.

    Args:
        experiment: gives the data type on disk.
        prepared: rows of the experiment.
        model: model whose activations are captured.
        cache_root: folder or URL of the caches; None for the user's default.
        step: name of the step for the watcher.
        watcher: receives progress.
        engine: computes missing shards; by default in this process.
        device: type of the engine's devices; None for that of the model.
    """
    root = default_root() if cache_root is None else cache_root
    work = begin_work(experiment, prepared, model, root, device)
    return fill(work, root, engine=engine, step=step, watcher=watcher)


def lay_out(
    experiment: Experiment, *, cache_root: Location | None = None, device: str = "cpu"
) -> Mapping[str, ActivationStore]:
    """Create empty caches with job files for workers and return them; nothing is computed.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the workers, which may be on other machines.

    Raises:
        ConfigError: the device name is invalid.
        StoreError: the caches cannot be written, or do not support several writers.
    """
    check_device_name(device)
    prepared = prepare(experiment)
    root = default_root() if cache_root is None else cache_root
    stores = {}
    for target in targets(experiment):
        model = target_network(experiment, target, "cpu")
        work = begin_work(experiment, prepared, model, root, device.partition(":")[0])
        if work.missing_sites():
            put_job(Job(experiment, target), work)
        stores[target] = work.store
    return stores
