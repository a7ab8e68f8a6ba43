"""Selection of the rows of a results table for each figure, so that figures stay readable."""

from __future__ import annotations

import re

import pandas as pd

from probekit.amounts import counted
from probekit.probes.targets import HEADLINE
from probekit.results.scores import Scores
from probekit.results.table import SERIES, differs, only

MOST_POSITIONS = 9  # of a sweep, each in a panel of the curve
MOST_NEURONS = 4  # neurons drawn as lines of a curve; the table of sites lists all
_POSITIONS = {
    "first": "first token",
    "last": "last token",
    "mean": "mean of all tokens",
    "reply": "mean of the reply",
    "reply_last": "last token of the reply",
    "share:0": "last token before the reply",
    "share:1": "last token of the reply",
}
# Position in or next to a span, with its offset in tokens if it has one.
OFFSET = r"(?:span|word:[a-z]+)(?P<offset>[+-]\d+)?(?:-massive)?(?:\+first)?"


SHARE = r"share:(?P<share>[\d.]+)(?:\+first)?"  # position at a share of the reply


def position_share(positions: pd.Series[str]) -> pd.Series[float]:
    """Return the share of the reply at each position; NaN for other positions.

    >>> position_share(pd.Series(["share:0.5", "reply"])).tolist()
    [0.5, nan]
    """
    return positions.str.extract(f"^{SHARE}$")["share"].astype(float)


def position_offset(positions: pd.Series[str]) -> pd.Series[float]:
    """Return the offset in tokens of each position from its span; NaN if it has no span.

    >>> positions = pd.Series(["word:last-1", "span+2+first", "word:first", "index:-3"])
    >>> position_offset(positions).tolist()
    [-1.0, 2.0, 0.0, nan]
    """
    found = positions.str.extract(f"^({OFFSET})$")
    return found["offset"].fillna("0").astype(float).where(found[0].notna())


def position_words(position: str) -> str:
    """Return a position in words; unchanged if there are no words for it.

    >>> position_words("word:last-1"), position_words("span+2"), position_words("word:last")
    ('1 token before the word', '2 tokens after the span', 'last token of the word')
    >>> position_words("mean"), position_words("index:-3"), position_words("word:all")
    ('mean of all tokens', 'index:-3', 'word:all')
    >>> position_words("share:0.5")
    '50 % of the reply'
    """
    share = re.fullmatch(SHARE, position)
    if share is not None and position not in _POSITIONS:
        return f"{100 * float(share['share']):g} % of the reply"
    found = re.fullmatch(r"(span|word):?([a-z]*)([+-]\d+)?", position)
    if found is None:
        return _POSITIONS.get(position, position)
    unit, pieces, offset = found.groups()
    if offset:
        n_tokens = counted(abs(int(offset)), "token")
        return f"{n_tokens} {'before' if offset[0] == '-' else 'after'} the {unit}"
    words = {"first": "first token", "last": "last token", "mean": "mean", "": "mean"}
    return f"{words[pieces]} of the {unit}" if pieces in words else position


def curve_rows(scores: Scores) -> Scores:
    """Return the rows that a layer curve shows.

    Components with several heads, and more than `MOST_NEURONS` neurons, are left out. All positions
    of a sweep are included if there are at most `MOST_POSITIONS` and series differ in nothing else,
    else only that of `shown_position`. If a kind of probe has many sizes, such as k_sparse, only
    the size with the best cross-validated score is included. Baselines are included.
    """
    shown = scores.where(~scores.rows["probe"].isin(scores.hidden_kinds))
    sited = shown.sited
    is_left_out = of_heads(sited)
    is_neuron = sited["site"].str.contains("[neuron=", regex=False)
    if sited.loc[is_neuron & ~is_left_out, "line"].nunique() > MOST_NEURONS:
        is_left_out |= is_neuron
    shown = shown.where(~shown.rows.index.isin(sited.index[is_left_out]))
    sited = only(sited[~is_left_out], target="task")
    others = [column for column in SERIES if column != "position"]
    is_sweep_alone = len(sited[others].drop_duplicates()) == 1
    if is_sweep_alone and sited["position"].nunique() <= MOST_POSITIONS:
        return shown
    return at_shown_position(shown)


def curve_position(scores: Scores) -> str | None:
    """Return the position of a sweep to which `curve_rows` are restricted; None if they are not."""
    return None if differs(curve_rows(scores).sited["position"]) else shown_position(scores)


def at_shown_position(scores: Scores) -> Scores:
    """Return the rows at the position that figures show of a sweep; all rows without a sweep.

    The nested choice is always included: its folds may have chosen different positions.
    """
    position, rows = shown_position(scores), scores.rows
    if position is None:
        return scores
    return scores.where(rows["position"].eq(position) | rows["target"].eq(HEADLINE))


def of_heads(sited: pd.DataFrame) -> pd.Series[bool]:
    """Return for each row whether several heads of its component were probed."""
    return sited.groupby("part")["head"].transform("nunique") > 1


def shown_position(scores: Scores) -> str | None:
    """Return the position shown by figures that draw only one; None without a sweep.

    A sweep has several positions, each with an offset from a span, or each at a share of the
    reply. Shown is offset 0 if it was probed, else the position of the selected site, else that of
    the first row.
    """
    sited = pd.concat([scores.sited, scores.concatenated])
    offsets, shares = position_offset(sited["position"]), position_share(sited["position"])
    is_sweep = offsets.notna().all() or shares.notna().all()
    if not (is_sweep and differs(sited["position"])):
        return None
    at_span = sited[offsets.eq(0)]
    if not at_span.empty:
        return str(at_span["position"].iloc[0])
    return str((sited.iloc[0] if scores.chosen is None else scores.chosen)["position"])
