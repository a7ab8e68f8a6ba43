"""Where the model computes."""

from __future__ import annotations

import torch

from probekit.errors import ConfigError


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here, before any work.

    Raises:
        ConfigError: it is unknown or cannot be used; the message is torch's own, and the devices.
    """
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"--device {device}: {reason}. Devices here: {_devices()}.") from error


def _devices() -> str:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ", ".join(["cpu", *(name for name, is_here in there.items() if is_here)])
