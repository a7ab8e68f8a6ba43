"""Words on interventions: the answer in a sentence, the facts behind it, the table of verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from probekit.amounts import counted, fixed, percent
from probekit.interventions.names import REPLACEMENTS
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.elements.texts import capitalised, token_label
from probekit.report.figures.views import position_words
from probekit.report.sentences.answer import is_yes_no, p_words
from probekit.report.sentences.caveats import Caveat
from probekit.results.cause_verdict import RECOVERY, USES, CauseVerdict, Direction
from probekit.results.causes import CausesRecord, CauseTables

SMALL_EFFECT = 0.1  # below it, numbers have three decimals
QUESTIONS = ("detects", *USES, "swap")
# Method of a direction -> its name in titles; NAMES has that in sentences.
METHODS = {"probe": "probe", "mean_difference": "mean difference", "leace": "LEACE"}
NAMES = {
    "probe": "the probe's direction",
    "mean_difference": "the mean difference",
    "leace": "the LEACE direction",
}
# Case -> opening of the answer, if it is not the case itself.
OPENINGS = {"hardly used": "used, but little", "use undecided": "use not shown"}
ASKS_USE = re.compile(r"^(?:does .+? use|is .+? used)\b", re.IGNORECASE)
RANDOM = "random directions with the features' covariance"
UNDEFINED = "the effects of the direction are undefined"
NOTHING = "no intervention has a defined effect"
OF_EFFECT = "of the counterfactual's effect"
# Method, or choice of tokens -> its name in the table of verdicts.
DETAILS = {**METHODS, "all": "all tokens", "probed": "probed token", "each": "each token"}
MOST_ROWS = 12  # directions shown before the fold
# Unit in verdicts.csv -> unit in the heading of a column, if it is another one.
UNITS = {"AUROC - 0.5": "AUROC − 0.5", "share": "share of the effect"}
MUCH = 0.5  # share of a direction in the kernel that is reported


def where(record: CausesRecord, at: str) -> str:
    """Return the edited tokens in words; `at` is `probed`, `all` or `each`."""
    if at != "probed":
        return {"all": "at all tokens", "each": "at each token"}[at]
    words = position_words(record.position)
    if words == record.position:  # there are no words for it
        return f"at {words}"
    is_offset = words[0].isdigit()  # "1 token after the word"
    return words if is_offset else f"at the {words}"


def n_in_words(facts: pd.Series[Any] | CausesRecord) -> str:
    """Return the number of texts and groups.

    >>> n_in_words(pd.Series({"n": 1080.0, "groups": 15.0}))
    'n = 1,080 texts in 15 groups'
    """
    return f"n = {facts.n:,.0f} texts in {facts.groups:,.0f} groups"


def value_in_words(row: pd.Series[Any]) -> str:
    """Return the shown quantity with its interval.

    >>> value_in_words(pd.Series({"value": 0.5, "ci_low": 0.4, "ci_high": 0.6}))
    '0.50 [0.40, 0.60]'
    """
    return interval_in_words(row["value"], row["ci_low"], row["ci_high"])


def interval_in_words(value: float, low: float, high: float) -> str:
    """Return a number with its interval, if there is one, in two decimals or three if it is small.

    >>> interval_in_words(-0.25, -0.31, -0.2), interval_in_words(0.066, math.nan, math.nan)
    ('−0.25 [−0.31, −0.20]', '0.066')
    """
    places = 3 if 0 < abs(value) < SMALL_EFFECT else 2
    interval = "" if math.isnan(low) else f" [{fixed(low, places)}, {fixed(high, places)}]"
    return f"{fixed(value, places)}{interval}"


def share_in_words(value: float, low: float, high: float) -> str:
    """Return a share with its interval, if there is one, in percent.

    >>> share_in_words(0.06, 0.031, 0.082), share_in_words(0.06, math.nan, math.nan)
    ('6 % [3, 8]', '6 %')
    """
    interval = "" if math.isnan(low) else f" [{fixed(100 * low, 0)}, {fixed(100 * high, 0)}]"
    return f"{percent(value)}{interval}"


def position_label(position: int, record: CausesRecord) -> str:
    """Return a position for hover texts and sentences, with its token if the record has tokens.

    The record has none if the texts differ in their number of tokens, or if no step edits each
    token.
    """
    if position >= len(record.tokens):
        return f"position {position}"
    return f"position {position} ({token_label(record.tokens[position])})"


def cause_answer(tables: CauseTables) -> str:
    """Return the answer as a short sentence: whether a direction is used, with its main effect.

    The other effect of a direction that is used is in `cause_detail`. Without directions, the
    answer is about the strongest edits.
    """
    verdict, best = tables.verdict, tables.verdict.best
    opening = OPENINGS.get(verdict.case, verdict.case)
    if best is None:
        text = next(_strongest_edits(tables), NOTHING)
    elif best.uses or len(verdict.directions) == 1:
        effects = _effects(best, verdict.directions)
        if best.uses:
            effects, is_label = effects[:1], best.answer("detects") == "yes"
            if best.uses == ("steers",) and best.size:
                effects[0] += f"; largest estimated share of the answer: {percent(best.size)}"
            if is_label and is_yes_no(tables.record.question, ASKS_USE):
                opening = opening.replace("used", "yes")
        text = f"{opening}: {', and '.join(effects) or UNDEFINED}"
    else:
        verb = "noticeably moves" if verdict.case == "not used" else "is shown to move"
        n_all = counted(len(verdict.directions), "direction")
        text = f"{opening}: none of {n_all} {verb} the answer when it is added or erased"
    return f"{capitalised(text)}."


def cause_caveats(tables: CauseTables) -> Iterator[Caveat]:
    """Yield the reasons to doubt interventions: rarely right answers, doses, texts left out."""
    for number, text in enumerate(tables.record.warnings):
        is_of_answers = not number and tables.record.answers_rarely
        yield Caveat("wrong-answers" if is_of_answers else "doses", text)
    for part in tables.record.left_out:
        yield Caveat("texts-left-out", f"{counted(part.n, 'text')} left out: {part.reason}")


def cause_detail(tables: CauseTables) -> str:
    """Return the facts behind the answer: other effects, patches at the site, number of texts."""
    verdict = tables.verdict
    if verdict.best is None:
        sentences = list(_strongest_edits(tables))[1:]
    else:
        effects = _effects(verdict.best, verdict.directions)[1:] if verdict.best.uses else []
        sentences = [_detection(verdict.best, verdict, tables.record), *effects]
        if verdict.patched is None:
            sentences.append(next(_strongest_edits(tables), ""))
        else:
            patched = verdict.patched[["value", "ci_low", "ci_high"]]
            recovery = f"recovers {share_in_words(*patched)} {OF_EFFECT}"
            vector = "the whole vector there" if verdict.best.uses else _the(verdict.best)
            swap = verdict.best.asked.get("swap")
            if swap is not None and not math.isnan(swap["effect"]):
                share = share_in_words(*swap[["effect", "low", "high"]])
                recovery += f", swapping the direction alone {share}"
            sentences.append(f"patching {vector} {recovery}")
    text = ". ".join(map(capitalised, filter(None, sentences)))
    return f"{text}{'; ' if text else ''}{n_in_words(tables.record)}."


def _detection(best: Direction, verdict: CauseVerdict, record: CausesRecord) -> str:
    """Return which directions detect the label, and why no use was shown, as a clause."""
    directions, tokens = verdict.directions, where(record, best.row["at"])
    if best.uses or len(directions) == 1:
        verbs = {"yes": "detects", "no": "does not detect"}
        verb = verbs.get(best.answer("detects"), "is not shown to detect")
        named = f"{NAMES[best.row['along']]} in {_the(best)} {tokens} {verb} the label"
        text = f"the direction {verb} the label {tokens}" if best.uses else named
    else:
        n = sum(one.answer("detects") == "yes" for one in directions)
        verb = "detect" if n == len(directions) else "are shown to detect"
        # Directions may differ in their tokens.
        at = f" {tokens}" if len({one.row["at"] for one in directions}) == 1 else ""
        text = f"{n} of {counted(len(directions), 'direction')}{at} {verb} the label"
    if best.uses:
        return text
    if verdict.reasons:
        mostly = "mostly " if len(verdict.reasons) > 1 else ""
        return f"{text}; undecided {mostly}because {verdict.reasons[0]}"
    if any(one.answer(use) == "yes" for one in directions for use in USES):
        return f"{text}; no use is significant as the best of {len(directions)}"
    return text


def _the(direction: Direction) -> str:
    """Return the site of a direction in words, with an article if the words need one."""
    place = str(direction.row["place"])
    return f"the {place}" if place.startswith(("residual", "embedding")) else place


def _effects(best: Direction, directions: Sequence[Direction]) -> list[str]:
    """Return the defined effects of a direction with their p-values as clauses, uses first.

    Erasure precedes steering, because its effect is a share of the label's effect.
    """
    along, place = best.row["along"], str(best.row["short_place"])
    named = f"{NAMES[along]} at {best.row['place'] if ',' in place else place}"
    n_sites = len({other.row["site"] for other in directions if other.row["along"] == along})
    best_of = f", best of {n_sites} sites" if n_sites > 1 else ""
    effects: list[str] = []
    for use in sorted(filter(best.answer, USES), key=lambda use: (use not in best.uses, use)):
        row = best.asked[use]
        if math.isnan(row["effect"]):
            continue
        numbers = [row["effect"], row["low"], row["high"]]
        what = "it" if effects else named
        if use == "steers":
            unit = row["unit"].replace("standard deviation", "SD")
            effect = f"adding {what} moves the answer by {interval_in_words(*numbers)} {unit}"
        else:
            removes = "removes"
            if row["high"] < 0:
                removes, numbers = "adds", [-numbers[0], -numbers[2], -numbers[1]]
            effect = f"erasing {what} {removes} {share_in_words(*numbers)} of the label's effect"
        p = row[["p_holm", "p_best"]].max()  # adjusted for questions, and for sites
        # The interval alone decides about "no".
        has_p = best.answer(use) != "no" and not math.isnan(p)
        test = [f"permuted labels: {p_words(float(p))}{best_of}"] if has_p else []
        if use != "steers" and not math.isnan(row["whole"]):
            test.append(f"the whole vector removes {percent(row['whole'])}")
        if row["exceeds_whole"]:
            test.append("more than its whole vector: possible artefact")
        effects.append(f"{effect} ({'; '.join(test)})" if test else effect)
        low, high = row["matched_low"], row["matched_high"]
        if use in best.uses and low <= row["effect"] <= high:
            scale, places, sign = (1, 2, "") if use == "steers" else (100, 0, " %")
            ends = f"{fixed(scale * low, places)} to {fixed(scale * high, places)}{sign}"
            effects[-1] += f", against {ends} for 95 % of {RANDOM}"
    return effects


def _strongest_edits(tables: CauseTables) -> Iterator[str]:
    """Yield clauses on the first set of edits: its transition, and its strongest edit."""
    verdict, record = tables.verdict, tables.record
    if not verdict.main:
        return
    edits = verdict.main[0]
    starts = [f"({value_in_words(row)})" for row in verdict.transition]
    if starts and edits.at == "probed":
        yield (
            f"patching the residual stream {where(record, edits.at)} first recovers half "
            f"{OF_EFFECT} at {verdict.transition[0]['short_place']} {starts[0]}"
        )
    elif starts:
        steps = [
            f"{position_label(int(row['position']), record)} from {row['short_place']} on {value}"
            for row, value in zip(verdict.transition, starts, strict=True)
        ]
        yield f"patching the residual stream recovers most at {', at '.join(steps)}"
    row = verdict.strongest
    if row is None:
        return
    quantity = f"{edits.title} {value_in_words(row)}"
    quantity += "" if edits.shown == RECOVERY else f" {edits.unit}"
    if not math.isnan(row["p_best"]):
        quantity += f", {p_words(float(row['p_best']))}, best of {edits.n_edits}"
    has_token = not pd.isna(row["position"])
    token = f", {position_label(int(row['position']), record)}" if has_token else ""
    noun, _ = REPLACEMENTS[edits.replacement]
    among = "of the other sites" if starts else f"of {noun} {where(record, edits.at)}"
    yield f"largest effect {among}: {row['place']}{token} ({quantity})"


def verdict_table(directions: Sequence[Direction]) -> ResultTable:
    """Return the verdicts on directions as a table.

    Of more than `MOST_ROWS` directions, those that are used come first, then those with a larger
    `size`. A row has the site, the method and the edited tokens if directions differ in them, and
    flags of the direction; then for each question the answer, the effect with its interval, p, and
    a remark.
    """
    asked = {name for direction in directions for name in direction.asked}
    questions = [name for name in QUESTIONS if name in asked]
    differing = [name for name in ("along", "at") if len({one.row[name] for one in directions}) > 1]
    ordered = list(directions)
    if len(ordered) > MOST_ROWS:
        ordered.sort(key=lambda direction: (not direction.uses, -direction.size))
    columns = [Column("direction at", "site")]
    columns += [Column(name, "words", unit=_unit(directions, name)) for name in questions]
    rows = []
    for direction in ordered:
        # The name of a site, with underscores, keeps its spelling.
        place = str(direction.row["place"])
        site = place if "_" in place else capitalised(place)
        details = (", ".join(DETAILS[direction.row[name]] for name in differing), "")
        flags = [(remark, "remark") for remark in _remarks(direction)]
        first = Cell(site, [details, *flags], hint=str(direction.row["site"]))
        rows.append((first, *(_cell(direction.asked.get(name)) for name in questions)))
    return ResultTable("Verdicts on directions", columns, rows, css="verdict-table")


def _unit(directions: Sequence[Direction], name: str) -> str:
    """Return the unit of the column of a question; "" if directions differ in it."""
    units = {str(one.asked[name]["unit"]) for one in directions if name in one.asked}
    unit = units.pop() if len(units) == 1 else ""
    return UNITS.get(unit, unit).replace("standard deviation", "SD")


def _cell(row: pd.Series[Any] | None) -> Cell | str:
    """Return the answer to a question, with effect, interval, p and remarks; "–" without a row.

    p is that adjusted for questions and sites, if there is one; the interval alone decides about
    "no". A swap has an effect only.
    """
    if row is None:
        return "–"
    p = math.nan if row["answer"] == "no" else row[["p", "p_holm", "p_best"]].max()
    effect = interval_in_words(row["effect"], row["low"], row["high"])
    remarks = [str(row["reason"])]
    if row["answer"] == "undecided" and row["low"] > 0 and not pd.isna(row["null_low"]):
        # The interval is above 0, so that only the comparison with permuted labels left it open.
        ends = f"{fixed(row['null_low'], 2)} to {fixed(row['null_high'], 2)}"
        remarks.append(f"95 % of the directions on permuted labels have an effect of {ends}")
    shown = "–" if math.isnan(row["effect"]) else effect
    test, remark = "" if pd.isna(p) else p_words(float(p)), "; ".join(filter(None, remarks))
    return Cell(shown, [(test, ""), (remark, "remark")], lead=str(row["answer"]))


def _remarks(direction: Direction) -> Iterator[str]:
    """Yield the flags of a direction as short sentences."""
    flags = [row["exceeds_whole"] for row in direction.asked.values()]
    if any(not pd.isna(flag) and flag for flag in flags):
        yield "Moves more than its whole vector: possible artefact."
    kernel = float(direction.row["kernel_share"])
    if kernel > MUCH:  # an unknown share is NaN, which is not larger
        yield f"{percent(kernel)} is in the kernel of the output matrix."
    if direction.answer("steers") == "yes":
        steers = direction.asked["steers"]
        if steers["effect"] < 0:
            yield "Steers away from the class that it detects."
        if not math.isnan(steers["wrong_way"]):
            yield f"{percent(steers['wrong_way'])} of texts move the wrong way."
