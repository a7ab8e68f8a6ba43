"""Findings about given activations: repeated rows, constant features, missing controls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from probekit.activations.given.given import GivenArrays
from probekit.amounts import counted
from probekit.data.examples import Dataset
from probekit.data.findings import Finding
from probekit.data.splits import Split

Keys = npt.NDArray[np.uint64]  # equal rows have equal keys

NO_GROUPS = Finding(
    "warning",
    "no-groups",
    "No groups are given, so each row is its own group. Related rows, such as tokens of one text, "
    "may be in both train and test, and confidence intervals are then too narrow. Give `groups`: "
    "the same name for related rows; if rows are unrelated, a different one for each.",
)
_LEFT_OUT = (
    "The activations were given, so networks with random weights and baselines that read the texts "
    "are left out"
)
_MOST_SITES = 3  # listed in a message


def left_out(*, has_tokens: bool) -> Finding:
    """Return the finding that lists the controls and baselines that a run cannot have."""
    needs_tokens = ", and so are the control task and the word-identity baseline, which need "
    more = "" if has_tokens else f"{needs_tokens}`tokens`"
    return Finding("warning", "left-out", f"{_LEFT_OUT}{more}.")


def repeated_rows(keys: Keys, splits: Sequence[Split]) -> list[Finding]:
    """Return warnings of rows whose activations are those of another row at all sites."""
    found = []
    n_across = sum(int(np.isin(keys[s.test], keys[s.train]).sum()) for s in splits)
    n_test = sum(len(split.test) for split in splits)
    if n_across:
        message = (
            f"{n_across:,} of {n_test:,} test rows have the same activations at all sites as a "
            "training row, so that memorised rows raise the score. Remove repeated rows, or put "
            "them in one group."
        )
        found.append(Finding("warning", "duplicates-across", message))
    sides = [("test", [split.test for split in splits])]
    if len(splits) == 1:  # otherwise each training row is a test row of another fold
        sides.insert(0, ("train", [splits[0].train]))
    for side, parts in sides:
        n_rows = sum(map(len, parts))
        n_repeated = n_rows - sum(len(np.unique(keys[rows])) for rows in parts)
        if n_repeated:
            of_fold = " of the same fold" * (len(splits) > 1)
            message = (
                f"{n_repeated:,} of {n_rows:,} rows in {side} have the same activations at all "
                f"sites as an earlier one{of_fold}."
            )
            found.append(Finding("warning", f"duplicates-in-{side}", message))
    return found


def contradictions(keys: Keys, dataset: Dataset) -> list[Finding]:
    """Return a warning if rows with the same activations at all sites have different labels."""
    _, number = np.unique(keys, return_inverse=True)
    _, code = np.unique(dataset.labels.astype(str), return_inverse=True)
    several = np.flatnonzero(np.bincount(np.unique(np.stack([number, code]), axis=1)[0]) > 1)
    if not len(several):
        return []
    first = np.flatnonzero(np.isin(number, several))[0]
    second = np.flatnonzero((number == number[first]) & (code != code[first]))[0]
    a, b = dataset.examples[first], dataset.examples[second]
    message = (
        f"{counted(len(several), 'set')} of rows with the same activations at all sites and "
        f"different labels, such as {a.where} ({a.label}) and {b.where} ({b.label})."
    )
    return [Finding("warning", "contradictions", message)]


def constant_features(given: GivenArrays) -> list[Finding]:
    """Return a warning of sites with features that are the same in all rows."""
    constant = {site: one for site, one in given.contents.items() if one.n_constant}
    if not constant:
        return []
    listed = [f"{one.n_constant:,} of {one.n_features:,} at {s}" for s, one in constant.items()]
    n_more = len(listed) - _MOST_SITES
    more = f", and some at {counted(n_more, 'more site')}" if n_more > 0 else ""
    is_all = any(one.n_constant == one.n_features for one in constant.values())
    advice = " From a site without any difference between rows, nothing can be decoded." * is_all
    message = (
        f"Features that are the same in all rows: {', '.join(listed[:_MOST_SITES])}{more}.{advice}"
    )
    return [Finding("warning", "constant-features", message)]
