"""The rows of an experiment, captured from its models by one or by many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from probekit.activations.capture import Captured, Engine, fill
from probekit.activations.files.local import Location
from probekit.activations.files.places import default_root
from probekit.activations.shared.work import compute_locally
from probekit.activations.store.store import ActivationStore
from probekit.experiment.schema import Experiment
from probekit.model.network import Network
from probekit.pipeline.capture.devices import check_device_name
from probekit.pipeline.capture.jobs import Job, begin_work
from probekit.pipeline.capture.local_workers import Workers, put_job
from probekit.pipeline.experiment.models import TASK, Models, load_model, load_models, targets
from probekit.pipeline.experiment.prepare import Prepared, prepare
from probekit.watcher import SILENT, Watcher


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
) -> dict[str, Captured]:
    """Return the captured activations of an experiment: `task` and, if wanted, `random_weights`.

    Args:
        experiment: whose rows are captured.
        cache_root: folder or URL of the caches, None for the user's own.
        device: where the models compute.
        watcher: hears how far the work has come.
        crew: several workers who compute, each on such a device; None for this process alone.

    Raises:
        ProbekitError: one of its subclasses, whose message says what was wrong and where.
    """
    check_device_name(device)
    prepared = prepare(experiment)
    # For a crew they are only digested here, where there may be no GPU.
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
    prepared: Prepared,
    models: Models,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
) -> dict[str, Captured]:
    """Return the captured rows of all sites that an experiment probes, of each of its models.

    Args:
        experiment: gives the numbers on disk.
        prepared: its rows.
        models: whose activations are captured.
        cache_root: folder or URL of the caches, None for the user's own.
        watcher: hears how far the work has come.
        crew: several workers who compute, each on a device; None for the models where they are.
        device: of the crew.
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
    prepared: Prepared,
    model: Network,
    *,
    cache_root: Location | None,
    step: str,
    watcher: Watcher,
    engine: Engine = compute_locally,
    device: str | None = None,
) -> Captured:
    """Return the captured rows of all sites that an experiment probes.

    Args:
        experiment: gives the numbers on disk.
        prepared: its rows.
        model: whose activations are captured.
        cache_root: folder or URL of the caches, None for the user's own.
        step: what the watcher hears that this is.
        watcher: hears how far the work has come.
        engine: computes what is lacking, by default in this process.
        device: class of the devices that the engine computes on; None for that of the model.
    """
    root = default_root() if cache_root is None else cache_root
    work = begin_work(experiment, prepared, model, root, device)
    return fill(work, root, engine=engine, step=step, watcher=watcher)


def lay_out(
    experiment: Experiment, *, cache_root: Location | None = None, device: str = "cpu"
) -> Mapping[str, ActivationStore]:
    """Return the caches that workers are to fill, each with its job beside it; nothing is computed.

    Args:
        experiment: whose rows are to be captured.
        cache_root: folder or URL of the caches, None for the user's own.
        device: where the workers will compute, which need not be here.

    Raises:
        ConfigError: there is no such device anywhere.
        StoreError: the caches cannot be written, or not by several.
    """
    check_device_name(device)
    prepared = prepare(experiment)
    root = default_root() if cache_root is None else cache_root
    stores = {}
    for target in targets(experiment):
        model = load_model(experiment, target, "cpu")
        work = begin_work(experiment, prepared, model, root, device.partition(":")[0])
        if work.missing_sites():
            put_job(Job(experiment, target), work)
        stores[target] = work.store
    return stores
