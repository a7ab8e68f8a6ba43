"""The memory that a process can still use, errors where it is not enough, and its collector."""

import gc
import sys

import pytest
import torch

from probekit import memory
from probekit.errors import OutOfMemoryError
from probekit.memory import available_memory, fits_in_memory, importing, is_out_of_memory
from probekit.model.families.table import load_model
from probekit.model.weights import checkpoint

GB = 2**30
resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write the files of a machine with 8 GiB of available memory, with the given ones."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")

    def write(groups, **limits):
        files = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GB // 1024} kB\n"}
        files |= {"proc/self/cgroup": groups, "proc/self/status": f"VmData: {GB // 1024} kB\n"}
        for name, content in (files | {f"cgroup/{n}": c for n, c in limits.items()}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def version_2(limit, folder=""):
    stat = f"anon {GB}\ninactive_file {GB}\nactive_file {GB // 2}\n"
    files = {"max": f"{limit}\n", "current": f"{3 * GB}\n", "stat": stat}
    return {f"{folder}memory.{name}": content for name, content in files.items()}


def version_1(limit, folder):
    stat = f"active_file 1\ntotal_inactive_file {GB}\ntotal_active_file {GB // 2}\n"
    files = {"limit_in_bytes": str(limit), "usage_in_bytes": str(3 * GB), "stat": stat}
    return {f"memory/{folder}memory.{name}": content for name, content in files.items()}


# Groups of the process, files of the groups, and the available memory of a machine with 8 GB.
MACHINES = {
    "without a limit": ("0::/\n", {}, 8),
    "a group without a limit": ("0::/job\n", version_2("max", "job/"), 8),
    "the tightest limit counts, and cached files are available": (
        "0::/job/step\n",
        version_2(6 * GB, "job/") | version_2("max", "job/step/"),
        4.5,
    ),
    "a container sees its limit at the mount": ("0::/the/path/outside\n", version_2(4 * GB), 2.5),
    "version 1": ("5:devices:/\n4:memory:/job\n0::/\n", version_1(5 * GB, "job/"), 3.5),
}


@pytest.mark.parametrize("name", MACHINES)
def test_limits_of_groups_count(machine, name):
    groups, files, available = MACHINES[name]
    machine(groups, **files)
    assert available_memory() == available * GB
    assert fits_in_memory(0.79 * available * GB)
    assert not fits_in_memory(0.81 * available * GB)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_limits_of_the_process(machine, monkeypatch):
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: 3 * GB}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (limits[limit], 9 * GB))
    machine("0::/\n")
    assert available_memory() == 2 * GB


def test_a_worker_has_its_share(machine, monkeypatch):
    machine("0::/\n")
    monkeypatch.setenv(memory.SHARE, str(3.5 * GB))
    assert available_memory() == 3.5 * GB
    monkeypatch.setenv(memory.SHARE, str(9 * GB))
    assert available_memory() == 8 * GB


def test_on_another_system_it_is_at_most_the_memory_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    assert available_memory() > 0


def test_too_little_memory_for_a_copy_is_no_damage(tmp_path, monkeypatch):
    load_model("mini").save_pretrained(tmp_path)

    def empty(*shape, **options):
        if options.get("dtype") == torch.bfloat16:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 B.")
        return allocate(*shape, **options)

    allocate = torch.empty
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(
        OutOfMemoryError, match=r"wte\.weight of .* needs .* MB.*bfloat16"
    ) as caught:
        load_model(tmp_path, "bfloat16")
    assert "damaged" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="not the message of Windows")
def test_too_little_memory_for_a_map_is_no_damage(tmp_path, monkeypatch):
    load_model("mini").save_pretrained(tmp_path)

    def refused(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(checkpoint.mmap, "mmap", refused)
    with pytest.raises(OutOfMemoryError, match=r"model\.safetensors: it needs"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"), True),
        (RuntimeError("could not create a primitive"), True),  # by oneDNN, without its reason
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_failed_allocations_are_told_from_other_errors(error, expected):
    assert is_out_of_memory(error) == expected


def test_modules_are_imported_without_garbage_collection():
    collections, thresholds = [], gc.get_threshold()

    def count(phase, _):
        collections.append(phase)

    def failing_import():
        with importing():
            assert len([[] for _ in range(10 * thresholds[0])]) > len(collections) == 0
            raise ImportError

    gc.callbacks.append(count)
    try:
        with pytest.raises(ImportError):
            failing_import()
        assert len([[] for _ in range(10 * thresholds[0])]) > len(collections) > 0
    finally:
        gc.callbacks.remove(count)
    assert gc.get_threshold() == thresholds


def test_imported_modules_are_old_and_no_longer_visited_often(monkeypatch):
    gc.unfreeze()  # what another test, or a library, froze
    with importing():
        monkeypatch.setitem(sys.modules, "a_new_module", object())
        kept = [[] for _ in range(100)]
    assert not any(one is kept for one in gc.get_objects(generation=0))
    assert gc.get_freeze_count() == 0
