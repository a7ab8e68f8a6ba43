"""Progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from probekit.terminal import streams
from probekit.terminal.console import Console
from probekit.terminal.progress import ProgressLines, terminal_bars
from probekit.watcher import Watcher


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    with terminal_bars(Console(stderr=True)) as bars:
        streams.install()  # the progress bars have replaced both streams
        yield bars
