"""The cost of a run on given machines, before it starts: sizes, memory, time, and what limits it.

Sizes follow from shapes and rows. Times are those of short measurements on this machine, scaled by
counts: one batch of the capture, and whole sites with random features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.amounts import counted, duration, size_in_words
from probekit.errors import ConfigError
from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.lazy_rows import LOADED_BYTES
from probekit.memory import available_memory
from probekit.pipeline.capture.captures import plan_capture, plan_tokens
from probekit.pipeline.experiment.prepare import prepare, width_of
from probekit.pipeline.experiment.rows import Rows
from probekit.pipeline.experiment.validate import capture_memory, capture_seconds
from probekit.pipeline.measure.probers import (
    make_probers,
    probing_bytes,
    probing_seconds,
    seconds_of_processes,
    usable_cores,
)
from probekit.products import check_device

_LIMIT = 2.0  # seconds of a measured site after which no larger sample is measured
# Measured number of times that a site is read whose rows stay in its file: by kinds that are fitted
# in iterations, and by the others.
_PASSES, _FEW_PASSES = 100, 5
_ITERATED = {"logistic", "k_sparse"}


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What computes a run.

    Attributes:
        workers: number of workers.
        cores: number of cores of all workers; None for those of this machine.
        device: where networks run and probes are fitted, such as `cuda`.
        devices: number of accelerators of all workers; None for one for each worker.
        throughput: tokens per second that a worker captures; None to measure it on the CPU.
        bandwidth: bytes per second that the storage reads or writes for all workers together; None
            if it is unknown.
        memory: bytes of memory of all workers; None for what this machine has now.
    """

    workers: int = 1
    cores: int | None = None
    device: str = "cpu"
    devices: int | None = None
    throughput: float | None = None
    bandwidth: float | None = None
    memory: float | None = None

    @property
    def units(self) -> int:
        """The number of devices or cores that compute."""
        if self.device != "cpu":
            return self.devices or self.workers
        return self.cores or usable_cores()


def capture_times(
    numbers: dict[str, Any], machines: Machines, seconds: float | None = None
) -> dict[str, float]:
    """Return the seconds of a capture by what takes them, as far as they are known.

    Computing and writing are done at the same time.

    Args:
        numbers: sizes of the capture; see `plan_capture`.
        machines: what captures.
        seconds: time to capture all rows of all networks on one core, if it is known.

    >>> sizes = {"caches": 2, "tokens": 100, "shards_of_a_site": 3, "bytes": 1000}
    >>> capture_times(sizes, Machines(workers=4, throughput=1.0, bandwidth=10.0))
    {'computing': 66.66666666666667, 'writing': 100.0}
    """
    times = {}
    if machines.throughput is not None:
        # More workers than shards would have nothing to do.
        n_busy = min(machines.workers, numbers["shards_of_a_site"])
        if machines.device != "cpu":
            n_busy = min(n_busy, machines.units)
        times["computing"] = numbers["caches"] * numbers["tokens"] / machines.throughput / n_busy
    elif seconds is not None:
        times["computing"] = seconds / machines.units
    if machines.bandwidth is not None:
        times["writing"] = numbers["bytes"] / machines.bandwidth
    return times


