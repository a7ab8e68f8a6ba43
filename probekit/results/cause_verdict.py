"""The verdict of interventions: what edits and directions show, computed once from their tables.

Pages, terminal and notebooks read the attributes of a `CauseVerdict`; none of them derives a fact
from the tables a second time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.interventions.names import measure_title
from probekit.results.table import EMBED_DEPTH, by_depth

UseCase = Literal["used", "hardly used", "not used", "use undecided"]

STREAM = "residual stream"
RECOVERY, EFFECT = "recovery", "effect"
USES = ("steers", "silences")
DIRECTION = ("site", "at", "along")  # columns that identify a direction
LITTLE = 0.1  # share of the network's answer, below which a use is small
MOST_STEPS = 3  # tokens in a transition


def named_sites(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by depth with their sites in words, in columns `place` and `short_place`.

    >>> rows = pd.DataFrame({"site": ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=5]"]})
    >>> named = named_sites(rows.assign(head=[math.nan, 5]))
    >>> named["place"].tolist()
    ['residual stream after block 1', 'head 5 of block 2']
    >>> named["short_place"].tolist()
    ['block 1', 'L2H5']
    """
    rows, names = by_depth(table), []
    for depth, line, part, head in rows[["depth", "line", "part", "head"]].itertuples(index=False):
        if line == STREAM and depth == EMBED_DEPTH:
            names.append(("embedding", "embedding"))
        elif line == STREAM:
            names.append((f"residual stream after block {depth}", f"block {depth}"))
        elif part == "attn.z" and not pd.isna(head):
            names.append((f"head {head:.0f} of block {depth}", f"L{depth}H{head:.0f}"))
        else:
            names.append((f"{line} of block {depth}", f"{line}, block {depth}"))
    words = pd.DataFrame(names, rows.index, ["place", "short_place"], dtype=object)
    return rows.assign(**words)


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
        rows: rows of `named_sites`, with the shown quantity as `value`, `ci_low` and `ci_high`.
        n_edits: number of edits for which `p_best` is adjusted: those at all choices of tokens.
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
    def of_heads(self) -> pd.DataFrame:
        """The rows of single attention heads."""
        return self.rows[self.rows["head"].notna()]


