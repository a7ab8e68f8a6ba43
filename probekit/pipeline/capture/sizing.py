"""Estimated cost of a capture: bytes, hours and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probekit.activations.shared.work import check_storable
from probekit.activations.sizing import CaptureSize, Volume, size_of
from probekit.errors import ConfigError
from probekit.experiment.schema import Experiment
from probekit.model.sites import expand
from probekit.model.weights.sources import find_config
from probekit.pipeline.experiment.models import targets
from probekit.pipeline.experiment.prepare import prepare

_MEGA, _TERA, _HOUR = 10**6, 10**12, 3600
_BYTES_OF_A_WEIGHT = 4  # in the files of the hub


@dataclass(frozen=True)
class Speed:
    """Speed of one worker, measured or derived from its processor's peak speed.

    Attributes:
        tokens_per_second: measured throughput.
        tflops: peak speed of the processor in 10^12 operations per second.
        utilisation: fraction of the peak speed that a forward pass achieves.

    >>> Speed(tflops=100, utilisation=0.5).seconds(tokens=7, operations=10**15)
    20.0
    """

    tokens_per_second: float | None = None
    tflops: float | None = None
    utilisation: float = 0.4

    def seconds(self, tokens: int, operations: int) -> float | None:
        """Return the time that one worker takes; None if the speed is unknown."""
        if self.tokens_per_second is not None:
            return tokens / self.tokens_per_second
        if self.tflops is not None:
            return operations / (self.tflops * _TERA * self.utilisation)
        return None


@dataclass(frozen=True)
class CapturePlan:
    """Estimated cost of a capture.

    Attributes:
        size: size of each cache.
        caches: number of caches, one for each model of the experiment.
        workers: number of workers.
        speed: speed of each worker.
        bandwidth: write bandwidth of the cache in megabytes per second, for all workers together;
            None if unknown.
    """

    size: CaptureSize
    caches: int
    workers: int = 1
    speed: Speed = Speed()
    bandwidth: float | None = None

    @property
    def numbers(self) -> dict[str, Any]:
        """Sizes and times by name, with the unit in the name; None for unknown values.

        Writing overlaps with computing, so the slower of the two determines the total time.
        `megabytes_per_second` is the resulting rate of writing. Without a bandwidth it is the rate
        that the cache must reach, so that writing does not slow down the workers.
        """
        size, volume = self.size, self.size.volume
        n_bytes = self.caches * (size.row_bytes + size.index_bytes)
        n_workers = min(self.workers, size.shards)
        single = self.speed.seconds(volume.tokens, size.operations)
        computing = None if single is None else self.caches * single / n_workers
        writing = None if self.bandwidth is None else n_bytes / (self.bandwidth * _MEGA)
        seconds = None if computing is None else max(computing, writing or 0.0)
        rate = n_bytes / seconds / _MEGA if seconds else None  # 0 s for the embedding alone
        return {
            "caches": self.caches,
            "tokens": volume.tokens,
            "sites": list(size.sites),
            "dtype": size.dtype,
            "rows_of_a_site": volume.rows,
            "shards_of_a_site": size.shards,
            "bytes": n_bytes,
            "bytes_of_rows": self.caches * size.row_bytes,
            "bytes_of_a_token": n_bytes / volume.tokens,
            "bytes_of_the_largest_file": size.largest,
            "files": self.caches * size.files,
            "operations": self.caches * size.operations,
            "workers": n_workers,
            "bytes_of_weights_read": n_workers * self.caches * size.weights * _BYTES_OF_A_WEIGHT,
            "worker_hours_of_computing": _hours(computing, n_workers),
            "hours_of_computing": _hours(computing),
            "hours_of_writing": _hours(writing),
            "hours": _hours(seconds),
            "megabytes_per_second": rate,
            "megabytes_per_second_of_a_worker": None if rate is None else rate / n_workers,
        }


def _hours(seconds: float | None, times: int = 1) -> float | None:
    return None if seconds is None else seconds * times / _HOUR


def plan_experiment(experiment: Experiment, device: str = "cpu") -> CapturePlan:
    """Return the estimated cost of an experiment's capture; read the data, but not the weights.

    Set workers, speed and bandwidth with `dataclasses.replace`.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    prepared = prepare(experiment)
    volume = Volume.of(prepared.ids, prepared.plan, device)
    size = size_of(prepared.config, volume, prepared.sites, experiment.capture.dtype)
    return CapturePlan(size, len(targets(experiment)))


def plan_tokens(
    model: str,
    tokens: int,
    *,
    length: int | None = None,
    position: str = "all",
    sites: Sequence[str],
    dtype: str = "float16",
    device: str = "cuda",
) -> CapturePlan:
    """Return the estimated cost of capturing a number of tokens in sequences of equal length.

    Set workers, speed and bandwidth with `dataclasses.replace`.

    Args:
        model: name or folder of the model.
        tokens: total number of tokens.
        length: tokens per sequence; None for the full context.
        position: `all` for one row per token, `last` for one row per sequence.
        sites: names or globs.
        dtype: data type on disk, `float32` or `float16`.
        device: type of the compute devices.

    Raises:
        MissingError: the configuration of the model does not exist.
        ConfigError: a site does not exist, or the length exceeds the context.
    """
    config = find_config(model)
    names = expand(list(sites), config.n_layer)
    check_storable(names)
    each = config.n_positions if length is None else length
    if each > config.n_positions:
        raise ConfigError(
            f"--length {each} exceeds the context of {model}, {config.n_positions} tokens. Give a "
            "smaller --length."
        )
    volume = Volume.uniform(tokens, each, each if position == "all" else 1, device)
    return CapturePlan(size_of(config, volume, names, dtype), 1)
