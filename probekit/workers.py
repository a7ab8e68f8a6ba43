"""Many jobs of one kind side by side, in processes that share the cores.

The first job runs here and tells how long the others will take: processes are started only if that
is worth the wait for them. Every job computes with as many threads, wherever it runs, so that
its numbers do not depend on where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from joblib import Parallel, cpu_count, delayed
from threadpoolctl import threadpool_limits

from probekit.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

START_UP = 4.0  # seconds until a new process has imported what a job needs


def side_by_side(
    job: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None
) -> Iterator[Result]:
    """Yield the result of each job, in the order of the items.

    Args:
        job: gets an item; both must be picklable, and so must be the result.
        items: what there is to do.
        workers: how many jobs run at once, None for one a core.

    Raises:
        ConfigError: there are less than 1 workers.

    >>> list(side_by_side(abs, [-3, 1, -2]))
    [3, 1, 2]
    """
    cores = cpu_count()
    wanted = cores if workers is None else workers
    if wanted < 1:
        raise ConfigError(f"workers is {wanted}: give 1 or more, or none for one a core.")
    if not items:
        return
    at_once = min(wanted, len(items))
    n_threads = max(1, cores // at_once)
    start = time.perf_counter()
    with threads(n_threads):
        yield job(items[0])
    saved = (time.perf_counter() - start) * (len(items) - 1) * (1 - 1 / at_once)
    if saved > START_UP:
        run = Parallel(n_jobs=at_once, return_as="generator")
        yield from run(delayed(_threaded)(job, item, n_threads) for item in items[1:])
    else:
        for item in items[1:]:
            yield _threaded(job, item, n_threads)


def _threaded(job: Callable[[Item], Result], item: Item, n_threads: int) -> Result:
    with threads(n_threads):
        return job(item)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let all libraries compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)
