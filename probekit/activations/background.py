"""Work that is done beside the computation: a thread that does one thing after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, Protocol

P = ParamSpec("P")

AHEAD = 2  # pieces of work that may wait; each holds the rows of a batch in memory


class Do(Protocol):
    """Has a function called in the thread, after all those before it."""

    def __call__(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Return at once, or as soon as no more than AHEAD calls are waiting."""


@contextmanager
def beside() -> Iterator[Do]:
    """Yield a function that has work done in a thread of its own, in the order given.

    What the work raises is raised where the next work is given, or at the end of the block. Nothing
    is done after work that failed. When the block itself fails, what waits is dropped.

    >>> done = []
    >>> with beside() as do:
    ...     for number in range(4):
    ...         do(done.append, number)
    >>> done
    [0, 1, 2, 3]
    """
    waiting: deque[Future[None]] = deque()
    last: Future[None] | None = None

    def do(function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal last
        before = last

        def work() -> None:
            if before is not None:
                before.result()  # raises again what an earlier one has raised
            function(*args, **kwargs)

        last = pool.submit(work)
        waiting.append(last)
        while len(waiting) > AHEAD:
            waiting.popleft().result()

    pool = ThreadPoolExecutor(1, thread_name_prefix="probekit-beside")
    try:
        yield do
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
