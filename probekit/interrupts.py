"""Interrupts (Ctrl-C, SIGTERM) that reach the caller even if a library catches them.

Python raises an interrupt in whatever code is running at that moment. Some code swallows it: a
destructor, a ctypes callback, a bare `except`. The program then continues as if uninterrupted.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptible:
    """Context manager that re-raises an interrupt which code in its block has swallowed.

    Signal handlers run in the main thread only; in other threads the block has no effect. Code in
    the block may handle Ctrl-C itself, but must then raise SystemExit; otherwise the interrupt is
    raised again.

    >>> def careless():
    ...     try:
    ...         signal.raise_signal(signal.SIGINT)
    ...     except KeyboardInterrupt:
    ...         pass
    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> try:
    ...     with Interruptible():
    ...         careless()
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    interrupted
    >>> _ = signal.signal(signal.SIGINT, before)
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._raised: list[BaseException] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            # SIG_IGN, SIG_DFL and handlers written in C raise no Python exception.
            self._handlers = {n: handler for n, handler in handlers.items() if callable(handler)}
            for number in self._handlers:
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        # SystemExit and KeyboardInterrupt already end the program.
        if self._raised and (error is None or isinstance(error, Exception)):
            raise self._raised[0] from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[signal.Signals(number)](number, frame)
        except BaseException as error:
            self._raised.append(error)
            raise
