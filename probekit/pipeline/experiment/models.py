"""The networks of an experiment: the probed model and, optionally, one with random weights."""

from __future__ import annotations

import torch

from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.model.network import Network
from probekit.model.weights.sources import find_config
from probekit.pipeline.capture.devices import check_device

Models = dict[str, Network]  # by target

TASK, RANDOM = "task", "random_weights"


def targets(experiment: Experiment) -> tuple[str, ...]:
    """Return the targets that need activations: `task` and, if enabled, `random_weights`."""
    return (TASK, RANDOM) if experiment.model.random_weights else (TASK,)


def load_models(experiment: Experiment, device: str) -> Models:
    """Return the network of each target.

    Raises:
        ConfigError: the device is not available.
        MissingError: the model does not exist.
    """
    check_device(device)
    return {target: load_model(experiment, target, device) for target in targets(experiment)}


def load_model(experiment: Experiment, target: str, device: str) -> Network:
    """Return the network of one target on a device.

    Raises:
        MissingError: the model does not exist.
    """
    dtype = getattr(torch, experiment.model.dtype)
    with experiment.at("model", "source"):
        if target == TASK:
            return GPT2.from_pretrained(experiment.model.source, dtype, device)
        config = find_config(experiment.model.source)
    return GPT2(config, seed=experiment.model.random_seed).to(device=device, dtype=dtype)
