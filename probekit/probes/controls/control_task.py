"""Control tasks (Hewitt and Liang 2019): random labels, and the test rows they are scored on.

A probe can score well on the control task only at control types (words at the probed position) that
occur in the training rows. On the task it can memorise a row only if the words that the label
depends on occur there, too. Selectivity therefore compares the scores on test rows that meet both
conditions. On other rows, one of the two tasks requires generalisation to new words and the other
does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import ConfigError
from probekit.probes.arrays import Codes, Mask
from probekit.probes.data import ProbeData, names_of
from probekit.probes.settings import ProbeSettings
from probekit.probes.targets import NO_CONTROL_TASK

HASH_BYTES = 8
# Additional draws that replace those in which all types get the same label.
SPARE_DRAWS = 100
WORD_OF_TEXT = re.compile(r"\w+")
FEWEST_ROWS = 30  # test rows that the control task can be scored on; with fewer there is none
FEWEST_TYPES = 10  # random labels of fewer types are too easy to learn
FEWEST_GROUPS = 6  # with fewer there are no p-values


def draw_controls(
    data: ProbeData, settings: ProbeSettings, fitted: Codes
) -> list[NDArray[np.str_]]:
    """Return the control labels (n_rows,) of each draw.

    Raises:
        ConfigError: Too few draws assign different labels.
    """
    types = control_types(data, settings)
    wanted = settings.control_draws
    n_types = len(np.unique(types[fitted]))
    labels = data.y[data.train]
    drawn = (control_labels(types, labels, settings.seed, n) for n in range(wanted + SPARE_DRAWS))
    # With few types, a draw can give all of them the same label; such draws are skipped.
    usable = (one for one in drawn if len(np.unique(one[fitted])) > 1)
    controls = list(islice(usable, wanted))
    if len(controls) < wanted:
        raise ConfigError(
            f"control_draws is {wanted}, but with {n_types} different {settings.control_by}s too "
            "few draws give different labels. Set `control_draws` to 0."
        )
    return controls


def control_labels(
    types: NDArray[np.str_], train_labels: NDArray[np.str_], seed: int, draw: int
) -> NDArray[np.str_]:
    """Return control labels (n_samples,): one random label per control type.

    Labels are drawn with the frequencies of `train_labels`, from a hash of (seed, draw, type), so
    that they do not depend on the order of the rows or on the other types.

    >>> words = np.array(["bank", "river", "bank"])
    >>> labels = control_labels(words, np.array(["noun", "verb"]), seed=0, draw=0)
    >>> bool(labels[0] == labels[2])
    True

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    labels, counts = np.unique(train_labels, return_counts=True)
    edges = np.cumsum(counts) / counts.sum()
    names, type_of_row = np.unique(types, return_inverse=True)
    uniform = np.array([_uniform(seed, draw, str(name)) for name in names])
    return labels[np.searchsorted(edges, uniform, side="right")][type_of_row]


def _uniform(seed: int, draw: int, name: str) -> float:
    """Return a pseudo-random number in [0, 1) that is a function of the arguments."""
    digest = hashlib.blake2b(f"{seed}\0{draw}\0{name}".encode(), digest_size=HASH_BYTES).digest()
    # A float64 holds 53 bits exactly; all 64 could round up to 1.
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def control_types(data: ProbeData, settings: ProbeSettings) -> NDArray[np.str_]:
    """Return the control type (n_rows,) of each row: its word type or its group.

    All rows of a control type get the same control label.
    """
    if settings.control_by == "word":
        return data.types
    return np.array(names_of(data.groups, data.group_names))  # labels are drawn by name


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
        texts, known_texts = data.texts[data.test], set(data.texts[fitted])
        # The words of each text; case is ignored.
        words = {text: set(WORD_OF_TEXT.findall(text.lower())) for text in {*texts, *known_texts}}
        known = set().union(*(words[text] for text in known_texts))
        all_known = np.array([words[text] <= known for text in texts], dtype=bool)
        seen &= all_known
    return seen


def why_no_control(
    data: ProbeData, settings: ProbeSettings, fitted: Sequence[Codes], test: Codes, comparable: Mask
) -> str:
    """Return why there can be no control task; "" if there can.

    Args:
        data: the rows.
        settings: whether the control type is a word or a group.
        fitted: the row numbers (n_fitted,) of the fitted rows of each split.
        test: the row numbers (n_test,) of the test rows of all splits.
        comparable: a mask (n_test,) of the test rows that the control task is scored on.
    """
    by, types = settings.control_by, control_types(data, settings)
    n_types = min(len(np.unique(types[rows])) for rows in fitted)
    if n_types < FEWEST_TYPES:
        return (
            f"{NO_CONTROL_TASK}only {counted(n_types, f'different probed {by}')}; random labels "
            f"of fewer than {FEWEST_TYPES} {by}s in the training rows are too easy to learn."
        )
    n_rows, n_groups = int(comparable.sum()), len(np.unique(data.groups[test[comparable]]))
    if n_rows >= FEWEST_ROWS and n_groups >= FEWEST_GROUPS:
        return ""
    groups = counted(n_groups, "group")
    needed = f"at least {FEWEST_ROWS} rows in {FEWEST_GROUPS} groups are needed."
    if n_rows == len(test):
        return f"{NO_CONTROL_TASK}the {n_rows:,} test rows are in {groups}; {needed}"
    return (
        f"{NO_CONTROL_TASK}too few test rows have a probed {by}, and words that the task depends "
        f"on, that all occur in the training rows: {n_rows:,} of {len(test):,}, in {groups}; "
        f"{needed}"
    )
