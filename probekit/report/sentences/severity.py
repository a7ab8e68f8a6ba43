"""Kinds of warnings in the order in which pages and terminal show them, most serious first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Names of a row: code of a finding of the data checks, target of a rival, or kind of a warning
# about scores. To add a warning, add its name at the place of its severity.
KINDS = (
    # The score itself may be wrong.
    "missing-from-train",
    "crossing-groups",
    "duplicates-across",
    "other-choice",
    "no-groups",
    "similar-groups",
    "missing-groups",
    "contradictions",
    "similar-labels",
    "misspelt-labels",
    "rounded-numbers",
    "other-digits",
    "spans-inside-words",
    "nul-characters",
    "lost",
    "truncated",
    "unconverged",
    # The score may be right, but have another reason.
    "achieved-fpr",
    "majority",
    "random_weights",
    "nowhere-better",
    "word_identity",
    "n_grams",
    "bag_of_words",
    "neighbouring_words",
    "length",
    "embedding",
    "control",
    "length-leads",
    # The score may be imprecise.
    "few-exchanges",
    "few-groups",
    "few-groups-of-label",
    "missing-from-test",
    "rare-labels",
    "duplicates-in-train",
    "duplicates-in-test",
    "imbalance",
    "edge-of-grid",
    "edge-of-baseline",
    "constant-features",
    "left-out",
)
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}


class Caveat(NamedTuple):
    """A warning of a run: its kind, one of `KINDS`, its text, and whether it is an error."""

    kind: str
    message: str
    is_error: bool = False


def most_serious_first(caveats: Iterable[Caveat]) -> list[str]:
    """Return the texts of warnings in the order of `KINDS`, errors first, without repetitions.

    Kinds that this release does not contain, such as those of a newer one, follow the errors.

    >>> most_serious_first([Caveat("few-groups", "12 groups."), Caveat("lost", "9 rows lost.")])
    ['9 rows lost.', '12 groups.']
    """
    ordered = sorted(caveats, key=lambda one: (not one.is_error, _RANK.get(one.kind, -1)))
    return list(dict.fromkeys(one.message for one in ordered))
