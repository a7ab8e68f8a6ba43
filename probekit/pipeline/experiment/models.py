"""The networks of an experiment: the probed model, and networks with random weights."""

from __future__ import annotations

import torch

from probekit.experiment.schema import Experiment
from probekit.model.families.table import find_config
from probekit.model.load import load_model, random_network
from probekit.model.network import Network
from probekit.pipeline.capture.devices import check_device
from probekit.probes.targets import NETWORKS, TARGETS

Models = dict[str, Network]  # by target

TASK = "task"
N_SEEDS = 2**32  # number of seeds of a random generator


def targets(experiment: Experiment) -> tuple[str, ...]:
    """Return the targets that need activations: `task`, and one for each untrained network."""
    return (TASK, *NETWORKS[: experiment.model.random_weights])


def load_models(experiment: Experiment, device: str) -> Models:
    """Return the network of each target.

    Raises:
        ConfigError: the device is not available.
        MissingError: the model does not exist.
    """
    check_device(device)
    return {target: target_network(experiment, target, device) for target in targets(experiment)}


def target_network(experiment: Experiment, target: str, device: str) -> Network:
    """Return the network of one target on a device.

    Raises:
        MissingError: the model does not exist.
    """
    dtype = getattr(torch, experiment.model.dtype)
    with experiment.at("model", "source"):
        if target == TASK:
            return load_model(experiment.model.source, dtype, device)
        config = find_config(experiment.model.source)
    number = TARGETS[target].network
    assert number is not None
    seed = (experiment.model.random_seed + number) % N_SEEDS
    return random_network(config, seed).to(device=device, dtype=dtype)
