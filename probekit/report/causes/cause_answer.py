"""The answer of a run's interventions in one sentence: the verdicts and the strongest patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import counted
from probekit.report.causes.cause_maps import position_label
from probekit.report.causes.curves import STREAM, most_of, strongest
from probekit.report.causes.directions import (
    QUESTIONS,
    USES,
    Direction,
    blocks_of,
    directions_in,
    where,
)
from probekit.report.causes.edits import (
    RECOVERY,
    EditSet,
    edit_sets,
    interval_in_words,
    n_in_words,
    place_in_words,
    value_in_words,
)
from probekit.report.causes.figure_parts import NOUNS, first_measure
from probekit.report.figures.style import fixed
from probekit.report.sentences.score_words import p_words
from probekit.report.texts import capitalised
from probekit.results.causes.tables import CauseTables

NOTHING = "no intervention has a defined effect"
OF_EFFECT = "of the counterfactual's effect"
NAMES = {
    "probe": "the probe's direction",
    "mean_difference": "the mean difference",
    "leace": "the LEACE direction",
}
MOST_STEPS = 3  # tokens in a sentence
LITTLE = 0.1  # share of the network's answer, below which a use is small


def cause_answer(tables: CauseTables) -> str:
    """Return the answer as one sentence: the use of the directions, and the effect of patches."""
    directions = directions_in(tables)
    if directions:
        best = leading(directions)
        clauses = [_verdict(directions, best, tables), _patch_there(best, tables)]
    else:
        clauses = list(_strongest_edits(tables)) or [NOTHING]
    size = n_in_words(tables.record)
    return f"{capitalised('; '.join(filter(None, clauses)))}; {size}."


def leading(directions: Sequence[Direction]) -> Direction:
    """Return the direction that the answer names: the one that is used and has the largest effect.

    If none is used, it is the one that detects the label best.
    """
    used = [one for one in directions if one.is_used]
    if used:
        return max(used, key=lambda one: (sum(map(one.is_certain, USES)), one.size))
    return max(directions, key=_detection)


def _detection(one: Direction) -> float:
    effect = one.found["detects"]["effect"] if "detects" in one.found else np.nan
    return -np.inf if np.isnan(effect) else float(effect)


def _verdict(directions: Sequence[Direction], best: Direction, tables: CauseTables) -> str:
    place = where(tables, best.row["at"])
    n = sum(one.answer("detects") == "yes" for one in directions)
    if best.is_used:
        used = "used" if best.size >= LITTLE else "hardly used"
        joint = "and" if best.size >= LITTLE else "but"
        lead = f"decodable {joint} {used}" if best.answer("detects") == "yes" else used
        return f"{lead} {place}: {_used(best, directions)}"
    if all(one.answer(name) in ("no", "") for one in directions for name in USES):
        if n:
            return f"decodable but not used {place}: {_detecting(n, directions)}"
        if all(one.answer("detects") in ("no", "") for one in directions):
            return f"neither decodable nor used {place}: {_detecting(n, directions)}"
    lead = f"decodable {place}, use undecided" if n else f"undecided {place}"
    return f"{lead}: {_answers(n, directions)}{_because(directions)}"


def _detecting(n: int, directions: Sequence[Direction]) -> str:
    """Return how many directions detect the label, if none of them steers or silences."""
    if len(directions) == 1:
        does = "detects the label but neither steers nor silences"
        return f"{_name(directions[0])} {does if n else 'neither detects, steers nor silences'}"
    of = counted(len(directions), "direction")
    if not n:
        return f"none of {of} detects the label, steers or silences"
    detect = "detects" if n == 1 else "detect"
    return (
        f"{f'all {of}' if n == len(directions) else f'{n} of {of}'} {detect} the label, none "
        "steers or silences"
    )


def _answers(n: int, directions: Sequence[Direction]) -> str:
    if len(directions) == 1:
        only = directions[0]
        found = [f"{name} {only.answer(name)}" for name in QUESTIONS if only.answer(name)]
        return f"{_name(only)}: {', '.join(found)}"
    of = counted(len(directions), "direction")
    return f"{n} of {of} shown to detect the label, none to steer or silence"


def _because(directions: Sequence[Direction]) -> str:
    """Return the most frequent reason of an undecided use as the end of a clause."""
    verdicts = [(one, name) for one in directions for name in QUESTIONS]
    reasons = Counter(
        str(one.found[name]["reason"])
        for one, name in verdicts
        if one.answer(name) == "undecided" and one.found[name]["reason"]
    )
    if not reasons:
        of_best = any(one.answer(name) == "yes" for one, name in verdicts if name in USES)
        return f", because no use is significant as the best of {len(directions)}" * of_best
    return f", {'mostly ' * (len(reasons) > 1)}because {reasons.most_common(1)[0][0]}"


def _name(one: Direction) -> str:
    return f"{NAMES[one.row['along']]} in {_the(one.place)}"


def _the(place: str) -> str:
    has_article = place.startswith(("residual", "embedding", "final"))
    return f"the {place}" if has_article else place


def _used(best: Direction, directions: Sequence[Direction]) -> str:
    """Return the effects of a direction that is used, as a clause."""
    sites = {one.row["site"] for one in directions if one.row["along"] == best.row["along"]}
    of = f", best of {len(sites)} sites" if len(sites) > 1 else ""
    parts, tests = [], []
    for name in filter(best.is_certain, USES):
        row = best.found[name]
        p = row[["p_holm", "p_best"]].max()  # adjusted for questions, and for sites
        tests.append("" if np.isnan(p) else f"{p_words(float(p))}{of}")
        numbers = [row["effect"], row["low"], row["high"]]
        if name == "steers":
            parts.append(f"moves the answer by {interval_in_words(*numbers)} {row['unit']}")
        else:
            value, *ends = (fixed(100 * number, 0) for number in numbers)
            share = f"{value} % [{', '.join(ends)}]"
            parts.append(f"its erasure removes {share} of the difference between labels")
    if len(set(tests)) == 1:
        joined = f"{', and '.join(parts)} ({'both ' * (len(tests) > 1)}{tests[0]})"
    else:
        joined = ", and ".join(f"{part} ({test})" for part, test in zip(parts, tests, strict=True))
    return f"{_name(best)} {joined}".replace(" ()", "").replace(" (both )", "")


def _patch_there(best: Direction, tables: CauseTables) -> str:
    """Return the recovery by patching the whole vector at the site of a direction, as a clause."""
    for one in _main_sets(tables):
        if one.do != "patch" or one.shown != RECOVERY or one.at != best.row["at"]:
            continue
        same = one.rows[one.rows["site"] == best.row["site"]]
        if not same.empty:
            vector = "the whole vector there" if best.is_used else f"{_the(best.place)}"
            return f"patching {vector} recovers {value_in_words(same.iloc[0])} {OF_EFFECT}"
    return next(_strongest_edits(tables), "")


def _main_sets(tables: CauseTables) -> list[EditSet]:
    """Return the sets of edits of the first measure: patches first, single tokens before all."""
    order = {"probed": 0, "each": 1, "all": 2}
    sets = [one for one in edit_sets(tables.effects) if one.measure == first_measure(tables)]
    return sorted(sets, key=lambda one: (one.do != "patch", order[one.at]))


def _strongest_edits(tables: CauseTables) -> Iterator[str]:
    """Yield clauses on the first set of edits: the residual stream, and the strongest site."""
    for one in _main_sets(tables)[:1]:
        stream = _of_stream(one, tables)
        if stream:
            yield stream
        row = strongest(one.rows[one.rows["line"] != STREAM] if stream else one.rows)
        if row is not None:
            yield _strongest(one, row, tables, is_other=bool(stream))


def _strongest(one: EditSet, row: pd.Series[Any], tables: CauseTables, *, is_other: bool) -> str:
    quantity = f"{one.title} {value_in_words(row)}"
    quantity += "" if one.shown == RECOVERY else f" {one.unit}"
    if not np.isnan(row["p_best"]):
        quantity += f", {p_words(float(row['p_best']))}, best of {one.n_edits}"
    has_token = not pd.isna(row["position"])
    token = f", {position_label(int(row['position']), tables.record)}" if has_token else ""
    place = f"{place_in_words(row, blocks_of(tables))}{token} ({quantity})"
    if is_other:
        return f"largest effect of the other sites: {place}"
    edits = NOUNS.get((one.do, one.replacement), one.do)
    return f"largest effect of {edits} {where(tables, one.at)}: {place}"


def _of_stream(one: EditSet, tables: CauseTables) -> str:
    """Return where patches of the residual stream recover the effect; "" if they do not.

    The first layers at the token in which texts differ and the last layers at the measured token
    recover it in any network, so the layers of the transition are reported.
    """
    if one.shown != RECOVERY:
        return ""
    if one.at == "each":
        return _by_token(one, tables)
    half = most_of(one) if one.at == "probed" else None
    if half is None:
        return ""
    start = _block(half, tables)
    return (
        f"patching the residual stream {where(tables, one.at)} recovers at least half "
        f"{OF_EFFECT} from {start} on ({value_in_words(half)})"
    )


def _by_token(one: EditSet, tables: CauseTables) -> str:
    stream = one.rows[one.rows["line"].eq(STREAM)].dropna(subset="position")
    if stream.empty:
        return ""
    best = stream.loc[stream.groupby("depth")["value"].idxmax()].sort_values("depth")
    starts = best[best["position"].ne(best["position"].shift())]
    if len(starts) > MOST_STEPS or not (best["value"] > 0).all():
        return ""
    steps = [
        f"{position_label(int(row['position']), tables.record)} from {_block(row, tables)} on "
        f"({value_in_words(row)})"
        for _, row in starts.iterrows()
    ]
    return f"patching the residual stream recovers most at {', at '.join(steps)}"


def _block(row: pd.Series[Any], tables: CauseTables) -> str:
    return place_in_words(row, blocks_of(tables)).removeprefix("residual stream after ")
