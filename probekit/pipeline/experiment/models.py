"""The networks of an experiment: the probed model, and networks with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from probekit.experiment.schema import Experiment
from probekit.model.families.table import find_config, load_model, random_network
from probekit.model.network import Network
from probekit.pipeline.capture.devices import check_device
from probekit.probes.targets import NETWORKS, TARGETS

TASK = "task"
N_SEEDS = 2**32  # number of seeds of a random generator


def targets(experiment: Experiment) -> tuple[str, ...]:
    """Return the targets that need activations: `task`, and one for each untrained network."""
    return (TASK, *NETWORKS[: experiment.model.random_weights])


@dataclass(frozen=True, eq=False)
class Models(Mapping[str, Network]):
    """The networks of an experiment by target, each loaded when it is first read."""

    experiment: Experiment
    device: str
    loaded: dict[str, Network] = field(default_factory=dict)

    def __getitem__(self, target: str) -> Network:
        """Return the network of a target."""
        if target not in self.loaded:
            if target not in targets(self.experiment):
                raise KeyError(target)
            self.loaded[target] = target_network(self.experiment, target, self.device)
        return self.loaded[target]

    def __iter__(self) -> Iterator[str]:
        """Return the targets."""
        return iter(targets(self.experiment))

    def __len__(self) -> int:
        """Return the number of networks."""
        return len(targets(self.experiment))


def load_models(experiment: Experiment, device: str) -> Models:
    """Return the network of each target; those with random weights are built on first use.

    Raises:
        ConfigError: the device is not available.
        MissingError: the model does not exist.
    """
    check_device(device)
    task = target_network(experiment, TASK, device)
    return Models(experiment, device, {TASK: task})


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
