"""Selection of the test rows on which scores of task and control task are comparable.

A probe can score well on the control task only at control types (words at the probed position) that
occur in the training rows. On the task it can memorise a row only if the words that the label
depends on occur there, too. Selectivity therefore compares the scores on test rows that meet both
conditions. On other rows, one of the two tasks requires generalisation to new words and the other
does not.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.probes.data import ProbeData
from probekit.probes.settings import ProbeSettings
from probekit.probes.solve.solver import Codes
from probekit.probes.targets import NO_CONTROL_TASK

WORD = re.compile(r"\w+")
FEWEST_ROWS = 30
FEWEST_TYPES = 10  # random labels of fewer types are too easy to learn
FEWEST_GROUPS = 6  # with fewer there are no p-values

Mask = NDArray[np.bool_]


def control_types(data: ProbeData, settings: ProbeSettings) -> NDArray[np.str_]:
    """Return the control type (n_rows,) of each row: its word type or its group.

    All rows of a control type get the same control label.
    """
    return data.types if settings.control_by == "word" else data.groups


def comparable_rows(data: ProbeData, settings: ProbeSettings, fitted: Codes) -> Mask:
    """Return a mask (n_test,) of test rows with a control type and task words seen in training.

    The task word is the labelled word of a row; without one, all words of its text are task words.
    If the data have neither, only the control type counts.

    Args:
        data: the rows and their split.
        settings: whether the control type is a word or a group.
        fitted: the row numbers (n_fitted,) of the rows that probes are fitted on.
    """
    types = control_types(data, settings)
    seen: Mask = np.isin(types[data.test], types[fitted])
    if data.words is not None:
        return seen & np.isin(data.words[data.test], data.words[fitted])
    if data.texts is not None:
        return seen & _has_known_words(data.texts[data.test], data.texts[fitted])
    return seen


def _has_known_words(texts: NDArray[np.object_], known_texts: NDArray[np.object_]) -> Mask:
    """Return which texts (n_test,) consist of words of other texts (n_fitted,); case is ignored."""
    known = set().union(*map(_words, set(known_texts)))
    is_known = {text: _words(text) <= known for text in set(texts)}
    return np.array([is_known[text] for text in texts], dtype=bool)


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


def why_not_comparable(n_rows: int, n_groups: int, n_test: int, control_by: str) -> str:
    """Return why there is no control; "" if there are enough comparable test rows.

    >>> print(why_not_comparable(n_rows=90, n_groups=2, n_test=90, control_by="word"))
    No control task: the 90 test rows are in 2 groups; at least 30 rows in 6 groups are needed.

    >>> print(why_not_comparable(n_rows=3, n_groups=2, n_test=90, control_by="word"))
    No control task: test words are new. A probe can learn random labels only of words that occur \
in the training rows. That is the case in 3 of 90 test rows, in 2 groups; at least 30 rows in 6 \
groups are needed.
    """
    if n_rows >= FEWEST_ROWS and n_groups >= FEWEST_GROUPS:
        return ""
    groups = counted(n_groups, "group")
    needed = f"at least {FEWEST_ROWS} rows in {FEWEST_GROUPS} groups are needed."
    if n_rows == n_test:
        return f"{NO_CONTROL_TASK}the {n_rows:,} test rows are in {groups}; {needed}"
    return (
        f"{NO_CONTROL_TASK}test {control_by}s are new. A probe can learn random labels only of "
        f"{control_by}s that occur in the training rows. That is the case in {n_rows:,} of "
        f"{n_test:,} test rows, in {groups}; {needed}"
    )