def probing_times(
    tasks: tuple[float, ...] | None, memory: int, n_read: float, machines: Machines
) -> dict[str, float]:
    """Return the seconds of probing by what takes them, as far as they are known.

    Computing and reading are done at the same time. The key of computing is `the slowest site` if
    that takes most of it, and `memory` if fewer processes fit into memory than could compute.

    Args:
        tasks: time of each task on one core or device; None if it is unknown.
        memory: bytes of a process.
        n_read: bytes that are read from files.
        machines: what probes.

    >>> machines = Machines(workers=3, cores=3, memory=250, bandwidth=10.0)
    >>> probing_times((20.0, 30.0, 40.0), 100, 600, machines)
    {'memory': 53.0, 'reading': 60.0}
    """
    times, n_workers = dict[str, float](), machines.workers
    n_fit = int((machines.memory or available_memory()) // memory)
    seconds = seconds_of_processes(tasks, max(1, min(n_workers, n_fit)), machines.units)
    if tasks is not None and seconds is not None:
        name = "computing"
        if n_fit < min(n_workers, machines.units, len(tasks)):
            name = "memory"
        elif n_workers > 1 and max(tasks) > 0.8 * seconds:
            name = "the slowest site"
        times[name] = seconds
    if machines.bandwidth is not None:
        times["reading"] = n_read / machines.bandwidth
    return times


def plan_model(
    model: str, tokens: int, sites: Sequence[str], dtype: str, machines: Machines
) -> dict[str, Any]:
    """Return the sizes and times of a capture of tokens; see `plan_tokens` and `plan_run`."""
    numbers = plan_tokens(model, tokens, sites=sites, dtype=dtype, device=machines.device)
    return numbers | _hours(capture=capture_times(numbers, machines))


def plan_run(experiment: AnyExperiment, machines: Machines) -> dict[str, Any]:
    """Return the sizes of an experiment, its memory, and the times of capture and probing.

    Data are read, weights are not. Earlier checkpoints and interventions are not included. The keys
    are those of `plan_capture`, unless activations are given, and

    - `memory`: bytes of a process that probes, and `capture_memory` of one that captures.
    - `tasks`: number of tasks of probing, which workers share.
    - `seconds`: for `capture` and `probing`, the seconds of all that they do at the same time, as
      far as they are known.
    - `hours` and `bottleneck`: the longest of these, and its name; None if they are unknown.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    numbers, times, n_networks = dict[str, Any](), dict[str, dict[str, float]](), 1
    rows: Rows
    if isinstance(experiment, ActivationExperiment):
        from probekit.pipeline.given.source import read_given  # imports pandas

        source = read_given(experiment)
        rows, widths = source.rows, source.widths
    else:
        rows = of_texts = prepare(experiment)
        widths = [width_of(one, of_texts.config) for one in rows.selections]
        numbers = plan_capture(experiment, of_texts, machines.device)
        numbers["capture_memory"], _ = capture_memory(experiment, of_texts)
        n_networks, seconds = numbers["caches"], None
        if machines.throughput is None and machines.device == "cpu":
            seconds = n_networks * capture_seconds(experiment, of_texts)
        times["capture"] = capture_times(numbers, machines, seconds)
    probers = make_probers(experiment, rows, machines.device)
    try:
        check_device(machines.device)
        tasks = probing_seconds(probers, widths, n_networks, _LIMIT)
    except ConfigError:  # another machine has the device
        tasks = None
    memory = probing_bytes(probers, widths)
    is_iterated = bool({kind.kind for kind in probers[0].settings.kinds} & _ITERATED)
    n_passes = probers[0].n_splits * (_PASSES if is_iterated else _FEW_PASSES)
    sizes = len(probers) * n_networks * [4 * len(rows.example) * width for width in widths]
    n_read = sum(size * (n_passes if size > LOADED_BYTES else 1) for size in sizes)
    times["probing"] = probing_times(tasks, memory, n_read, machines)
    numbers |= {"memory": memory, "tasks": len(probers) * (1 + len(widths))}
    return numbers | _hours(**times)


def _hours(**times: dict[str, float]) -> dict[str, Any]:
    """Return the hours of each step, and what limits it; None if its computing time is unknown."""
    hours, bottleneck = dict[str, float | None](), dict[str, str | None]()
    for step, seconds in times.items():
        is_known = bool(seconds.keys() - {"reading", "writing"})
        longest = max(seconds, key=lambda name: seconds[name], default=None)
        hours[step] = seconds[longest] / 3600 if longest and is_known else None
        bottleneck[step] = longest if is_known else None
    return {"seconds": times, "hours": hours, "bottleneck": bottleneck}


def described_plan(numbers: Mapping[str, Any]) -> str:
    """Return the result of `plan_run` or `plan_model` as lines of text."""
    lines = {}
    if names := numbers.get("sites"):
        n_tokens, n_bytes = numbers["tokens"], numbers["bytes"]
        models = f", by {numbers['caches']} models" if numbers["caches"] > 1 else ""
        shards = counted(numbers["shards_of_a_site"], "shard")
        lines = {
            "tokens read": f"{n_tokens:,}{models}",
            "device": f"{numbers['device']}, {numbers['tokens_of_a_batch']:,} tokens a batch",
            "rows": f"{numbers['rows_of_a_site']:,} at {counted(len(names), 'site')}, as "
            f"{numbers['dtype']}",
            # The first and the last site, or the only one.
            "sites": " to ".join(dict.fromkeys([names[0], names[-1]])),
            "bytes": f"{size_in_words(n_bytes)}, {size_in_words(n_bytes / n_tokens)} a token",
            "files": f"{numbers['files']:,}, in {shards} of each site",
        }
    if "memory" in numbers:
        lines["memory"] = f"{size_in_words(numbers['memory'])} in each process that probes"
        if "capture_memory" in numbers:
            of_capture = size_in_words(numbers["capture_memory"])
            lines["memory"] += f", {of_capture} in each that captures"
    for step, times in numbers["seconds"].items():
        hours, limit = numbers["hours"][step], numbers["bottleneck"][step]
        others = [f"{name} {duration(times[name])}" for name in times if name != limit]
        if hours is None:
            unknown = "unknown" if step == "probing" else "unknown; give --throughput"
            lines[step] = "; ".join([*others, f"computing: {unknown}"])
        else:
            lines[step] = ", ".join([f"{duration(3600 * hours)}, limited by {limit}", *others])
    if "tasks" in numbers:
        lines["tasks"] = f"{numbers['tasks']} of probing, which workers share"
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())
