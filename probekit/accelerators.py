"""Accelerators, such as GPUs: whether one is available, arrays that are copied to it, its loss."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DeviceLostError
from probekit.memory import is_out_of_memory
from probekit.products import put

_LOST = re.compile("(CUDA|HIP|MPS|XPU).* error|device-side assert", re.IGNORECASE)


def stream(blocks: Iterable[NDArray[Any]], device: str) -> Iterator[Tensor]:
    """Yield arrays as float32 tensors on a device.

    With CUDA, the next array is read into pinned memory and copied on a stream of its own while the
    caller computes with the present one. The caller is at most one array ahead of the device.
    """
    if not device.startswith("cuda"):
        yield from (put(block, device).float() for block in blocks)
        return
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream(device)
    copied: tuple[Tensor, Any] | None = None
    computed: Any = None
    for array in chain(blocks, [None]):
        before = copied
        if array is not None:
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            pinned = torch.empty(array.shape, dtype=dtype, pin_memory=True)
            np.copyto(pinned.numpy(), array)
            with torch.cuda.stream(copies):
                copied = pinned.to(device, non_blocking=True), copies.record_event()
        if before is not None:
            tensor, arrival = before
            current.wait_event(arrival)
            tensor.record_stream(current)  # its memory is not used again before this stream is done
            yield tensor.float()
            if computed is not None:
                computed.synchronize()
            computed = current.record_event()


def check_device(
    device: object, use: Callable[[str], object] | None = None, *, several: bool = False
) -> None:
    """Raise ConfigError if a device is not available on this machine.

    Args:
        device: name of the device, such as `cuda:1`; or several, such as `cuda:0,cuda:1`.
        use: function of torch that fails without the device; None computes on it.
        several: whether several devices can be used.

    Raises:
        ConfigError: the device is unknown or unavailable; the message lists the available devices
            and quotes the message of torch. Or there are several devices, but only one can be used,
            or they are of different types, or one is given twice.
    """
    if not isinstance(device, str):
        kind = type(device).__name__
        raise ConfigError(f"device is of type {kind}. Allowed: a text, such as 'cpu' or 'cuda:0'.")
    names = device.split(",")
    if len(names) > 1 and not several:
        raise ConfigError(
            f"--device {device}: this needs a single device. `probekit run` without interventions, "
            "`probekit cache`, and `load_model` spread a network over several."
        )
    if "" in names:
        raise ConfigError(f"--device {device}: a name is empty. Write cuda:0 or cuda:0,cuda:1.")
    if len({name.partition(":")[0] for name in names}) > 1 or len(set(names)) < len(names):
        raise ConfigError(f"--device {device}: several devices must be different, of one type.")
    for name in names:
        try:
            torch.zeros(1, device=name).item() if use is None else use(name)
        except (RuntimeError, AssertionError, ImportError, NotImplementedError, TypeError) as error:
            known = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
            known += ["mps"] * torch.backends.mps.is_available()
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(
                f"--device {name}: {reason}. Available devices: {', '.join(known)}."
            ) from error


def check_device_name(device: str) -> None:
    """Raise ConfigError if no machine can have a device of this name, or several of them.

    Raises:
        ConfigError: a name is invalid.
    """
    check_device(device, torch.device, several=True)


@contextmanager
def naming_lost_device(device: str) -> Iterator[None]:
    """Turn the error of a device that fails in the block into a DeviceLostError.

    Raises:
        DeviceLostError: the device failed; the message states how to resume.
    """
    try:
        yield
    except RuntimeError as error:
        is_lost = isinstance(error, torch.AcceleratorError) or bool(_LOST.search(str(error)))
        if isinstance(error, DeviceLostError) or not is_lost or is_out_of_memory(error):
            raise
        kind = device.partition(":")[0]
        raise DeviceLostError(
            f"The device {device} was lost: {str(error).splitlines()[0].rstrip('.')}. Finished "
            "shards and sites are saved: the same command resumes, with another --device of the "
            f"type {kind} if this one does not recover. On another type, activations are computed "
            "again, because their last bits differ."
        ) from error
