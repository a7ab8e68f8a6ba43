"""Texts as pages show them: visible tokens, headings, short paths, and colours of tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from probekit.chosen.registry import ANALYSES
from probekit.results.network import RowPrediction, TextReading
from probekit.results.record import RunRecord

GLYPHS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# Zero-width joiners are kept: replacing them would change how emoji and Indic letters render.
JOINERS = "\u200c\u200d"
LONGEST_TEXT = 9  # characters of a token that fit into a cell
LONGEST_LABEL = 40  # characters
LONGEST_HEADING = 100  # characters of a text

# Of negative and positive values, as in the maps: two classes, and bars of contributions.
# Distinguishable for colour-blind readers, and legible when mixed with a black or white background.
LOW, HIGH = "#8073AC", "#B35806"
NUMBER = "#009E73"
# Source: the qualitative scheme "Safe" of CARTOColors, made for colour-blind readers.
_SAFE = "#88CCEE #CC6677 #DDCC77 #117733 #332288 #AA4499 #44AA99 #999933 #882255 #661100 #888888"
HUES = tuple(_SAFE.split())
# Opacity of the strongest colour on the background.
DENSEST = 0.55
# Quantile of the scores at the end of the colour scale; larger scores are clipped.
TYPICAL = 0.95


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


def short_label(token: str) -> str:
    """Return a token in visible characters, truncated to fit into a cell.

    >>> short_label(" the"), short_label(" incomprehensible")
    ('␣the', '␣incompr…')
    """
    label = token_label(token)
    return label if len(label) <= LONGEST_TEXT else f"{label[: LONGEST_TEXT - 1]}…"


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


def short_heading(text: str, *, keeps_end: bool = False) -> str:
    """Return a text of at most `LONGEST_HEADING` characters; a long text is cut at one end.

    Args:
        text: The text.
        keeps_end: Whether the end of a long text is kept instead of its beginning.

    >>> short = short_heading("a" * 100 + "b", keeps_end=True)
    >>> len(short), short[0], short[-2:]
    (100, '…', 'ab')
    """
    if len(text) <= LONGEST_HEADING:
        return text
    n = LONGEST_HEADING - 1
    return f"…{text[-n:]}" if keeps_end else f"{text[:n]}…"


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
    is_outside = path.is_absolute() or local.startswith(("~", ".."))
    return path.name if is_outside else ""


@dataclass(frozen=True)
class Paint:
    """Colour of a token: a hue as #rrggbb, and its strength from 0 to 1."""

    hue: str
    strength: float

    @property
    def on_white(self) -> str:
        """The colour over white, light enough for black ink.

        >>> Paint("#000000", 1.0).on_white, Paint("#000000", 0.0).on_white
        ('#737373', '#ffffff')
        """
        return "#" + "".join(
            f"{round(255 + (part - 255) * DENSEST * self.strength):02x}"
            for part in bytes.fromhex(self.hue[1:])
        )


@dataclass(frozen=True)
class Palette:
    """Mapping from the predictions of one probe to colours.

    Two classes use a scale that diverges at score 0; more classes have one hue each; regression
    uses one hue whose strength increases with the value.

    Attributes:
        classes: class names of the probe; empty for regression.
        low: score of the weakest colour for regression; 0 for classification.
        high: score of the strongest colour.
    """

    classes: tuple[str, ...]
    low: float
    high: float

    @classmethod
    def of(cls, readings: Iterable[TextReading], classes: Sequence[str]) -> Palette:
        """Return the palette of these texts, from their scores.

        For classes, the scale ends at a high quantile of the absolute scores. Without classes,
        which is a regression, it reaches from a low to a high quantile of the scores.

        The first token of a text is ignored unless it is the only one: GPT-2 uses position 0 as an
        attention sink with a large norm, and its score would make all other tokens pale.

        >>> answers = tuple(RowPrediction("b", score) for score in (90.0, 3.0, -1.0))
        >>> Palette.of([TextReading("", (), (), answers)], ("a", "b")).high
        3.0
        """
        scores = []
        for reading in readings:
            answers = reading.answers[1:] or reading.answers
            scores += [answer.score for answer in answers]
        if classes:
            # 1 if the quantile is 0, so that scores can be divided by it.
            high = _quantile(list(map(abs, scores)), TYPICAL) or 1.0
            return cls(tuple(classes), low=0.0, high=high)
        return cls((), low=_quantile(scores, 1 - TYPICAL), high=_quantile(scores, TYPICAL))

    def paint(self, answer: RowPrediction) -> Paint:
        """Return the colour of a prediction.

        >>> Palette(("a", "b"), 0.0, 4.0).paint(RowPrediction("a", -2.0))
        Paint(hue='#8073AC', strength=0.5)
        """
        if answer.label is None:  # a predicted number; the weakest colour if all scores are equal
            span = self.high - self.low
            return Paint(NUMBER, _clipped((answer.score - self.low) / span if span else 0.0))
        if len(self.classes) == 2:
            hue = HIGH if answer.score > 0 else LOW
            return Paint(hue, _clipped(abs(answer.score) / self.high))
        return Paint(self.hue(answer.label), 1.0)

    def hue(self, label: str) -> str:
        """Return the hue of a class; hues repeat after eleven classes."""
        if len(self.classes) == 2:
            return (LOW, HIGH)[self.classes.index(label)]
        return HUES[self.classes.index(label) % len(HUES)]


def _quantile(scores: Sequence[float], share: float) -> float:
    """Return the quantile `share` of the scores, without interpolation; 0 without scores."""
    ordered = sorted(scores)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _clipped(strength: float) -> float:
    return min(max(strength, 0.0), 1.0)


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
