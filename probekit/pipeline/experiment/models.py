"""The networks of an experiment and their device: the probed model, and those of random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from probekit.errors import ConfigError
from probekit.experiment.schema import Experiment
from probekit.model.families.table import find_config, load_model, random_network
from probekit.model.network import Network
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


def check_device(device: str, use: Callable[[str], object] | None = None) -> None:
    """Raise ConfigError if a device is not available on this machine.

    Args:
        device: name of the device, such as `cuda:1`.
        use: function of torch that fails without the device; None computes on it.

    Raises:
        ConfigError: the device is unknown or unavailable; the message lists the available devices
            and quotes the message of torch.
    """
    try:
        torch.zeros(1, device=device).item() if use is None else use(device)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError, TypeError) as error:
        others = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        available = ", ".join(["cpu", *(name for name, is_there in others.items() if is_there)])
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"--device {device}: {reason}. Available devices: {available}."
        ) from error


def check_device_name(device: str) -> None:
    """Raise ConfigError if a device name is invalid on any machine.

    Raises:
        ConfigError: the name is invalid.
    """
    check_device(device, torch.device)
