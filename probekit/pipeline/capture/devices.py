"""Where the model computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from probekit.errors import ConfigError


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here, before any work.

    Raises:
        ConfigError: it is unknown or cannot be used; the message is torch's own, and the devices.
    """
    with _told(device):
        torch.zeros(1, device=device).item()


def check_device_name(device: str) -> None:
    """Refuse what is the name of no device, here or on another machine.

    Raises:
        ConfigError: it is none.
    """
    with _told(device):
        torch.device(device)


@contextmanager
def _told(device: str) -> Iterator[None]:
    """Say of which option torch complains, and which devices there are."""
    try:
        yield
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"--device {device}: {reason}. Devices here: {_devices()}.") from error


def _devices() -> str:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ", ".join(["cpu", *(name for name, is_here in there.items() if is_here)])
