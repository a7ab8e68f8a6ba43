"""What interventions found: effects of edits, verdicts on directions, the answer in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL, counted, fixed, format_number, format_p, percent
from probekit.interventions.names import REPLACEMENTS
from probekit.report.elements.page import Pairs
from probekit.report.elements.style import plotly_text
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.elements.texts import capitalised, line_label, token_label
from probekit.report.figures.views import position_words
from probekit.report.sentences.answer import answer, p_words, sources_sentence
from probekit.results.causes import TABLES, CausesRecord, CauseTables, has_causes
from probekit.results.record import RunRecord
from probekit.results.table import by_depth, n_blocks, row_tick

STREAM = "residual stream"
SMALL_EFFECT = 0.1  # below it, numbers have three decimals
RECOVERY, EFFECT = "recovery", "effect"
QUESTIONS = ("detects", "steers", "silences")
USES = ("steers", "silences")
_TEXTS = ("measure", "unit", "reason", "summary", "site", "erased")  # columns of any text
# Method of a direction -> its name in titles; NAMES has that in sentences.
METHODS = {"probe": "probe", "mean_difference": "mean difference", "leace": "LEACE"}
NOTHING = "no intervention has a defined effect"
OF_EFFECT = "of the counterfactual's effect"
NAMES = {
    "probe": "the probe's direction",
    "mean_difference": "the mean difference",
    "leace": "the LEACE direction",
}
MOST_STEPS = 3  # tokens in a sentence
LITTLE = 0.1  # share of the network's answer, below which a use is small
# Method, or choice of tokens -> its name in the table of verdicts.
DETAILS = {**METHODS, "all": "all tokens", "probed": "probed token", "each": "each token"}
MOST_ROWS = 12  # directions shown before the fold
# Unit in verdicts.csv -> unit in the heading of a column, if it is another one.
UNITS = {"AUROC - 0.5": "AUROC − 0.5", "share": "share of the effect", "recovery": "recovery"}
MUCH = 0.5  # share of a direction in the kernel that is reported


@dataclass(frozen=True, eq=False)
class EditSet:
    """Effects of one kind of edit on one measure, at one choice of tokens.

    Attributes:
        do: `patch` or `ablate`.
        replacement: what replaces the activations.
        measure: name of the measure.
        unit: its unit.
        at: edited tokens: `probed`, `all` or `each`.
        shown: the quantity of the figures: `recovery`, or `effect` if no recovery is defined.
        rows: placed rows, with the shown quantity as `value`, `ci_low` and `ci_high`.
        n_edits: number of edits for which `p_best` is adjusted.
    """

    do: str
    replacement: str
    measure: str
    unit: str
    at: str
    shown: str
    rows: pd.DataFrame
    n_edits: int

    @property
    def title(self) -> str:
        """The shown quantity, such as `recovery` or `change of KL divergence`."""
        return RECOVERY if self.shown == RECOVERY else f"change of {measure_title(self.measure)}"

    @property
    def axis(self) -> str:
        """Title of the vertical axis."""
        return RECOVERY if self.shown == RECOVERY else f"{self.title} ({self.unit})"

    @property
    def of_heads(self) -> pd.DataFrame:
        """The rows of single attention heads."""
        return self.rows[self.rows["head"].notna()]


def edit_sets(effects: pd.DataFrame) -> Iterator[EditSet]:
    """Yield the sets of effects.csv, kinds of edit and measures in the order of the file.

    Rows without an effect, or without the shown quantity, are left out. Of rows at one place of the
    layer axis, only the first is kept: resid_pre of a block equals resid_post of the block before
    it.
    """
    keys = ["do", "replacement", "measure"]
    defined = effects[np.isfinite(effects["effect"])]
    for (do, replacement, measure), edits in defined.groupby(keys, sort=False):
        shown = RECOVERY if np.isfinite(edits[RECOVERY]).any() else EFFECT
        low, high = f"{shown}_low", f"{shown}_high"
        valued = edits.assign(value=edits[shown], ci_low=edits[low], ci_high=edits[high])
        rows = by_depth(valued).replace([math.inf, -math.inf], math.nan)
        rows = rows.dropna(subset="value").drop_duplicates(["line", "depth", "at", "position"])
        for at, of_at in rows.groupby("at", sort=False):
            yield EditSet(
                do=do,
                replacement=replacement,
                measure=measure,
                unit=str(of_at["unit"].iloc[0]),
                at=str(at),
                shown=shown,
                rows=of_at,
                # `p_best` is adjusted for the edits at all choices of tokens together.
                n_edits=len(edits),
            )


def measure_title(measure: str) -> str:
    """Return the name of a measure in words.

    >>> measure_title("kl"), measure_title("accuracy")
    ('KL divergence', 'accuracy')
    """
    return {"kl": "KL divergence"}.get(measure, measure.replace("_", " "))


def where(tables: CauseTables, at: str) -> str:
    """Return the edited tokens in words; `at` is `probed`, `all` or `each`."""
    if at != "probed":
        return {"all": "at all tokens", "each": "at each token"}[at]
    position = tables.record.position
    words = position_words(position)
    if words == position:  # there are no words for it
        return f"at {position}"
    is_offset = words[0].isdigit()  # "1 token after the word"
    return words if is_offset else f"at the {words}"


def place_in_words(row: pd.Series[Any], blocks: int, *, is_brief: bool = False) -> str:
    """Return the site of a placed row in words.

    Args:
        row: a row with the columns that `placed` adds.
        blocks: number of blocks.
        is_brief: whether to use few words, as in the title of a panel.

    >>> rows = pd.DataFrame({"site": ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=5]"]})
    >>> both = [row for _, row in by_depth(rows.assign(head=[math.nan, 5])).iterrows()]
    >>> [place_in_words(row, 3) for row in both]
    ['residual stream after block 1', 'head 5 of block 2']
    >>> [place_in_words(row, 3, is_brief=True) for row in both]
    ['block 1', 'L2H5']
    """
    depth = row["depth"]
    if row["line"] == STREAM:
        tick = row_tick(row, blocks)
        if tick.isdigit():
            return f"block {tick}" if is_brief else f"residual stream after block {tick}"
        return {"embed": "embedding"}.get(tick, tick)
    if not pd.isna(row["head"]) and row["part"] == "attn.z":
        head = f"{row['head']:.0f}"
        return f"L{depth}H{head}" if is_brief else f"head {head} of block {depth}"
    return f"{row['line']}{', ' if is_brief else ' of '}block {depth}"


def edit_hover(edits: EditSet, row: pd.Series[Any], token: str = "") -> str:
    """Return the hover text of an edit: site, token, effects, p-values and number of texts."""
    at_token = f" at {plotly_text(token)}" if token else ""
    lines = [f"<b>{plotly_text(row['site'])}</b>{at_token}"]
    if edits.shown == RECOVERY:
        lines.append(f"recovery: {format_number(row['value'], row['ci_low'], row['ci_high'])}")
    effect = format_number(row["effect"], row["effect_low"], row["effect_high"])
    lines.append(f"change: {effect} {plotly_text(edits.unit)}")
    if not math.isnan(row["p"]):
        has_best = not math.isnan(row["p_best"])
        best = f", best of {edits.n_edits}: {format_p(row['p_best'])}" if has_best else ""
        lines.append(f"p: {format_p(row['p'])}{best}")
    return "<br>".join([*lines, n_in_words(row)])


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


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction at a site with its verdicts.

    Attributes:
        place: the site in words.
        row: a placed row of verdicts.csv with the facts that all of its questions share.
        found: rows of verdicts.csv by question, those of `QUESTIONS` and `swap`.
    """

    place: str
    row: pd.Series[Any]
    found: Mapping[str, pd.Series[Any]]

    def answer(self, question: str) -> str:
        """Return the verdict on a question; "" without one."""
        return str(self.found[question]["answer"]) if question in self.found else ""

    def is_certain(self, question: str) -> bool:
        """Return whether the verdict is yes, also if p is adjusted for the best of all sites.

        If there is no such p, the verdict alone decides.
        """
        if self.answer(question) != "yes":
            return False
        p = float(self.found[question]["p_best"])
        return bool(np.isnan(p) or p < LEVEL)

    @property
    def is_used(self) -> bool:
        """Whether it is certain that the direction steers or silences."""
        return any(map(self.is_certain, USES))

    @property
    def size(self) -> float:
        """Largest share of the network's answer that depends on the direction.

        It is the share of the difference between the labels that erasure removes, or of the
        counterfactual's effect that a swap recovers. Without either, it is the effect of steering
        relative to that of the whole vector; it is 0 without any effect, or if that of the whole
        vector is 0 or unknown.
        """

        def effect(name: str) -> float:
            """Return the absolute effect in a verdict; NaN without such a verdict."""
            return abs(float(self.found[name]["effect"])) if name in self.found else np.nan

        shares = [effect(name) for name in ("silences", "swap")]
        known = [share for share in shares if not np.isnan(share)]
        if known:
            return max(known)
        if np.isnan(effect("steers")):
            return 0.0
        whole = abs(float(self.found["steers"]["whole"]))
        return effect("steers") / whole if whole > 0 else 0.0


def directions_in(tables: CauseTables) -> list[Direction]:
    """Return the directions of verdicts.csv in the order of the forward pass."""
    if tables.verdicts.empty:
        return []
    rows, blocks = by_depth(tables.verdicts), blocks_of(tables)
    return [
        Direction(
            place=place_in_words(questions.iloc[0], blocks),
            row=questions.iloc[0],
            found={str(row["question"]): row for _, row in questions.iterrows()},
        )
        for _, questions in rows.groupby(["site", "at", "along"], sort=False)
    ]


def blocks_of(tables: CauseTables) -> int:
    """Return the number of blocks, taken from the deepest block in the record or any table."""
    names = [*tables.record.sites]
    for name in TABLES:
        names += getattr(tables, name)["site"].tolist()
    return n_blocks(pd.DataFrame({"site": pd.Series(names, dtype=str)}))


def legible(tables: CauseTables) -> CauseTables:
    """Return the tables with their texts as single lines of visible characters.

    An invisible one, such as a direction mark, would reverse the sentence that contains it. The
    model, the tokens and names from fixed lists are unchanged.
    """
    record = tables.record
    changes: dict[str, Any] = {
        name: line_label(getattr(record, name)) for name in ("name", "position", "dataset")
    }
    changes |= {
        name: tuple(map(line_label, getattr(record, name)))
        for name in ("classes", "measures", "warnings")
    }
    changes |= {
        "question": record.question and line_label(record.question),
        "answers": {line_label(name): line_label(word) for name, word in record.answers.items()},
        "left_out": tuple(
            omission.model_copy(update={"reason": line_label(omission.reason)})
            for omission in record.left_out
        ),
    }
    shown = {}
    for name in TABLES:
        table = getattr(tables, name)
        texts = {column: table[column].map(line_label) for column in _TEXTS if column in table}
        shown[name] = table.assign(**texts)
    return replace(tables, record=record.model_copy(update=changes), **shown)


def first_measure(tables: CauseTables) -> str:
    """Return the measure of the open figures: the first of the record with rows; "" without."""
    measured = tables.effects["measure"].unique().tolist()
    return next((name for name in tables.record.measures if name in measured), "")


def position_label(position: int, record: CausesRecord) -> str:
    """Return a position for hover texts and sentences, with its token if the record has tokens.

    The record has none if the texts differ in their number of tokens, or if no step edits each
    token.
    """
    if position >= len(record.tokens):
        return f"position {position}"
    return f"position {position} ({token_label(record.tokens[position])})"


def open_causes(run_dir: Path) -> CauseTables | None:
    """Return the interventions of a run as pages show them; None without interventions.

    Raises:
        DataError: A file cannot be read.
    """
    return legible(CauseTables.open(run_dir)) if has_causes(run_dir) else None


def run_answers(causes: CauseTables | None, record: RunRecord) -> tuple[str, ...]:
    """Return the sentences that answer a run's question: of its interventions first, if any.

    That of sources that were left out whole is the last.
    """
    of_probes = answer(record.verdict, record.question)
    sentences = (of_probes,) if causes is None else (cause_answer(causes), of_probes)
    sources = record.verdict.sources
    return sentences if sources is None else (*sentences, sources_sentence(sources))


def cause_answer(tables: CauseTables) -> str:
    """Return the answer as a short sentence: whether a direction is used, with its effects.

    Without directions, it is about the strongest edits.
    """
    directions = directions_in(tables)
    if directions:
        return f"{_use(directions, leading(directions), tables)}."
    return f"{capitalised(next(_strongest_edits(tables), NOTHING))}."


def cause_detail(tables: CauseTables) -> str:
    """Return the facts behind the answer: the direction, patches at its site, number of texts."""
    directions = directions_in(tables)
    if directions:
        best = leading(directions)
        clauses = [_detection(directions, best, tables), _patch_there(best, tables)]
    else:
        clauses = list(_strongest_edits(tables))[1:]
    text = capitalised("; ".join(filter(None, clauses)))
    return f"{text}{'; ' if text else ''}{n_in_words(tables.record)}."


def leading(directions: Sequence[Direction]) -> Direction:
    """Return the direction that the answer names: of those that are used, the one with most uses.

    Of equally many uses, the one with the largest `size`. If no direction is used, it is the one
    that detects the label best.
    """

    def use(direction: Direction) -> tuple[int, float]:
        return len([name for name in USES if direction.is_certain(name)]), direction.size

    def detection(direction: Direction) -> float:
        row = direction.found.get("detects")
        return -np.inf if row is None or np.isnan(row["effect"]) else float(row["effect"])

    used = [direction for direction in directions if direction.is_used]
    return max(used, key=use) if used else max(directions, key=detection)


def _use(directions: Sequence[Direction], best: Direction, tables: CauseTables) -> str:
    """Return whether a direction is used, with the effects of the leading one."""
    answers = {direction.answer(use) for direction in directions for use in USES}
    case, verb = "Use undecided", "is shown to move"
    if answers == {"no"}:
        case, verb = "Not used", "noticeably moves"
    if best.is_used:
        case = "Used" if best.size >= LITTLE else "Hardly used"
    elif len(directions) > 1:
        n_all = counted(len(directions), "direction")
        return f"{case}: none of {n_all} {verb} the answer when it is added or erased"
    effects = _effects(best, directions, blocks_of(tables))
    return f"{case}: {effects or 'the effects of the direction are undefined'}"


def _detection(directions: Sequence[Direction], best: Direction, tables: CauseTables) -> str:
    """Return which directions detect the label, and why no use was shown, as a clause."""
    place = where(tables, best.row["at"])
    if best.is_used or len(directions) == 1:
        verbs = {"yes": "detects", "no": "does not detect"}
        verb = verbs.get(best.answer("detects"), "is not shown to detect")
        detection = f"{_name(best)} {place} {verb} the label"
    else:
        n = sum(one.answer("detects") == "yes" for one in directions)
        verb = "detect" if n == len(directions) else "are shown to detect"
        # Directions may differ in their tokens.
        at = f" {place}" if len({one.row["at"] for one in directions}) == 1 else ""
        detection = f"{n} of {counted(len(directions), 'direction')}{at} {verb} the label"
    return detection if best.is_used else detection + _because(directions)


def _because(directions: Sequence[Direction]) -> str:
    """Return why the use is undecided as a clause, after a semicolon; "" if no reason is known.

    It is the most frequent reason of undecided verdicts, or that no use is significant as the best.
    """
    verdicts = [(direction, question) for direction in directions for question in USES]
    reasons = Counter(
        str(direction.found[question]["reason"])
        for direction, question in verdicts
        if direction.answer(question) == "undecided" and direction.found[question]["reason"]
    )
    if reasons:
        ((most_frequent, _),) = reasons.most_common(1)
        return f"; undecided {'mostly ' if len(reasons) > 1 else ''}because {most_frequent}"
    if any(direction.answer(use) == "yes" for direction in directions for use in USES):
        return f"; no use is significant as the best of {len(directions)}"
    return ""


def _name(direction: Direction) -> str:
    return f"{NAMES[direction.row['along']]} in {_the(direction.place)}"


def _the(place: str) -> str:
    has_article = place.startswith(("residual", "embedding", "final"))
    return f"the {place}" if has_article else place


def _effects(best: Direction, directions: Sequence[Direction], blocks: int) -> str:
    """Return the effects of a direction and their p-values as a clause; "" if all are undefined.

    The site is named if there are other directions.
    """
    at = f" at {place_in_words(best.row, blocks, is_brief=True)}" if len(directions) > 1 else ""
    along = best.row["along"]
    n_sites = len({other.row["site"] for other in directions if other.row["along"] == along})
    best_of = f", best of {n_sites} sites" if n_sites > 1 else ""
    effects, tests = [], []
    for use in filter(best.answer, USES):
        row = best.found[use]
        if math.isnan(row["effect"]):
            continue
        p = row[["p_holm", "p_best"]].max()  # adjusted for questions, and for sites
        # The interval alone decides about "no".
        has_p = best.answer(use) != "no" and not math.isnan(p)
        tests.append(f"{p_words(float(p))}{best_of}" if has_p else "")
        numbers = [row["effect"], row["low"], row["high"]]
        if use == "steers":
            unit = row["unit"].replace("standard deviation", "SD")
            effects.append(
                f"the direction{at} moves the answer by {interval_in_words(*numbers)} {unit}"
            )
        else:
            removes = "removes"
            if row["high"] < 0:
                removes, numbers = "adds", [-numbers[0], -numbers[2], -numbers[1]]
            share, low, high = [fixed(100 * number, 0) for number in numbers]
            interval = "" if math.isnan(row["low"]) else f" [{low}, {high}]"
            erased = "erasing it" if effects else f"erasing the direction{at}"
            effects.append(f"{erased} {removes} {share} %{interval} of the label's effect")
        if row["exceeds_whole"]:
            tests[-1] = "; ".join(
                filter(None, [tests[-1], "more than its whole vector: possible artefact"])
            )
    # Two uses with the same test name it once.
    if len(effects) == 2 and tests[0] == tests[1]:
        effects = [", and ".join(effects)]
        tests = [f"both {tests[0]}" if tests[0] else ""]
    return ", and ".join(
        f"{effect} ({test})" if test else effect
        for effect, test in zip(effects, tests, strict=True)
    )


def _patch_there(best: Direction, tables: CauseTables) -> str:
    """Return the recovery by patching the whole vector at the site of a direction, as a clause.

    Without such a patch, it is the first clause on the strongest edits; "" without edits.
    """
    for edits in _main_sets(tables):
        if edits.do != "patch" or edits.shown != RECOVERY or edits.at != best.row["at"]:
            continue
        at_site = edits.rows[edits.rows["site"] == best.row["site"]]
        if not at_site.empty:
            vector = "the whole vector there" if best.is_used else _the(best.place)
            return f"patching {vector} recovers {value_in_words(at_site.iloc[0])} {OF_EFFECT}"
    return next(_strongest_edits(tables), "")


def _main_sets(tables: CauseTables) -> list[EditSet]:
    """Return the sets of edits of the first measure: patches before ablations.

    Within both, edits of the probed token come first, then of each token, then of all tokens.
    """

    def rank(edits: EditSet) -> tuple[bool, int]:
        return edits.do != "patch", ("probed", "each", "all").index(edits.at)

    main = first_measure(tables)
    sets = [edits for edits in edit_sets(tables.effects) if edits.measure == main]
    return sorted(sets, key=rank)


def _strongest_edits(tables: CauseTables) -> Iterator[str]:
    """Yield clauses on the first of `_main_sets`: the residual stream, and the strongest edit.

    After a clause on the residual stream, the strongest edit is that of the other sites.
    """
    sets = _main_sets(tables)
    if not sets:
        return
    edits = sets[0]
    stream, rows = _of_stream(edits, tables), edits.rows
    if stream:
        yield stream
        rows = rows[rows["line"] != STREAM]
    if rows.empty:
        return
    row = rows.iloc[int(np.argmax(rows["value"].abs()))]
    quantity = f"{edits.title} {value_in_words(row)}"
    quantity += "" if edits.shown == RECOVERY else f" {edits.unit}"
    if not np.isnan(row["p_best"]):
        quantity += f", {p_words(float(row['p_best']))}, best of {edits.n_edits}"
    has_token = not pd.isna(row["position"])
    token = f", {position_label(int(row['position']), tables.record)}" if has_token else ""
    noun, _ = REPLACEMENTS[edits.replacement]
    among = "of the other sites" if stream else f"of {noun} {where(tables, edits.at)}"
    place = place_in_words(row, blocks_of(tables))
    yield f"largest effect {among}: {place}{token} ({quantity})"


def _of_stream(edits: EditSet, tables: CauseTables) -> str:
    """Return where patches of the residual stream recover the effect.

    The result is "" if they do not, for edits of all tokens or without recoveries, or if the
    strongest token changes too often for a sentence.

    The first layers at the token in which texts differ and the last layers at the measured token
    recover it in any network, so the layers of the transition are reported: the first one that
    recovers half of the effect at the probed token, or the strongest token by layer.
    """
    if edits.shown != RECOVERY:
        return ""
    blocks, stream = blocks_of(tables), edits.rows[edits.rows["line"].eq(STREAM)]

    def at_block(row: pd.Series[Any], on: str = "") -> str:
        return f"{place_in_words(row, blocks, is_brief=True)}{on} ({value_in_words(row)})"

    half = stream[stream["value"].ge(0.5)]
    if edits.at == "probed" and not half.empty:
        return (
            f"patching the residual stream {where(tables, edits.at)} first recovers half "
            f"{OF_EFFECT} at {at_block(half.iloc[0])}"
        )
    at_tokens = stream.dropna(subset="position")
    if edits.at != "each" or at_tokens.empty:
        return ""
    # The strongest token of each layer, and the layers at which it is another one than before.
    strongest = at_tokens.loc[at_tokens.groupby("depth")["value"].idxmax()].sort_values("depth")
    changes = strongest[strongest["position"].ne(strongest["position"].shift())]
    # More changes would make no readable sentence, and a negative value recovers nothing.
    if len(changes) > MOST_STEPS or not (strongest["value"] > 0).all():
        return ""
    steps = [
        f"{position_label(int(row['position']), tables.record)} from {at_block(row, ' on')}"
        for _, row in changes.iterrows()
    ]
    return f"patching the residual stream recovers most at {', at '.join(steps)}"


def verdict_tables(directions: Sequence[Direction]) -> list[tuple[ResultTable, Pairs]]:
    """Return the verdicts on directions as a table and in words; of many, two such pairs.

    Of more than `MOST_ROWS` directions, the first pair has that many: those that are used come
    first, then those with a larger `size`. A row has the site, the method and the edited tokens if
    directions differ in them, and flags of the direction; then for each question the answer, the
    effect with its interval, p, and a remark.
    """
    asked = {name for direction in directions for name in direction.found}
    questions = [name for name in (*QUESTIONS, "swap") if name in asked]
    differing = [name for name in ("along", "at") if len({one.row[name] for one in directions}) > 1]
    ordered = list(directions)
    if len(ordered) > MOST_ROWS:
        ordered.sort(key=lambda direction: (not direction.is_used, -direction.size))
    columns = [Column(name, "words", unit=_unit(directions, name)) for name in questions]
    tables = []
    for title, of_table in (
        ("Verdicts on directions", ordered[:MOST_ROWS]),
        ("Verdicts on the other directions", ordered[MOST_ROWS:]),
    ):
        rows, words = [], []
        for direction in of_table:
            # The name of a site, with underscores, keeps its spelling.
            site = direction.place if "_" in direction.place else capitalised(direction.place)
            details = (", ".join(DETAILS[direction.row[name]] for name in differing), "")
            flags = [(remark, "remark") for remark in _remarks(direction)]
            first = Cell(site, [details, *flags], hint=str(direction.row["site"]))
            answers = [_cell(direction.found.get(name)) for name in questions]
            rows.append((first, *answers))
            summaries = filter(None, (str(row["summary"]) for row in direction.found.values()))
            # The first summary in words, without the verdicts at its end, which the table contains.
            summary = next(summaries, "").partition(" Verdicts: ")[0]
            if summary:
                words.append((Cell(site, [details]), summary))
        if of_table:
            table = ResultTable(title, [Column("direction at", "site"), *columns], rows)
            tables.append((replace(table, css="verdict-table"), Pairs(words, css="summaries")))
    return tables


def _unit(directions: Sequence[Direction], name: str) -> str:
    """Return the unit of the column of a question; "" if directions differ in it."""
    units = {str(one.found[name]["unit"]) for one in directions if name in one.found}
    unit = next(iter(units)) if len(units) == 1 else ""
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
    return Cell(
        "–" if math.isnan(row["effect"]) else effect,
        [
            ("" if pd.isna(p) else p_words(float(p)), ""),
            ("; ".join(filter(None, remarks)), "remark"),
        ],
        lead=str(row["answer"]) if row["question"] != "swap" else "",
    )


def _remarks(direction: Direction) -> list[str]:
    """Return the flags of a direction as short sentences."""
    flags = [row["exceeds_whole"] for row in direction.found.values()]
    exceeds_whole = any(not pd.isna(flag) and flag for flag in flags)
    remarks = ["Moves more than its whole vector: possible artefact."] if exceeds_whole else []
    kernel = float(direction.row["kernel_share"])
    if kernel > MUCH:  # an unknown share is NaN, which is not larger
        remarks.append(f"{percent(kernel)} is in the kernel of the output matrix.")
    if direction.answer("steers") == "yes":
        steers = direction.found["steers"]
        if steers["effect"] < 0:
            remarks.append("Steers away from the class that it detects.")
        if not math.isnan(steers["wrong_way"]):
            remarks.append(f"{percent(steers['wrong_way'])} of texts move the wrong way.")
    return remarks
