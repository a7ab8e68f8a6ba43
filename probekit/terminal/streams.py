"""Standard output and error with control characters escaped.

Labels, tensor names, file names and error messages may come from untrusted files. A terminal
executes the escape sequences in them, and bidirectional controls reorder the displayed text. `main`
installs `VisibleStream` once, so that everything written to either stream is escaped by `visible`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

# C0 without tab and newline, DEL, C1, line separators, and all bidirectional controls.
_HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
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

    def write(self, text: str) -> int:
        """Write `visible(text)` and return the length of `text`."""
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


def install() -> None:
    """Wrap `sys.stdout` and `sys.stderr` in a VisibleStream, unless they are wrapped already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, VisibleStream):
            setattr(sys, name, VisibleStream(stream))


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream under a VisibleStream, for writers that escape the text themselves."""
    return stream.stream if isinstance(stream, VisibleStream) else stream
