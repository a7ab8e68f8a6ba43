"""Many jobs of one kind side by side, in processes that share the cores.

The first job runs here and tells how long the others will take: processes are started only if that
is worth the wait for them. Every job computes with as many threads, wherever it runs, as the last
bits of a number may depend on that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from joblib import Parallel, cpu_count, delayed, wrap_non_picklable_objects
from threadpoolctl import threadpool_limits

from probekit.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

_GUARD = "ends with the parent"
START_UP = 4.0  # seconds until a new process has imported what a job needs


def side_by_side(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int | None = None,
    n_threads: int | None = None,
) -> Iterator[Result]:
    """Yield the result of each job, in the order of the items.

    Args:
        job: gets an item; both must be picklable, and so must be the result.
        items: what there is to do.
        workers: how many jobs run at once, None for one a core.
        n_threads: how many threads each of them has, None for its share of the cores.

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
    if n_threads is None:
        n_threads = max(1, cores // at_once)
    start = time.perf_counter()
    first = _threaded(job, items[0], n_threads)
    saved = (time.perf_counter() - start) * (len(items) - 1) * (1 - 1 / at_once)
    yield first
    if at_once > 1 and saved > START_UP:
        run = Parallel(n_jobs=at_once, return_as="generator")
        # As bytes of their own: joblib's way with arrays wants to know the file of a mapped one.
        alone = wrap_non_picklable_objects(partial(_while_alive, os.getpid(), job))
        yield from run(delayed(_threaded)(alone, item, n_threads) for item in items[1:])
    else:
        for item in items[1:]:
            yield _threaded(job, item, n_threads)


def _threaded(job: Callable[[Item], Result], item: Item, n_threads: int) -> Result:
    with threads(n_threads):
        return job(item)


def _while_alive(parent: int, job: Callable[[Item], Result], item: Item) -> Result:
    """Do a job in a process that ends with its parent, even if that one is killed."""
    if not any(thread.name == _GUARD for thread in threading.enumerate()):
        threading.Thread(target=_end_with, args=[parent], name=_GUARD, daemon=True).start()
    return job(item)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


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
