"""What a run's interventions say: the answer in one sentence, and the table of verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import counted
from probekit.report.causes.cause_figures import STREAM, position_label
from probekit.report.causes.edits import (
    METHODS,
    NOUNS,
    QUESTIONS,
    RECOVERY,
    USES,
    Direction,
    EditSet,
    blocks_of,
    directions_in,
    edit_sets,
    first_measure,
    interval_in_words,
    n_in_words,
    place_in_words,
    value_in_words,
    where,
)
from probekit.report.figures.style import fixed
from probekit.report.pages.page import Pairs
from probekit.report.pages.table import Cell, Column, ResultTable
from probekit.report.sentences.answer import p_words
from probekit.report.texts import capitalised
from probekit.results.causes import CauseTables

NOTHING = "no intervention has a defined effect"
OF_EFFECT = "of the counterfactual's effect"
NAMES = {
    "probe": "the probe's direction",
    "mean_difference": "the mean difference",
    "leace": "the LEACE direction",
}
MOST_STEPS = 3  # tokens in a sentence
LITTLE = 0.1  # share of the network's answer, below which a use is small
DETAILS = {**METHODS, "all": "all tokens", "probed": "probed token"}
MOST_ROWS = 12  # directions shown before the fold
UNITS = {"AUROC - 0.5": "AUROC − 0.5", "share": "share of the effect", "recovery": "recovery"}
MUCH = 0.5  # share of a direction in the kernel that is reported


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

    def use(one: Direction) -> tuple[int, float]:
        return sum(map(one.is_certain, USES)), one.size

    def detection(one: Direction) -> float:
        effect = one.found["detects"]["effect"] if "detects" in one.found else np.nan
        return -np.inf if np.isnan(effect) else float(effect)

    used = [one for one in directions if one.is_used]
    return max(used, key=use) if used else max(directions, key=detection)


def _first(cases: Iterable[tuple[object, str]]) -> str:
    """Return the sentence of the first case that holds."""
    return next(sentence for holds, sentence in cases if holds)


def _verdict(directions: Sequence[Direction], best: Direction, tables: CauseTables) -> str:
    """Return whether the label is decodable and the direction used, with the evidence."""
    n_all, place = len(directions), where(tables, best.row["at"])
    n = sum(one.answer("detects") == "yes" for one in directions)
    refused = {
        question
        for question in QUESTIONS
        if all(one.answer(question) in ("no", "") for one in directions)
    }
    is_decodable, is_much = best.answer("detects") == "yes", best.size >= LITTLE
    name, of = _name(best), counted(n_all, "direction")
    used = f"{place}: {_used(best, directions)}"
    none_used = _first(
        (
            (n_all == n == 1, f"{name} detects the label but neither steers nor silences"),
            (n_all == 1, f"{name} neither detects, steers nor silences"),
            (n == 0, f"none of {of} detects the label, steers or silences"),
            (n == n_all, f"all {of} detect the label, none steers or silences"),
            (n == 1, f"1 of {of} detects the label, none steers or silences"),
            (True, f"{n} of {of} detect the label, none steers or silences"),
        )
    )
    answers = f"{n} of {of} shown to detect the label, none to steer or silence"
    if n_all == 1:
        asked = filter(best.answer, QUESTIONS)
        found = (f"{question} {best.answer(question)}" for question in asked)
        answers = f"{name}: {', '.join(found)}"
    answers += _because(directions)
    return _first(
        (
            (best.is_used and is_decodable and is_much, f"decodable and used {used}"),
            (best.is_used and is_decodable, f"decodable but hardly used {used}"),
            (best.is_used and is_much, f"used {used}"),
            (best.is_used, f"hardly used {used}"),
            (refused >= {*USES} and n, f"decodable but not used {place}: {none_used}"),
            (refused == {*QUESTIONS}, f"neither decodable nor used {place}: {none_used}"),
            (n, f"decodable {place}, use undecided: {answers}"),
            (True, f"undecided {place}: {answers}"),
        )
    )


def _because(directions: Sequence[Direction]) -> str:
    """Return the most frequent reason of an undecided use as the end of a clause."""
    verdicts = [(one, name) for one in directions for name in QUESTIONS]
    reasons = Counter(
        str(one.found[name]["reason"])
        for one, name in verdicts
        if one.answer(name) == "undecided" and one.found[name]["reason"]
    )
    if reasons:
        mostly = "mostly " * (len(reasons) > 1)
        return f", {mostly}because {reasons.most_common(1)[0][0]}"
    is_used = any(one.answer(name) == "yes" for one, name in verdicts if name in USES)
    return f", because no use is significant as the best of {len(directions)}" * is_used


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
            value, low, high = (fixed(100 * number, 0) for number in numbers)
            share = f"{value} % [{low}, {high}]"
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
            vector = "the whole vector there" if best.is_used else _the(best.place)
            return f"patching {vector} recovers {value_in_words(same.iloc[0])} {OF_EFFECT}"
    return next(_strongest_edits(tables), "")


def _main_sets(tables: CauseTables) -> list[EditSet]:
    """Return the sets of edits of the first measure: patches first, single tokens before all."""

    def rank(one: EditSet) -> tuple[bool, int]:
        return one.do != "patch", ("probed", "each", "all").index(one.at)

    main = first_measure(tables)
    return sorted((one for one in edit_sets(tables.effects) if one.measure == main), key=rank)


def _strongest_edits(tables: CauseTables) -> Iterator[str]:
    """Yield clauses on the first set of edits: the residual stream, and the strongest site."""
    for one in _main_sets(tables)[:1]:
        stream = _of_stream(one, tables)
        rows = one.rows
        if stream:
            yield stream
            rows = rows[rows["line"] != STREAM]
        if rows.empty:
            continue
        row = rows.iloc[int(np.argmax(rows["value"].abs()))]
        quantity = f"{one.title} {value_in_words(row)}"
        quantity += "" if one.shown == RECOVERY else f" {one.unit}"
        if not np.isnan(row["p_best"]):
            quantity += f", {p_words(float(row['p_best']))}, best of {one.n_edits}"
        has_token = not pd.isna(row["position"])
        token = f", {position_label(int(row['position']), tables.record)}" if has_token else ""
        edits = NOUNS.get((one.do, one.replacement), one.do)
        of = "of the other sites" if stream else f"of {edits} {where(tables, one.at)}"
        place = place_in_words(row, blocks_of(tables))
        yield f"largest effect {of}: {place}{token} ({quantity})"


def _of_stream(one: EditSet, tables: CauseTables) -> str:
    """Return where patches of the residual stream recover the effect; "" if they do not.

    The first layers at the token in which texts differ and the last layers at the measured token
    recover it in any network, so the layers of the transition are reported: the first one that
    recovers half of the effect at the probed token, or the strongest token by layer.
    """
    blocks, stream = blocks_of(tables), one.rows[one.rows["line"].eq(STREAM)]

    def start(row: pd.Series[Any]) -> str:
        block = place_in_words(row, blocks).removeprefix("residual stream after ")
        return f"from {block} on ({value_in_words(row)})"

    if one.shown != RECOVERY:
        return ""
    half = stream[stream["value"].ge(0.5)]
    if one.at == "probed" and not half.empty:
        return (
            f"patching the residual stream {where(tables, one.at)} recovers at least half "
            f"{OF_EFFECT} {start(half.iloc[0])}"
        )
    stream = stream.dropna(subset="position")
    if one.at != "each" or stream.empty:
        return ""
    best = stream.loc[stream.groupby("depth")["value"].idxmax()].sort_values("depth")
    starts = best[best["position"].ne(best["position"].shift())]
    if len(starts) > MOST_STEPS or not (best["value"] > 0).all():
        return ""
    steps = [
        f"{position_label(int(row['position']), tables.record)} {start(row)}"
        for _, row in starts.iterrows()
    ]
    return f"patching the residual stream recovers most at {', at '.join(steps)}"


def verdict_tables(directions: Sequence[Direction]) -> list[tuple[ResultTable, Pairs]]:
    """Return the verdicts on directions as a table and in words; of many, two: the first is open.

    Of more than `MOST_ROWS` directions, those that are used come first. A row has the site, method
    and edited tokens as far as directions differ in them, and flags of the direction; then for each
    question the answer, the effect with its interval, p, and a remark.
    """
    found = {name for one in directions for name in one.found}
    names = [name for name in (*QUESTIONS, "swap") if name in found]
    differing = [name for name in ("along", "at") if len({one.row[name] for one in directions}) > 1]
    ordered = list(directions)
    if len(ordered) > MOST_ROWS:
        ordered.sort(key=lambda one: (not one.is_used, -one.size))
    columns = [Column(name, "words", unit=_unit(directions, name)) for name in names]
    tables = []
    for title, own in (
        ("Verdicts on directions", ordered[:MOST_ROWS]),
        ("Verdicts on the other directions", ordered[MOST_ROWS:]),
    ):
        rows, words = [], []
        for one in own:
            site = one.place if "_" in one.place else capitalised(one.place)
            details = ", ".join(DETAILS[one.row[name]] for name in differing)
            flags = [(remark, "remark") for remark in _remarks(one)]
            place = Cell(site, [(details, "")])
            named = replace(place, small=[*place.small, *flags], hint=str(one.row["site"]))
            rows.append((named, *(_cell(one.found.get(name)) for name in names)))
            summaries = filter(None, (str(row["summary"]) for row in one.found.values()))
            # Without the numbers that the table contains.
            summary = next(summaries, "").partition(" Verdicts: ")[0]
            words += [(place, summary)] if summary else []
        if own:
            table = ResultTable(title, [Column("direction at", "site"), *columns], rows)
            tables.append((replace(table, css="verdict-table"), Pairs(words, css="summaries")))
    return tables


def _unit(directions: Sequence[Direction], name: str) -> str:
    """Return the unit of a column; "" if directions differ in it."""
    units = {str(one.found[name]["unit"]) for one in directions if name in one.found}
    unit = units.pop() if len(units) == 1 else ""
    return UNITS.get(unit, unit).replace("standard deviation", "SD")


def _cell(row: pd.Series[Any] | None) -> Cell | str:
    if row is None:
        return "–"
    p = row["p"] if pd.isna(row["p_holm"]) else row["p_holm"]
    effect = interval_in_words(row["effect"], row["low"], row["high"])
    remarks = [str(row["reason"])]
    if row["answer"] == "undecided" and row["low"] > 0 and not pd.isna(row["null_low"]):
        # The comparison with permuted labels decides if nothing else does.
        ends = f"{fixed(row['null_low'], 2)} to {fixed(row['null_high'], 2)}"
        remarks.append(f"95 % of the directions on permuted labels have an effect of {ends}")
    return Cell(
        "–" if math.isnan(row["effect"]) else effect,
        [
            ("" if pd.isna(p) else p_words(float(p)), ""),
            ("; ".join(filter(None, remarks)), "remark"),
        ],
        lead=str(row["answer"]) if row["question"] != "swap" else "",
    )


def _remarks(one: Direction) -> list[str]:
    """Return the flags of a direction as short sentences."""
    flags = [row["exceeds_whole"] for row in one.found.values()]
    kernel, steers = float(one.row["kernel_share"]), one.answer("steers") == "yes"
    effect, wrong = (
        float(one.found["steers"][name]) if steers else math.nan for name in ("effect", "wrong_way")
    )
    cases = (
        (
            any(not pd.isna(flag) and flag for flag in flags),
            "Moves more than its whole vector: possible artefact.",
        ),
        (kernel > MUCH, f"{fixed(100 * kernel, 0)} % is in the kernel of the output matrix."),
        (effect < 0, "Steers away from the class that it detects."),
        (not math.isnan(wrong), f"{fixed(100 * wrong, 0)} % of texts move the wrong way."),
    )
    return [sentence for holds, sentence in cases if holds]
