"""The terminal: escaped output, the protocol of progress, and interrupts that nothing swallows.

Labels, tensor names, file names and error messages may come from untrusted files. A terminal
executes the escape sequences in them, and bidirectional controls reorder the displayed text. `main`
installs `VisibleStream` once, so that everything written to either stream is escaped by `visible`.
The library itself prints nothing: it reports progress and messages to a `Watcher`.
"""

import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, TextIO

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # interrupts by Ctrl-C and by `kill`
# C0 without tab and newline, DEL, C1, line separators, and all bidirectional controls.
_HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
# Code of a character -> its text in messages, and in JSON.
_SHOWN = {code: f"<U+{code:04X}>" for code in _HIDDEN}
_IN_JSON = {code: f"\\u{code:04x}" for code in _HIDDEN}


def visible(text: str) -> str:
    r"""Return the text with control characters written as `<U+001B>`; tabs and newlines stay.

    >>> visible("red \x1b[31m\u202e\tend\n")
    'red <U+001B>[31m<U+202E>\tend\n'
    """
    return text.translate(_SHOWN)


def json_text(value: Any) -> str:
    r"""Return a value as JSON, without control characters except newlines.

    >>> json_text("\x1b\x9b\u202e")
    '"\\u001b\\u009b\\u202e"'
    """
    # Outside strings, JSON has none of these characters.
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_IN_JSON)


class VisibleStream:
    """A text stream that writes control characters visibly.

    It hides the `buffer` of the underlying stream, because click would write to it if the encoding
    is ASCII.

    Args:
        stream: the underlying stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str | bytes) -> int:
        """Write `visible(text)` and return the length of `text`; bytes are UTF-8.

        click writes completions of a shell as bytes.
        """
        self.stream.write(visible(text if isinstance(text, str) else text.decode()))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


def escape_streams() -> None:
    """Wrap `sys.stdout` and `sys.stderr` in a VisibleStream, unless they are wrapped already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, VisibleStream):
            setattr(sys, name, VisibleStream(stream))


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream under a VisibleStream, for writers that escape the text themselves."""
    return stream.stream if isinstance(stream, VisibleStream) else stream


def command_line() -> str:
    """Return the command line of this process; "" if it is not a command of probekit."""
    script = Path(sys.argv[0])
    is_module = script.parts[-2:] == ("probekit", "__main__.py")
    if not is_module and script.stem != "probekit":
        return ""
    program = ["python", "-m", "probekit"] if is_module else [script.name]
    return shlex.join([*program, *sys.argv[1:]])


class Watcher(Protocol):
    """Receiver of progress and messages, implemented by the command line, a notebook or a test."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Report that `done` of `total` units of a step are complete."""

    def tell(self, message: str) -> None:
        """Report a message to the user."""


class SilentWatcher:
    """A watcher that discards everything."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Discard the progress."""

    def tell(self, message: str) -> None:
        """Discard the message."""


SILENT = SilentWatcher()


class Interruptible:
    """Context manager that re-raises an interrupt which code in its block has swallowed.

    Python raises an interrupt (Ctrl-C, SIGTERM) in whatever code is running at that moment. Some
    code swallows it, such as a destructor, a ctypes callback or a bare `except`, and the program
    continues as if uninterrupted.

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
            # Only a handler installed from Python is callable. SIG_IGN, SIG_DFL and None, which is
            # one that C code installed, stay in place.
            self._handlers = {n: old for n in SIGNALS if callable(old := signal.getsignal(n))}
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
        """Call the original handler of a signal; an exception of it is stored and raised."""
        try:
            self._handlers[signal.Signals(number)](number, frame)
        except BaseException as error:
            self._raised.append(error)
            raise
