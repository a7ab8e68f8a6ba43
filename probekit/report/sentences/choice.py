"""Sentences about the choice of site and kind: by one split, or by each outer fold."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from probekit.amounts import counted, joined_names
from probekit.results.metrics import metric_name
from probekit.results.selection import (
    choice_counts,
    chosen_row,
    fold_choices,
    headline_row,
    is_nested,
    site_with_head,
)
from probekit.results.table import differs, placed

MOST_SITES = 4  # named in a sentence
MOST_IN_ANSWER = 2  # named in the answer

NESTED_LINE = (
    "Fold choice: each outer fold predicts its test rows at the site{kind} that it chose by "
    "the validation scores of its own training rows. It is not the score of one site; to pick the "
    "highest point of the curve would be a selection on test rows."
)
# Caveat that follows a ranking of sites by validation scores of all outer folds.
POOLED_RANKING = (
    "The cross-validated scores of all outer folds were used, and every test row is a validation "
    "row of other folds: test scores at the best sites are therefore biased upwards."
)
SITE_OF_ALL_FOLDS = "The site was selected by validation scores that include these rows. "
REFITTED = "These probes were fitted on all rows, so that no row is left to test them."


def chosen_in_folds(counts: Counter[str]) -> str:
    """Return a clause with the sites that the outer folds chose and the number of folds of each.

    >>> chosen_in_folds(Counter(["block 2", "block 2"]))
    'block 2 chosen in both folds'
    >>> chosen_in_folds(Counter(["block 2", "block 1", "block 2"]))
    'the folds chose different sites (block 2 in 2 folds and block 1 in 1 fold)'
    >>> chosen_in_folds(Counter(["block 2", "block 1"]))
    'the folds chose different sites (block 2 and block 1)'
    >>> chosen_in_folds(Counter(["block 2", "block 1", "block 2", "block 0"]))
    'the folds chose 3 different sites, most often block 2 (2 of 4 folds)'
    >>> chosen_in_folds(Counter(["block 2", "block 1", "block 0"]))
    'the folds chose 3 different sites'
    """
    if len(counts) == 1:
        folds = "both" if counts.total() == 2 else f"all {counts.total()}"
        return f"{next(iter(counts))} chosen in {folds} folds"
    if len(counts) > MOST_IN_ANSWER:
        (site, n), (_, next_most), *_ = counts.most_common()
        often = f", most often {site} ({n} of {counts.total()} folds)" if n > next_most else ""
        return f"the folds chose {len(counts)} different sites{often}"
    return f"the folds chose different sites ({_folds_of(counts)})"


def _folds_of(counts: Counter[str]) -> str:
    """Return sites with their number of folds; numbers are omitted if no site was chosen twice."""
    ordered = counts.most_common()
    is_one_each = len(counts) == counts.total()
    named = [site if is_one_each else f"{site} in {counted(n, 'fold')}" for site, n in ordered]
    others = sum(n for _, n in ordered[MOST_SITES:])
    sites = "another site" if len(named) == MOST_SITES + 1 else "other sites"
    more = [f"{sites} in {counted(others, 'fold')}"] if others else []
    return joined_names(named[:MOST_SITES] + more)


def folds_of_sites(table: pd.DataFrame) -> str:
    """Return the sites that the outer folds chose, with the number of folds of each."""
    return _folds_of(Counter(choice_counts(table)))


def chosen_words(table: pd.DataFrame) -> str:
    """Return the chosen site, or how the outer folds chose; "–" without a choice."""
    chosen = chosen_row(table)
    if chosen is None:
        return "–"
    if not is_nested(table):
        return site_with_head(chosen["site"], chosen["head"])
    counts = choice_counts(table)
    n_folds = counted(sum(counts.values()), "fold")
    if len(counts) == 1:
        return f"{next(iter(counts))} in all {n_folds}"
    return f"different sites in {n_folds}: {folds_of_sites(table)}"


def nested_sentence(table: pd.DataFrame) -> str:
    """Return the first sentence of the summary of a nested run: the choices of its folds."""
    rows = fold_choices(table)
    what = joined_names(["site", *_also_chosen(table)])
    return (
        f"Nested choice: each of {len(rows)} outer folds chose its own {what} by cross-validated "
        f"{metric_name(rows[0]['metric'])} on its own training rows ({folds_of_sites(table)})."
    )


def nested_line(table: pd.DataFrame) -> str:
    """Return the explanation of the horizontal line of the nested choice; "" if it is not drawn."""
    if not is_nested(table) or headline_row(table) is None:
        return ""
    also = _also_chosen(table)
    return NESTED_LINE.format(kind="".join(f", {name}" for name in also))


def pooled_ranking(table: pd.DataFrame) -> str:
    """Return the caveat about ranking sites by the scores of all folds; "" for a single split."""
    return POOLED_RANKING if is_nested(table) else ""


def _also_chosen(table: pd.DataFrame) -> list[str]:
    """Return names of the other things that folds chose: kind of probe, position, both or none."""
    rows = placed(table)
    names = {"kind of probe": "probe", "position": "position"}
    return [name for name, column in names.items() if differs(rows[column])]
