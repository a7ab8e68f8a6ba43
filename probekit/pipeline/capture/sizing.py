"""What a capture will cost, of an experiment or of so many tokens: sizes, hours, network."""

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
    """How fast one worker computes: as measured, or as its processor promises.

    Attributes:
        tokens_per_second: of one worker.
        tflops: 10^12 operations per second that its processor can do.
        utilisation: the share of them that a forward pass comes to.

    >>> Speed(tflops=100, utilisation=0.5).seconds(tokens=7, operations=10**15)
    20.0
    """

    tokens_per_second: float | None = None
    tflops: float | None = None
    utilisation: float = 0.4

    def seconds(self, tokens: int, operations: int) -> float | None:
        """Return how long one worker takes; None if nothing is known of it."""
        if self.tokens_per_second is not None:
            return tokens / self.tokens_per_second
        if self.tflops is not None:
            return operations / (self.tflops * _TERA * self.utilisation)
        return None


@dataclass(frozen=True)
class CapturePlan:
    """What a capture will cost.

    Attributes:
        size: of each cache.
        caches: how many are made: one for each model of the experiment.
        workers: how many there are to be.
        speed: of each of them.
        bandwidth: megabytes per second that the place of the cache takes from all of them
            together; None if that is not known.
    """

    size: CaptureSize
    caches: int
    workers: int = 1
    speed: Speed = Speed()
    bandwidth: float | None = None

    @property
    def numbers(self) -> dict[str, Any]:
        """What is printed: names with their units, None for what cannot be known.

        Rows are written while the next ones are computed: the slower of the two says how long all
        takes. Without a bandwidth, the megabytes per second are what the network must take so that
        nobody waits for it.
        """
        size, volume = self.size, self.size.volume
        n_bytes = self.caches * (size.row_bytes + size.index_bytes)
        at_once = min(self.workers, size.shards)
        alone = self.speed.seconds(volume.tokens, size.operations)
        computing = None if alone is None else self.caches * alone / at_once
        writing = None if self.bandwidth is None else n_bytes / (self.bandwidth * _MEGA)
        seconds = None if computing is None else max(computing, writing or 0.0)
        rate = n_bytes / seconds / _MEGA if seconds else None  # an embedding is no work
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
            "workers": at_once,
            "bytes_of_weights_read": at_once * self.caches * size.weights * _BYTES_OF_A_WEIGHT,
            "worker_hours_of_computing": _hours(computing, at_once),
            "hours_of_computing": _hours(computing),
            "hours_of_writing": _hours(writing),
            "hours": _hours(seconds),
            "megabytes_per_second": rate,
            "megabytes_per_second_of_a_worker": None if rate is None else rate / at_once,
        }


def _hours(seconds: float | None, times: int = 1) -> float | None:
    return None if seconds is None else seconds * times / _HOUR


def plan_experiment(experiment: Experiment, device: str = "cpu") -> CapturePlan:
    """Return what the capture of an experiment will cost; its data are read, its model is not.

    Workers, speed and bandwidth are left to `dataclasses.replace`.

    Raises:
        ProbekitError: one of its subclasses, whose message says what was wrong and where.
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
    """Return what a capture of so many tokens in sequences of one length will cost.

    Workers, speed and bandwidth are left to `dataclasses.replace`.

    Args:
        model: whose sizes count; a name or a folder.
        tokens: in all.
        length: of each sequence, None for the whole context.
        position: `all` for a row of each token, `last` for one of each sequence.
        sites: names or globs.
        dtype: `float32` or `float16`, the numbers on disk.
        device: class of the devices that compute.

    Raises:
        MissingError: the sizes of the model are not known here.
        ConfigError: a site does not exist, or the length exceeds the context.
    """
    config = find_config(model)
    names = expand(list(sites), config.n_layer)
    check_storable(names)
    each = config.n_positions if length is None else length
    if each > config.n_positions:
        raise ConfigError(
            f"{model} reads at most {config.n_positions} tokens at once, not {each}: give a "
            "shorter --length."
        )
    volume = Volume.uniform(tokens, each, each if position == "all" else 1, device)
    return CapturePlan(size_of(config, volume, names, dtype), 1)
