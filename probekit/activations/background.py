"""A background thread that runs queued function calls in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, Protocol

P = ParamSpec("P")

MAX_WAITING = 2  # queued calls; each holds the rows of a batch in memory


class Submit(Protocol):
    """Function that queues calls on the background thread."""

    def __call__(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue a call of `function`; wait while more than MAX_WAITING calls are unfinished."""


@contextmanager
def background_thread() -> Iterator[Submit]:
    """Yield a function that queues calls on one background thread, which runs them in order.

    An exception in a call is raised by the next `submit`, or at the end of the block. Calls queued
    after a failed one are not run. If the block itself fails, queued calls are dropped.

    >>> done = []
    >>> with background_thread() as submit:
    ...     for number in range(4):
    ...         submit(done.append, number)
    >>> done
    [0, 1, 2, 3]
    """
    waiting: deque[Future[None]] = deque()
    last: Future[None] | None = None

    def submit(function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal last
        previous = last

        def call() -> None:
            if previous is not None:
                previous.result()  # re-raises an exception of an earlier call
            function(*args, **kwargs)

        last = pool.submit(call)
        waiting.append(last)
        while len(waiting) > MAX_WAITING:
            waiting.popleft().result()

    pool = ThreadPoolExecutor(1, thread_name_prefix="probekit-background")
    try:
        yield submit
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
