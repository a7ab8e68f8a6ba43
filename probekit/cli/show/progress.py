"""Progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from probekit.progress import Console, ProgressLines, terminal_bars
from probekit.terminal import Watcher, escape_streams


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    with terminal_bars(Console(stderr=True)) as bars:
        escape_streams()  # the progress bars have replaced both streams
        yield bars
