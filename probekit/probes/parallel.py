"""Run independent fits on all cores, with progress, and stop soon when interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from threadpoolctl import threadpool_limits

T = TypeVar("T")
OnFit = Callable[[int, int], None]


class Stopped(BaseException):
    """Ends a worker whose results nobody waits for any more; never leaves `run_all`."""


class Progress:
    """Counts fits from many threads, reports them as `on_fit(done, total)`, and can call a halt."""

    def __init__(self, total: int, on_fit: OnFit | None = None) -> None:
        self.total = total
        self.done = 0
        self._on_fit = on_fit
        self._lock = threading.Lock()
        self._halted = threading.Event()

    def step(self) -> None:
        """Count one finished fit; raise `Stopped` after a halt."""
        if self._halted.is_set():
            raise Stopped
        with self._lock:
            self.done += 1
            if self._on_fit is not None:
                self._on_fit(self.done, self.total)

    def halt(self) -> None:
        """Make the next `step` of every worker raise `Stopped`."""
        self._halted.set()


def run_all(jobs: Iterable[Callable[[], T]], progress: Progress) -> list[T]:
    """Return what the jobs return, in their order; a failure stops the others and is raised.

    >>> run_all([lambda: 1, lambda: 2], Progress(total=0))
    [1, 2]
    """
    # One BLAS thread a worker: on problems of this size the workers use the cores better.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()  # raises what failed
            return [future.result() for future in futures]
        except BaseException:
            progress.halt()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
