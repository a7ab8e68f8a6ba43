"""Where the model computes."""

from __future__ import annotations

import torch

from probekit.errors import ConfigError


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here, before any work.

    Raises:
        ConfigError: it is unknown or cannot be used; the message is torch's own.
    """
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        raise ConfigError(f"--device {device}: {str(error).splitlines()[0]}") from error
