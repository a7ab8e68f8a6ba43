"""Many jobs of one kind side by side, in processes that share the cores.

The first job runs here and tells how long the others will take: processes are started only if that
is worth their start, and the work goes on here meanwhile. Every job computes with as many threads,
wherever it runs, as the last bits of a number may depend on that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

import torch
from joblib import cpu_count, wrap_non_picklable_objects
from joblib.externals.loky import ProcessPoolExecutor
from threadpoolctl import threadpool_limits

from probekit.errors import ConfigError, DataError
from probekit.products import is_forked

Item = TypeVar("Item")
Result = TypeVar("Result")

_GUARD = "ends with the parent"
IDLE = 10.0  # seconds after which a process that has no work ends
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
        DataError: a process was ended from outside, as by the system when memory runs out.

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
    here = partial(_threaded, job, n_threads)
    start = time.perf_counter()
    first = here(items[0])
    alone = (time.perf_counter() - start) * (len(items) - 1)
    yield first
    if at_once == 1 or alone < 2 * START_UP:
        yield from map(here, items[1:])
    else:
        yield from _shared_out(here, items[1:], at_once - 1)


def _shared_out(
    job: Callable[[Item], Result], items: Sequence[Item], helpers: int
) -> Iterator[Result]:
    """Yield results in order; processes take items from the front, this one from the back."""
    executor = _processes(helpers)
    # As bytes of its own, so that what a script or a notebook defines can travel.
    travelling = wrap_non_picklable_objects(partial(_while_alive, os.getpid(), job))
    left, handed_out = deque(range(len(items))), dict[int, Future[Result]]()
    lock = threading.Lock()  # processes that end call from another thread

    def hand_out(before: Future[Result] | None = None) -> None:
        if before is not None and before.exception() is not None:
            return
        with lock:
            if not left:
                return
            number = left.popleft()
            with _deaf_to_ctrl_c():
                future = handed_out[number] = executor.submit(travelling, items[number])
        future.add_done_callback(hand_out)

    def taken() -> int | None:
        with lock:
            return left.pop() if left else None

    done: dict[int, Result] = {}
    try:
        for _ in range(helpers):
            hand_out()
        for number in range(len(items)):
            while number not in done and not (number in handed_out and handed_out[number].done()):
                last = taken()
                if last is None:
                    break
                done[last] = job(items[last])
            yield done.pop(number) if number in done else handed_out.pop(number).result()
    except BaseException as error:
        with lock:
            left.clear()
        # loky's own thread fails if it is told to end before it has passed a job on.
        while not all(future.running() or future.done() for future in handed_out.values()):
            time.sleep(0.01)
        executor.shutdown(kill_workers=True)
        _processes.cache_clear()
        if isinstance(error, BrokenProcessPool):
            raise DataError(
                "A worker process was ended from outside. If memory ran out, run fewer with "
                "--workers."
            ) from error
        raise


@cache
def _processes(number: int) -> ProcessPoolExecutor:
    """Return processes that wait for work, and end when none comes.

    loky's own reusable ones are joblib's too: its Parallel fails where it finds those of others.
    """
    return ProcessPoolExecutor(number, timeout=IDLE)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Let processes that are started meanwhile not hear Ctrl-C: this one answers it for all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _threaded(job: Callable[[Item], Result], n_threads: int, item: Item) -> Result:
    with threads(n_threads):
        return job(item)


def _while_alive(parent: int, job: Callable[[Item], Result], item: Item) -> Result:
    """Do a job in a process that ends with its parent, even if that one is killed."""
    exit_with_parent(parent)
    return job(item)


def exit_with_parent(parent: int) -> None:
    """Have this process end with its parent, even if that one is killed."""
    if not any(thread.name == _GUARD for thread in threading.enumerate()):
        threading.Thread(target=_end_with, args=[parent], name=_GUARD, daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let all libraries compute with so many threads meanwhile; in a fork with one."""
    number = 1 if is_forked() else number
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)
