"""Memory that this process can still use, the error where it is not enough, and its collector."""

import ctypes
import gc
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from probekit.amounts import size_in_words
from probekit.errors import OutOfMemoryError

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")  # of Linux
# Of control groups of version 2 and 1, by their controller: folder below `CGROUPS`, files of the
# limit and of the usage.
_VERSIONS = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
LIBRARIES = 412 << 20  # measured bytes of a process with all libraries
SHARE = "PROBEKIT_MEMORY"  # environment variable: bytes for a worker on a machine with others
# Messages of torch, on CPU and GPU, and of oneDNN, which does not name its reason.
_FAILED = re.compile("(allocate|out of) memory|ALLOC_FAILED|could not create a (memory|primitive)")
_PART_FOR_WEIGHTS = 0.8  # of the available memory; the rest is for activations and copies


@contextmanager
def importing() -> Iterator[None]:
    """Import modules in the block without garbage collection.

    Python's collector would visit the million objects of torch and others several times, which
    takes as long as half of their import, and finds no garbage.
    """
    thresholds, before = gc.get_threshold(), len(sys.modules)
    gc.set_threshold(0)  # no collection
    try:
        yield
    finally:
        if thresholds[0]:  # else the user, or another thread, has set it to 0
            gc.set_threshold(*thresholds)
        if len(sys.modules) > before and not gc.get_freeze_count():  # the caller has frozen none
            gc.freeze()  # these two move all objects to the oldest generation, and visit none
            gc.unfreeze()


def device_text(device: str | Sequence[str]) -> str:
    """Return the name of a device, or of several that share a network, as in `cuda:0,cuda:1`.

    >>> device_text(["cuda:0", "cuda:1"])
    'cuda:0,cuda:1'
    """
    return ",".join(map(str, device if isinstance(device, list | tuple) else [device]))


def is_accelerator(device: str) -> bool:
    """Return whether a device computes in float32 tensors: every one but "cpu".

    A numbered processor, such as "cpu:1", counts as an accelerator, so that tests need none.
    """
    return device != "cpu"


def available_memory(device: str = "cpu") -> float:
    """Return the memory in bytes that this process can still use; infinity if it is not known.

    On Linux, limits of control groups (containers, Slurm) and of the process (`ulimit`) are
    respected, and cached files count as available. On other systems with POSIX it is the memory of
    the machine. For a worker it is at most its share of what was available before all started.

    Args:
        device: device whose memory is meant, e.g. `cuda:1`; of several, which hold equal shares of
            a network, it is their number times the smallest memory.
    """
    if "," in device:
        names = device.split(",")
        return len(names) * min(map(available_memory, names))
    share = float(os.environ.get(SHARE) or math.inf)
    if device.startswith("cuda"):
        import torch

        # Memory that torch's allocator keeps after it was released counts as free.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return min(share, torch.cuda.mem_get_info(device)[0] + kept)
    try:
        import resource  # absent on Windows

        found = [share, _kilobytes(PROC / "meminfo", "MemAvailable")]
        for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                found.append(most - _kilobytes(PROC / "self/status", field))
        # Without files of the control groups, the other limits still hold.
        with suppress(OSError, KeyError, ValueError):
            for line in (PROC / "self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if controllers in _VERSIONS:
                    found += _rests(*_VERSIONS[controllers], path)
        return max(0, min(found))
    except (ImportError, OSError, KeyError, ValueError):  # not Linux
        is_known = hasattr(os, "sysconf")
        of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if is_known else share
        return min(share, of_machine)


def release_memory() -> None:
    """Give freed memory back to the system; glibc would keep what the largest step has taken."""
    with suppress(OSError, AttributeError, TypeError):  # of other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def used_memory(field: str = "VmRSS") -> float:
    """Return the memory that this process uses, in bytes; 0 if it is not known.

    With the field VmHWM it is the most that it has used so far.
    """
    with suppress(OSError, KeyError, ValueError):
        return _kilobytes(PROC / "self/status", field)
    return 0.0


def _kilobytes(path: Path, field: str) -> int:
    """Return a number of kB in a file of the system, in bytes."""
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return 1024 * int(fields[field].split()[0])


def _rests(below: str, limit: str, usage: str, path: str) -> Iterator[int]:
    """Yield the memory in bytes that is left in each control group of this process.

    A container sees its own group at the mount, whatever the path.
    """
    mount = CGROUPS / below
    inner = mount / path.lstrip("/")
    for folder in {mount, inner, *inner.parents}:
        if not folder.is_relative_to(mount) or not (folder / limit).is_file():
            continue
        most = (folder / limit).read_text().strip()
        if most != "max":
            used = int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            prefix = "total_" if "total_active_file" in stat else ""
            files = sum(int(stat[f"{prefix}{kind}active_file"]) for kind in ("", "in"))
            yield int(most) - used + files


def fits_in_memory(n_bytes: float, device: str = "cpu") -> bool:
    """Return whether weights of this size fit in the memory of a device, with room to compute."""
    return n_bytes <= _PART_FOR_WEIGHTS * available_memory(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of Python, torch or the system is a failed allocation."""
    return isinstance(error, MemoryError) or bool(_FAILED.search(str(error)))


def out_of_memory(what: str, n_bytes: int) -> OutOfMemoryError:
    """Return the error for weights of `n_bytes` that could not be allocated."""
    return OutOfMemoryError(
        f"There is not enough memory for {what}: it needs {size_in_words(n_bytes)}, and "
        f"{size_in_words(available_memory())} are available. In an experiment, `model.dtype: "
        "bfloat16` halves the memory of weights; in Python, `load_model` has the arguments "
        '`dtype="bfloat16"` and `in_memory=False`, which keeps one block in memory at a time.'
    )
