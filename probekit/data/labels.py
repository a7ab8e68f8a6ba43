"""Checks of labels, groups and sources: spellings, likely typos, and numbers read inexactly.

The functions at the end compare texts by their appearance, and find boundaries inside words.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from probekit.amounts import counted, joined_names
from probekit.data.examples import Dataset, Finding, rows_of, warning
from probekit.data.positions import IntArray

_MAX_TYPO_RATIO = 0.25  # rows of a misspelt label per row of the correct one
_MAX_LABELS = 200  # with more, labels are words: case matters, and many differ by one letter
_MAX_SETS = 10  # sets of similar labels that are listed
_SHOWN_CHARACTERS = 2

# Names that look like missing values, in lower case.
_MISSING = {"nan", "none", "null", "na", "n/a", "<na>", "nat"}
_NAMES = "Write their {}s, or a different name for each row that is related to no other."
_CLASS = "Remove these rows or, if it is a class, rename it."
_REMEDIES = {"label": _CLASS, "group": _NAMES, "source": _NAMES}

Field: TypeAlias = Literal["label", "group", "source", "text"]
# What names that look the same count as.
_COUNT_AS: Mapping[Field, str] = {
    "label": "classes",
    "group": "groups, so that related rows may be in both train and test",
    "source": "sources, so that probes are tested on a source that they were fitted on",
    "text": "texts, also for split.drop_repeated, so that a memorised one may be in train and test",
}

# Two characters of one symbol: by a joiner, a skin tone, letters of Hangul; letters of a flag.
_JOINS = re.compile(r"\S[\u200d\U0001f3fb-\U0001f3ff]|\u200d\S|[\u1100-\ud7a3][\u1160-\u11ff]")
_FLAGS = re.compile("[\U0001f1e6-\U0001f1ff]+$")
_DECIMAL = re.compile(r"\s*[-+]?[0-9]+(?:\.[0-9]*)?\s*")
_INTEGER = re.compile(r"\s*[-+]?\d+(?:\.0*)?\s*")

_MIN_LENGTH = 4  # short tags such as ADJ and ADV legitimately differ by one letter
_MIN_UPPER_LENGTH = 6  # the same for labels in capitals, mostly tags such as PRON and PROPN

# Compatibility characters whose shape differs from that of their plain form, such as ² and 2.
_OTHER_SHAPES = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")

# Letters with the shape of a Latin letter: beginning of their Unicode names, and the rest of each
# name with that letter.
_SAME_SHAPES = {
    "CYRILLIC CAPITAL LETTER": "A:A VE:B IE:E DZE:S BYELORUSSIAN-UKRAINIAN_I:I JE:J KA:K EM:M "
    "EN:H O:O ER:P ES:C TE:T U:Y HA:X",
    "CYRILLIC SMALL LETTER": "A:a IE:e DZE:s BYELORUSSIAN-UKRAINIAN_I:i JE:j O:o ER:p ES:c U:y "
    "HA:x SHHA:h",
    "GREEK CAPITAL LETTER": "ALPHA:A BETA:B EPSILON:E ZETA:Z ETA:H IOTA:I KAPPA:K MU:M NU:N "
    "OMICRON:O RHO:P TAU:T UPSILON:Y CHI:X",
    "GREEK SMALL LETTER": "OMICRON:o",
}
_LATIN = {
    ord(unicodedata.lookup(f"{start} {name.replace('_', ' ')}")): latin
    for start, pairs in _SAME_SHAPES.items()
    for name, _, latin in (pair.partition(":") for pair in pairs.split())
}

_INVISIBLE = frozenset({0x034F, *range(0xFE00, 0xFE10)})  # joiner and variation selectors
_LAST_FORMAT = 0xFFFF  # later format characters are tags, which distinguish flags


def similar(field: Field, dataset: Dataset, column: str | None = None) -> Iterator[Finding]:
    r"""Yield a warning on labels, groups, sources or texts that look the same and are not equal.

    They differ only in case, spaces or encoding, or are spellings of one number, such as 1 and 01.
    Above `_MAX_LABELS` labels, those that differ only in case or spaces are not reported, nor are
    texts of one group. `_MAX_SETS` sets are named, and the number of the others.

    Args:
        field: what is compared.
        dataset: the examples.
        column: the column of the sources of `split.leave_out`; None for no sources.

    >>> from probekit.data.examples import RowExamples
    >>> labels = np.array(["past", "past", "p\u0430st"], dtype=object)
    >>> dataset = Dataset("tiny", RowExamples(np.arange(3), labels))
    >>> print(next(similar("label", dataset)).message)  # doctest: +ELLIPSIS
    The labels 'past' (2 rows) and 'pаst' (1 row: row 2, with U+0430 CYRILLIC SMALL LETTER A) ...
    """
    rows = _rows_by(field, dataset, column)
    fold, spellings = appearance if field == "text" else folded, defaultdict[str, list[str]](list)
    for name in rows:
        spellings[fold(name)].append(name)
    case_matters = field == "label" and len(rows) > _MAX_LABELS
    messages, groups = [], dataset.groups
    for alike in (names for names in spellings.values() if len(names) > 1):
        in_groups = set(groups[np.concatenate([rows[name] for name in alike])])
        is_related = field == "text" and len(in_groups) == 1
        if not (is_related or (case_matters and _differ_in_case(alike))):
            messages.append(_in_words(alike, rows, dataset))
    if messages:
        n_more = len(messages) - _MAX_SETS
        more = f"; so do {counted(n_more, 'more set')}" if n_more > 0 else ""
        yield warning(
            f"similar-{field}s",
            f"The {field}s {'; '.join(messages[:_MAX_SETS])}{more}. They count as different "
            f"{_COUNT_AS[field]}. Write those that mean the same alike, and rename the others.",
        )


def check_names(field: Field, dataset: Dataset, column: str | None = None) -> Iterator[Finding]:
    """Yield the warnings of `similar` and `missing_names`, which have the same arguments."""
    yield from similar(field, dataset, column)
    yield from missing_names(field, dataset, column)


def _rows_by(field: Field, dataset: Dataset, column: str | None) -> dict[str, IntArray]:
    """Return the indices of the examples with each name; arguments as in `similar`."""
    values = (dict(one.values).get(column or "", "") for one in dataset.examples)
    names = np.array([*values], object) if field == "source" else dataset.column(field)
    codes, names = pd.factorize(names)
    by_name = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    return dict(zip(names, by_name, strict=True))


def missing_names(field: Field, dataset: Dataset, column: str | None = None) -> Iterator[Finding]:
    """Yield a warning for each name of several rows that looks like a missing value.

    Arguments as in `similar`.

    >>> from probekit.data.examples import RowExamples
    >>> labels, groups = (np.array(n.split(), dtype=object) for n in ("x y x", "a nan nan"))
    >>> dataset = Dataset("tiny", RowExamples(np.arange(3), labels, groups))
    >>> print(next(missing_names("group", dataset)).message)  # doctest: +ELLIPSIS
    2 rows have the group 'nan' (row 1, row 2), which looks like a missing value: they count as ...
    """
    for name, indices in _rows_by(field, dataset, column).items():
        if name.strip().casefold() in _MISSING and len(indices) > 1:
            rows = dataset.select(indices).examples
            yield warning(
                f"missing-{field}s",
                f"{len(rows):,} rows have the {field} {name!r} ({rows_of(rows)}), which looks like "
                f"a missing value: they count as one {field}. {_REMEDIES[field].format(field)}",
            )


def _number(name: str) -> str:
    """Return a form that is equal for all spellings of a decimal number; "" for other names.

    Numbers with an exponent, or without a digit before the point, count as other names.

    >>> _number("01") == _number(" 1.0") == _number("1"), _number("1a"), _number("1.5")
    (True, '', '1.5')
    >>> _number("-0.0") == _number("0"), _number("-0.5"), _number("1e3"), _number(".5")
    (True, '-0.5', '', '')
    """
    if _DECIMAL.fullmatch(name) is None:
        return ""
    whole, _, decimals = name.strip().lstrip("+").partition(".")
    digits, decimals = whole.lstrip("-").lstrip("0") or "0", decimals.rstrip("0")
    plain = f"{digits}.{decimals}" if decimals else digits
    return f"-{plain}" if whole.startswith("-") and plain != "0" else plain


def _differ_in_case(names: Sequence[str]) -> bool:
    """Return whether the names differ in nothing but case or surrounding spaces."""
    return len({name.strip().casefold() for name in names}) == 1


def _in_words(names: Sequence[str], rows: dict[str, IntArray], dataset: Dataset) -> str:
    """Return similar names with their rows, the most frequent one first, and what they share."""
    ordered = sorted(names, key=lambda name: (-len(rows[name]), name))
    everywhere = set(ordered[0]).intersection(*ordered[1:])  # characters that all names contain
    shown = []
    for name in ordered:
        of_name = dataset.select(rows[name]).examples
        about = "" if name == ordered[0] else f": {rows_of(of_name)}"
        own = [one for one in dict.fromkeys(name) if not one.isascii() and one not in everywhere]
        if own:
            more = ["others"] if len(own) > _SHOWN_CHARACTERS else []
            named = [*map(character_name, own[:_SHOWN_CHARACTERS]), *more]
            about += f", with {joined_names(named)}"
        shown.append(f"{name!r:.60} ({counted(len(rows[name]), 'row')}{about})")
    how = "differ only in case or spaces" if _differ_in_case(names) else "look the same"
    if _number(ordered[0]) and len({appearance(name) for name in names}) > 1:
        how = "are the same number"
    return f"{joined_names(shown)} {how}"


def misspelt_labels(dataset: Dataset) -> Iterator[Finding]:
    """Yield a warning for each rare label that is probably a typo of a frequent one.

    Yields nothing if there are more than `_MAX_LABELS` labels: they are words then.
    """
    rows = _rows_by("label", dataset, None)
    by_size = sorted(rows, key=lambda label: len(rows[label]), reverse=True)
    if len(rows) > _MAX_LABELS:
        return
    for label in rows:
        n = len(rows[label])
        frequent = (other for other in by_size if n <= _MAX_TYPO_RATIO * len(rows[other]))
        near = next((other for other in frequent if is_typo(label, other)), None)
        if near is not None:
            yield warning(
                "misspelt-labels",
                f"The label {label!r} ({counted(n, 'row')}: "
                f"{rows_of(dataset.select(rows[label]).examples)}) is one letter "
                f"away from {near!r} ({counted(len(rows[near]), 'row')}), and counts as a separate "
                "class. If it is a typo, correct these rows.",
            )


def rounded_numbers(dataset: Dataset) -> Iterator[Finding]:
    """Yield a warning if integer labels are changed by the conversion to float64.

    >>> from probekit.data.examples import RowExamples
    >>> examples = RowExamples(np.arange(1), np.array(["9007199254740993"], dtype=object))
    >>> print(next(rounded_numbers(Dataset("tiny", examples))).message)  # doctest: +ELLIPSIS
    1 row has an integer beyond 2^53 that float64 cannot represent (row 0): the label ...
    """

    # `Decimal` is used because `int` raises ValueError for thousands of digits.
    def is_rounded(label: str) -> bool:
        return bool(_INTEGER.fullmatch(label)) and Decimal(label) != Decimal(float(label))

    rounded = dataset.select(np.flatnonzero([*map(is_rounded, dataset.labels)])).examples
    if rounded:
        label = rounded[0].label
        yield warning(
            "rounded-numbers",
            f"{counted(len(rounded), 'row')} {'has' if len(rounded) == 1 else 'have'} an integer "
            f"beyond 2^53 that float64 cannot represent ({rows_of(rounded)}): the label {label!r} "
            f"is read as {float(label):.0f}. Subtract a constant from all labels or write them in "
            "a larger unit; if they are identifiers, they are not numbers to predict.",
        )


def other_digits(dataset: Dataset) -> Iterator[Finding]:
    r"""Yield a warning if labels, which must be numbers, have digits other than 0 to 9.

    >>> from probekit.data.examples import RowExamples
    >>> examples = RowExamples(np.arange(1), np.array(["\u0663"], dtype=object))
    >>> print(next(other_digits(Dataset("tiny", examples))).message)  # doctest: +ELLIPSIS
    1 row has a number with digits other than 0 to 9 (row 0): the label '٣', with U+0663 ...
    """
    has_others = [any(map(_is_other_digit, label)) for label in dataset.labels]
    found = dataset.select(np.flatnonzero(has_others)).examples
    if found:
        label = found[0].label
        digit = next(filter(_is_other_digit, label))
        yield warning(
            "other-digits",
            f"{counted(len(found), 'row')} {'has' if len(found) == 1 else 'have'} a number with "
            f"digits other than 0 to 9 ({rows_of(found)}): the label {label!r}, with "
            f"{character_name(digit)}, is read as {float(label):g}. Check these labels, and write "
            "them with the digits 0 to 9.",
        )


def _is_other_digit(character: str) -> bool:
    """Return whether a character is a decimal digit other than 0 to 9."""
    return character.isdecimal() and not character.isascii()


def folded(name: str) -> str:
    r"""Return a form that is equal for names that look the same, or are the same number.

    Names are labels, groups, sources and words; texts and names of files, in which 1.10 is not 1.1,
    are compared by `appearance`.

    >>> folded("1.0") == folded("01 "), folded(" Yes\u200b"), folded("1.5") == folded("15")
    (True, 'yes', False)
    """
    return _number(name) or appearance(name)


@lru_cache(maxsize=1024)  # adjacent rows often have one text
def appearance(label: str) -> str:
    r"""Return a form that is equal for texts that differ only in case, spaces or encoding.

    The form is NFC, case-folded, with single spaces between words and without invisible characters.
    Compatibility characters such as full-width letters (but not those of another shape, such as ²),
    Cyrillic and Greek letters with the shape of a Latin one, and digits of other alphabets are
    replaced by plain ones.

    >>> appearance("Cafe\u0301 ") == appearance("caf\xe9"), appearance("p\u0430st\u200b")
    (True, 'past')
    >>> appearance("10\xb2") == appearance("102")
    False
    """
    if label.isascii():
        return " ".join(label.casefold().split())
    plain = "".join(map(_plain, unicodedata.normalize("NFC", label))).casefold()
    return " ".join(unicodedata.normalize("NFC", plain).split())


@cache  # there are about 150,000 characters
def _plain(character: str) -> str:
    """Return a character in the shape of its Latin or compatible form, "" if it is invisible."""
    code = ord(character)
    if code in _INVISIBLE or (code <= _LAST_FORMAT and unicodedata.category(character) == "Cf"):
        return ""
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.decomposition(character).startswith(_OTHER_SHAPES):
        return character
    return unicodedata.normalize("NFKC", character).translate(_LATIN)


def character_name(character: str) -> str:
    r"""Return the code point of a character and, if it has one, its name.

    >>> character_name("\u200b")
    'U+200B ZERO WIDTH SPACE'
    """
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip()


def is_typo(label: str, other: str) -> bool:
    """Return whether two labels differ by one typo after the first letter.

    A typo is a letter dropped, added or replaced, or two adjacent letters swapped. A changed
    digit is not a typo, and labels of fewer than four characters, or of fewer than six if both are
    in capitals, count as different tags.

    >>> is_typo("pats", "past"), is_typo("plurale", "plural"), is_typo("nsubj", "csubj")
    (True, True, False)
    """
    shortest = _MIN_UPPER_LENGTH if label.isupper() and other.isupper() else _MIN_LENGTH
    if min(len(label), len(other)) < shortest or label[0] != other[0]:
        return False
    start = _n_common(label, other)
    end = _n_common(label[start:][::-1], other[start:][::-1])
    part, other_part = label[start : len(label) - end], other[start : len(other) - end]
    if any(map(str.isdecimal, part + other_part)):
        return False
    return max(len(part), len(other_part)) == 1 or (len(part) == 2 and part == other_part[::-1])


def _n_common(a: str, b: str) -> int:
    """Return the length of the common prefix of two strings."""
    n_shorter = min(len(a), len(b))
    return next((place for place in range(n_shorter) if a[place] != b[place]), n_shorter)


def is_inside_word(text: str, at: int) -> bool:
    r"""Return whether a boundary is between two characters of a word, or a letter and its accent.

    Letters without case do not count, because Chinese and Japanese do not separate words by spaces.

    >>> [is_inside_word("The keys", at) for at in (0, 3, 4, 6, 8)]
    [False, False, False, True, False]
    >>> is_inside_word("cafe\u0301", 4)
    True
    """
    pair = text[at - 1 : at + 1] if at > 0 else ""
    if len(pair) < 2:
        return False
    flags = _FLAGS.search(text, 0, at)
    if _JOINS.fullmatch(pair) or (flags and len(flags[0]) % 2 and _FLAGS.fullmatch(pair[1])):
        return True
    before, after = map(unicodedata.category, pair)
    if after[0] == "M":  # an accent or another mark, which follows a letter, a mark or a number
        return before[0] in "LMN"
    # Both must be digits, letters with a case or marks.
    return all(c.isdecimal() or c.lower() != c.upper() or unicodedata.combining(c) for c in pair)
