"""Capturing the rows of an experiment from its models."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from probekit.accelerators import check_device_name
from probekit.activations.capture import Captured, Work, fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.experiment.schema import Experiment
from probekit.memory import device_text
from probekit.pipeline.capture.jobs import Job, Workers
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import CapturedRows, NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.setup.design import Probed
from probekit.terminal import SILENT, Watcher


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str | Sequence[str] = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
) -> dict[str, Captured]:
    """Capture the activations of an experiment; return them by target.

    The targets are `task`, for the probed model, and one for each network with random weights.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the models; several, as a list or as in `cuda:0,cuda:1`, each hold
            some of the blocks.
        watcher: receives progress.
        crew: captures with several workers; None for this process only.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    device = device_text(device)
    check_device_name(device)
    experiment = experiment.on_device(device)
    # With a crew this process only digests the weights, and it may have no GPU.
    how = How(device, cache_root=cache_root, watcher=watcher, replies="generated")
    if crew is not None:
        how = how._replace(device="cpu", to_compute=False, replies="shared")
    source = prepare(experiment, how).ready(how.device)
    return capture_models(source, cache_root=cache_root, watcher=watcher, crew=crew, device=device)


def capture_models(
    source: NetworkEngine,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
) -> dict[str, Captured]:
    """Capture the rows of all probed sites of an experiment; return them by target.

    Args:
        source: the experiment with its texts and models.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
        crew: captures with several workers; None to use the models of this process.
        device: compute device of the crew; not used without one.
    """
    root = default_root() if cache_root is None else cache_root
    device_type = None if crew is None else device.partition(":")[0]

    def capture(target: str) -> Captured:
        work = source.work(target, root, device_type)
        compute = Work.compute if crew is None else partial(crew, Job(source.experiment, target))
        step = "capture" if target == TASK else "capture, untrained"
        missing = [work.shards[index] for index in work.missing_sites()]
        # Once, unless workers read the weights: how weights larger than the memory are read.
        if target == TASK and missing and crew is None and (how := work.reader.how_read(missing)):
            watcher.tell(how)
        return fill(work, root, compute=compute, step=step, watcher=watcher)

    # Called one after the other, so that no variable keeps the network of the last target.
    return {target: capture(target) for target in source.networks}


def capture_further(
    source: NetworkEngine,
    name: str,
    selections: Sequence[Probed],
    *,
    cache_root: Location | None,
    watcher: Watcher,
) -> CapturedRows:
    """Return further texts of an experiment, captured at some sites.

    Args:
        source: the experiment with its models.
        name: the name of the texts.
        selections: the sites.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
    """
    texts = replace(source.further[name], selections=tuple(selections))
    root = default_root() if cache_root is None else cache_root
    work = replace(source.reading(texts), output=None).work(TASK, root)
    captured = fill(work, root, step="capture further texts", watcher=watcher)
    return CapturedRows(source.experiment, {TASK: captured.store})
