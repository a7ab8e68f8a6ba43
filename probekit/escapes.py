"""Control characters of untrusted texts, written visibly."""

from __future__ import annotations

# C0 without tab and newline, DEL, C1, line separators, and all bidirectional controls.
HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_SHOWN = {code: f"<U+{code:04X}>" for code in HIDDEN}


def visible(text: str) -> str:
    r"""Return the text with control characters written as `<U+001B>`; tabs and newlines stay.

    >>> visible("red \x1b[31m\u202e\tend\n")
    'red <U+001B>[31m<U+202E>\tend\n'
    """
    return text.translate(_SHOWN)
