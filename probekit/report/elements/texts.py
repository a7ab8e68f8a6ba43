"""Texts as pages show them: visible tokens, headings, short paths, and colours of tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from probekit.chosen.registry import ANALYSES
from probekit.results.record import RunRecord

GLYPHS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# Zero-width joiners are kept: replacing them would change how emoji and Indic letters render.
JOINERS = "\u200c\u200d"
LONGEST_LABEL = 40  # characters


def token_label(token: str) -> str:
    r"""Return a token with `GLYPHS`, and other invisible characters but `JOINERS` as code points.

    >>> token_label(" the"), token_label("\n\t"), token_label("\u202e")
    ('␣the', '⏎⇥', '<U+202E>')
    """
    return "".join(GLYPHS.get(character, _visible(character)) for character in token)


def quote(token: str) -> str:
    """Return a token in visible characters and quotation marks.

    >>> quote(" the")
    '“␣the”'
    """
    return f"“{token_label(token)}”"


def line_label(text: str) -> str:
    r"""Return a text as one line: spaces are kept, other characters are as in `token_label`.

    This also makes control sequences harmless in a terminal.

    >>> line_label("two\nlines \x1b[2J")
    'two⏎lines <U+001B>[2J'
    """
    return "".join(letter if letter == " " else token_label(letter) for letter in text)


def class_label(label: str) -> str:
    r"""Return a class label for a figure or table: as one line of limited length.

    >>> class_label("plural"), class_label("a\u202eb")
    ('plural', 'a<U+202E>b')
    >>> class_label("x" * 200 + "end")
    'xxxxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxend'
    """
    text = line_label(label)
    if len(text) <= LONGEST_LABEL:
        return text
    # One character is the …; two fifths of the others are kept of the end.
    end = (LONGEST_LABEL - 1) * 2 // 5
    return f"{text[: LONGEST_LABEL - 1 - end]}…{text[-end:]}"


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    return f"<U+{ord(character):04X}>" if hidden and character not in JOINERS else character


def capitalised(text: str) -> str:
    """Return a text with a capital first letter; the other letters are unchanged.

    >>> capitalised("macro F1"), capitalised("")
    ('Macro F1', '')
    """
    return text[:1].upper() + text[1:]


def model_title(source: str) -> str:
    """Return the name of a model; of a path outside the working folder only the last part.

    >>> model_title("org/name@main"), model_title("/data/models/mine/"), model_title("runs/mine")
    ('org/name@main', 'mine', 'runs/mine')
    """
    return _last_part(source) or source


@dataclass(frozen=True)
class MachinePaths:
    """Absolute paths of the machine that ran an experiment.

    Attributes:
        paths: the paths, longest first.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, *settings: Any) -> MachinePaths:
        """Return the absolute paths among texts and the leaves of nested mappings and lists."""
        # Texts that begin with ".." are outside of the working folder, but not absolute.
        paths = {text for text in _texts(settings) if _last_part(text) and text[:2] != ".."}
        paths |= {path.rstrip("/\\") for path in paths}  # messages name folders without a slash
        return cls(tuple(sorted(paths, key=lambda path: (-len(path), path))))

    @classmethod
    def of_run(cls, config: Mapping[str, Any], model: str) -> MachinePaths:
        """Return the paths in the settings that a page shows, and in the name of the model."""
        sections = ("model", "activations", "data", *(one.key for one in ANALYSES))
        return cls.of(*map(config.get, sections), model)

    def hide(self, text: str) -> str:
        """Return a text in which only the last part of each of the paths is left.

        >>> MachinePaths(("/mnt/ann/data",)).hide("root: /mnt/ann/data")
        'root: …/data'
        """
        for path in self.paths:
            # YAML may break a long path at a space.
            pattern = r"\s+".join(map(re.escape, path.split(" ")))
            shown = f"…/{_last_part(path)}".replace("\\", r"\\")  # escaped for re.sub
            text = re.sub(rf"(?<![\w/.]){pattern}(?![\w-])", shown, text)
        return text

    def hide_in(self, record: RunRecord) -> RunRecord:
        """Return the record of a run with the paths shortened in the texts that the page shows."""
        findings = [replace(one, message=self.hide(one.message)) for one in record.data.findings]
        notes = [self.hide(note) for note in record.data.notes]
        data = record.data.model_copy(update={"findings": findings, "notes": notes})
        model = record.model.model_copy(update={"source": self.hide(record.model.source)})
        return record.model_copy(update={"data": data, "model": model})


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _last_part(text: str) -> str:
    """Return the last part of a path outside the working folder; "" for other texts."""
    local = text.removeprefix("file://")
    path = PureWindowsPath(local) if re.match(r"[A-Za-z]:[\\/]", local) else PurePosixPath(local)
    return path.name if path.is_absolute() or local.startswith(("~", "..")) else ""


def pieces(
    text: str, span: tuple[int, int] | None, probed: tuple[int, int] | None = None
) -> list[tuple[str, str]]:
    """Return the pieces of a text with their class in the style sheet: `span`, `probed` or both.

    >>> pieces("the old dog", (4, 7), (7, 11))
    [('the ', ''), ('old', 'span'), (' ', ''), ('dog', 'probed')]
    """
    if probed is not None:  # a token may begin with a space
        start = probed[1] - len(text[slice(*probed)].lstrip())
        probed = (start, probed[1])
    named = [(name, ends) for name, ends in (("span", span), ("probed", probed)) if ends]
    cuts = sorted({0, len(text), *(end for _, ends in named for end in ends)})
    return [
        (text[a:b], " ".join(name for name, (start, end) in named if start <= a and b <= end))
        for a, b in pairwise(cuts)
    ]