def edit_sets(effects: pd.DataFrame) -> Iterator[EditSet]:
    """Yield the sets of effects.csv, kinds of edit and measures in the order of the file.

    Rows without an effect, or without the shown quantity, are left out. Of rows at one place of the
    layer axis, only the first is kept: resid_pre of a block equals resid_post of the block before
    it.
    """
    kinds = ["do", "replacement", "measure", "unit"]
    defined = effects[np.isfinite(effects["effect"])]
    for (do, replacement, measure, unit), edits in defined.groupby(kinds, sort=False):
        shown = RECOVERY if np.isfinite(edits[RECOVERY]).any() else EFFECT
        low, high = f"{shown}_low", f"{shown}_high"
        valued = edits.assign(value=edits[shown], ci_low=edits[low], ci_high=edits[high])
        rows = named_sites(valued).replace([math.inf, -math.inf], math.nan)
        rows = rows.dropna(subset="value").drop_duplicates(["line", "depth", "at", "position"])
        for at, of_at in rows.groupby("at", sort=False):
            yield EditSet(do, replacement, measure, unit, str(at), shown, of_at, len(edits))


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction at a site with its verdicts.

    Attributes:
        row: a row of `named_sites` with the facts that all questions share.
        asked: the row of each question.
    """

    row: pd.Series[Any]
    asked: Mapping[str, pd.Series[Any]]

    def answer(self, question: str) -> str:
        """Return the verdict on a question; "" without one."""
        return str(self.asked[question]["answer"]) if question in self.asked else ""

    @cached_property
    def uses(self) -> tuple[str, ...]:
        """The `USES` that are certain: `yes`, also if p is adjusted for the best of all sites.

        If there is no such p, the verdict alone decides.
        """
        certain = (use for use in USES if self.answer(use) == "yes")
        return tuple(use for use in certain if not self.asked[use]["p_best"] >= LEVEL)

    @cached_property
    def size(self) -> float:
        """Largest share of the network's answer that depends on the direction.

        It is the share of the difference between the labels that erasure removes, or of the
        counterfactual's effect that a swap recovers. Without either, it is the effect of steering
        relative to that of the whole vector; it is 0 without any effect, or if that of the whole
        vector is 0 or unknown.
        """
        effects = {name: abs(float(row["effect"])) for name, row in self.asked.items()}
        shares = [effects.get(name, math.nan) for name in ("silences", "swap")]
        if not np.isnan(shares).all():
            return float(np.nanmax(shares))
        whole = abs(float(self.asked["steers"]["whole"])) if "steers" in effects else 0.0
        share = effects["steers"] / whole if whole > 0 else 0.0
        return 0.0 if math.isnan(share) else share


@dataclass(frozen=True, eq=False)
class CauseVerdict:
    """What the interventions of a run show.

    Attributes:
        sets: all effects of patches and ablations.
        measure: measure of the facts below: the first of the record with rows; "" without.
        main: the sets of this measure. Patches precede ablations; within both, edits of the probed
            token come first, then of each token, then of all tokens.
        transition: rows of the first set at which patches of the residual stream begin to recover
            the effect; see `_transition`.
        strongest: row of the first set with the largest absolute value; with a transition, among
            the other sites. None without rows.
        directions: the directions in the order of the forward pass.
        best: the direction that the answer names: of those that are used, the one with most uses,
            then with the largest size. If none is used, the one that detects the label best; None
            without directions.
        reasons: why uses are undecided, the most frequent reason first.
        patched: row of the patch of the whole vector at the site of `best`; None without one.
    """

    sets: Sequence[EditSet]
    measure: str
    main: Sequence[EditSet]
    transition: Sequence[pd.Series[Any]]
    strongest: pd.Series[Any] | None
    directions: Sequence[Direction]
    best: Direction | None
    reasons: Sequence[str]
    patched: pd.Series[Any] | None

    @classmethod
    def of(
        cls, measures: Sequence[str], effects: pd.DataFrame, verdicts: pd.DataFrame
    ) -> CauseVerdict:
        """Return the verdict from the rows of effects.csv and verdicts.csv.

        `measures` are the names of the measures in the order of the record.
        """
        sets, measured = list(edit_sets(effects)), set(effects["measure"])
        measure = next((name for name in measures if name in measured), "")
        main = sorted(
            (edits for edits in sets if edits.measure == measure),
            key=lambda edits: (edits.do != "patch", ("probed", "each", "all").index(edits.at)),
        )
        transition, strongest = _transition(main[0]) if main else [], None
        if main:
            rows = main[0].rows
            rows = rows[rows["line"] != STREAM] if transition else rows
            strongest = None if rows.empty else rows.iloc[int(np.argmax(rows["value"].abs()))]
        directions = [
            Direction(rows.iloc[0], {str(row["question"]): row for _, row in rows.iterrows()})
            for _, rows in named_sites(verdicts).groupby(list(DIRECTION), sort=False)
        ]
        best = max(directions, key=_rank, default=None)
        reasons = Counter(
            str(one.asked[use]["reason"])
            for one in directions
            for use in USES
            if one.answer(use) == "undecided" and one.asked[use]["reason"]
        )
        patched = None
        if best is not None:
            for edits in main:
                if edits.do == "patch" and edits.shown == RECOVERY and edits.at == best.row["at"]:
                    at_site = edits.rows[edits.rows["site"] == best.row["site"]]
                    patched = None if at_site.empty else at_site.iloc[0]
        most_frequent = [reason for reason, _ in reasons.most_common()]
        return cls(
            sets, measure, main, transition, strongest, directions, best, most_frequent, patched
        )

    @property
    def case(self) -> UseCase:
        """Whether a direction is used; without directions, that is undecided."""
        if self.best is not None and self.best.uses:
            return "used" if self.best.size >= LITTLE else "hardly used"
        answers = {one.answer(use) for one in self.directions for use in USES}
        return "not used" if answers == {"no"} else "use undecided"


def _rank(direction: Direction) -> tuple[int, float]:
    """Return the rank of a direction: see `CauseVerdict.best`."""
    if direction.uses:
        return len(direction.uses), direction.size
    detects = direction.asked.get("detects")
    effect = math.nan if detects is None else float(detects["effect"])
    return 0, -math.inf if math.isnan(effect) else effect


def _transition(edits: EditSet) -> Sequence[pd.Series[Any]]:
    """Return the rows at which patches of the residual stream begin to recover the effect.

    The first layers at the token in which texts differ and the last layers at the measured token
    recover it in any network, so the layers of the transition are reported: the first one that
    recovers half of the effect at the probed token, or for edits of each token those at which the
    strongest token is another one than before.

    There are none for edits of all tokens or without recoveries, or if the strongest token changes
    more than `MOST_STEPS` times or recovers nothing at a layer.
    """
    stream = edits.rows[edits.rows["line"].eq(STREAM)]
    if edits.shown != RECOVERY or edits.at == "all":
        return []
    if edits.at == "probed":
        rows = stream[stream["value"].ge(0.5)].head(1)
    else:
        at_tokens = stream.dropna(subset="position")
        strongest = at_tokens.loc[at_tokens.groupby("depth")["value"].idxmax()]
        rows = strongest[strongest["position"].ne(strongest["position"].shift())]
        if len(rows) > MOST_STEPS or not strongest["value"].gt(0).all():
            return []
    return [row for _, row in rows.iterrows()]
