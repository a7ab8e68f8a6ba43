"""Checks of compute devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from probekit.errors import ConfigError


def check_device(device: str) -> None:
    """Raise ConfigError if a device is not available on this machine.

    Raises:
        ConfigError: the device is unknown or unavailable; the message lists the available devices
            and quotes the message of torch.
    """
    with _config_errors(device):
        torch.zeros(1, device=device).item()


def check_device_name(device: str) -> None:
    """Raise ConfigError if a device name is invalid on any machine.

    Raises:
        ConfigError: the name is invalid.
    """
    with _config_errors(device):
        torch.device(device)


@contextmanager
def _config_errors(device: str) -> Iterator[None]:
    """Convert errors of torch to ConfigError that names --device and the available devices."""
    try:
        yield
    except (RuntimeError, AssertionError, ImportError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"--device {device}: {reason}. Available devices: {_devices()}."
        ) from error


def _devices() -> str:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ", ".join(["cpu", *(name for name, is_there in available.items() if is_there)])
