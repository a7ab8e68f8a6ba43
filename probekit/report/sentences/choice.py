"""Sentences about the choice of site and kind: by one split, or by each outer fold."""

from __future__ import annotations

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

NESTED_LINE = (
    "Nested choice: each outer fold predicts its test rows at the site{kind} that it chose by the "
    "validation scores of its own training rows. It is not the score of one site; to pick the "
    "highest point of the curve would be a selection on test rows."
)
OLD_FOLDS = (
    "An older version of probekit wrote this run. It chose one site for all outer folds by "
    "validation scores of rows that are also test rows, so its test score is biased upwards. Run "
    "the experiment again, so that each fold chooses its own site."
)
# Caveat that follows a ranking of sites by validation scores of all outer folds.
POOLED_RANKING = (
    "The cross-validated scores of all outer folds were used, and every test row is a validation "
    "row of other folds: test scores at the best sites are therefore biased upwards."
)
SITE_OF_ALL_FOLDS = "The site was selected by validation scores that include these rows. "
REFITTED = "These probes were fitted on all rows, so that no row is left to test them."


def folds_of_sites(table: pd.DataFrame) -> str:
    """Return the sites that the outer folds chose, with the number of folds of each."""
    counts = choice_counts(table)
    named = [f"{site} in {counted(n, 'fold')}" for site, n in counts.items()]
    others = sum(list(counts.values())[MOST_SITES:])
    more = [f"other sites in {counted(others, 'fold')}"] if others else []
    return joined_names(named[:MOST_SITES] + more)


def chosen_words(table: pd.DataFrame) -> str:
    """Return the chosen site, or the sites that the outer folds chose; "–" without a choice."""
    chosen = chosen_row(table)
    if chosen is None:
        return "–"
    return (
        folds_of_sites(table)
        if is_nested(table)
        else site_with_head(chosen["site"], chosen["head"])
    )


def nested_sentence(table: pd.DataFrame) -> str:
    """Return how the outer folds chose, as the first sentence of the summary of a run."""
    rows = fold_choices(table)
    what = joined_names(["site", *_also_chosen(table)])
    return (
        f"Nested choice: each of {len(rows)} outer folds chose its own {what} by cross-validated "
        f"{metric_name(rows[0]['metric'])} on its own training rows ({folds_of_sites(table)})."
    )


def nested_line(table: pd.DataFrame) -> str:
    """Return the explanation of the line of the nested choice; "" if it is not drawn."""
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
