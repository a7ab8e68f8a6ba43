"""The rows of an experiment, captured from one model."""

from __future__ import annotations

from probekit.activations.capture import Captured, capture
from probekit.activations.files import Place
from probekit.activations.places import default_root
from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.pipeline.prepare import Prepared
from probekit.watcher import Watcher


def capture_rows(
    experiment: Experiment,
    prepared: Prepared,
    model: GPT2,
    *,
    cache_root: Place | None,
    step: str,
    watcher: Watcher,
) -> Captured:
    """Return the captured rows of all sites that an experiment probes.

    Args:
        experiment: gives the numbers on disk.
        prepared: its rows.
        model: whose activations are captured.
        cache_root: folder or URL of the caches, None for the user's own.
        step: what the watcher hears that this is.
        watcher: hears how far the work has come.
    """
    return capture(
        model,
        prepared.tokenizer.digest,
        prepared.ids,
        prepared.plan,
        prepared.sites,
        root=default_root() if cache_root is None else cache_root,
        dtype=experiment.capture.dtype,
        step=step,
        watcher=watcher,
    )
