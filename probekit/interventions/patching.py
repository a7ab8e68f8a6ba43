"""Activation patching: replace activations of a text by those of its counterfactual.

For each site, head and position one pass per pair, which starts at the patched site and stops at
the measured position. The measure is that of the answer of the clean text throughout.

Source: Vig et al. (2020), Investigating gender bias in language models using causal mediation
analysis; Meng et al. (2022), Locating and editing factual associations in GPT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError, nearest
from probekit.interventions import edits
from probekit.interventions.base_pass import BasePass, sites_to_keep
from probekit.interventions.compose import all_selections, selected_part
from probekit.interventions.edits import position_mask
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.pairs import check_pairs
from probekit.interventions.recovery import mean_interval, ratio_of_sums, resamples_of
from probekit.model.inputs import TokenBatch
from probekit.model.network import Network
from probekit.model.sites import SitePattern, SiteSelection, layer_of
from probekit.model.stream import linear_entry, stream_entry
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metrics import mean_of_rows
from probekit.probes.solve.design import Floats

PAIRS_AT_ONCE = 32

# All positions at once, each position in turn, or the given position of each text [batch].
Positions = Literal["all", "each"] | Tensor


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one site, head or neuron at some position, over all pairs.

    Attributes:
        site: the site, with its head or neuron.
        layer: block of the site; None outside the blocks.
        head: head of the site; None for the whole site.
        position: index of the position, counted from the left without padding; `all`; or `chosen`
            for a position of each text.
        base: mean measure of the clean texts.
        source: mean measure of the counterfactuals, for the answers of the clean texts.
        patched: mean measure of the clean texts with the patch.
        effect: `patched` minus `base`, with the limits of its interval `effect_low` and
            `effect_high`.
        recovery: share of the difference between source and base, a ratio of sums, with its limits
            `low` and `high`; NaN if 0 is in the interval of the difference.
        interchange: share of the pairs that prefer the wrong answer after the patch; NaN without a
            wrong answer or for another measure.
        p: p-value of no mean effect, from random signs of whole groups; NaN for less than 6 groups.
        p_best: the same, adjusted for all sites, heads and positions of the call.
        n: number of pairs that have this position.
        groups: number of groups of these pairs.
        measure: name of the measure.
    """

    site: str
    layer: int | None
    head: int | None
    position: int | str
    base: float
    source: float
    patched: float
    effect: float
    effect_low: float
    effect_high: float
    recovery: float
    low: float
    high: float
    interchange: float
    p: float
    p_best: float
    n: int
    groups: int
    measure: str


@dataclass(frozen=True)
class Patch:
    """A site, head or neuron, and the position that is patched.

    Attributes:
        selection: the site, head or neuron.
        position: index counted from the left without padding, `all`, or `chosen`.
    """

    selection: SiteSelection
    position: int | str


def patch(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    sites: SitePattern | Iterable[SitePattern | SiteSelection],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    groups: ArrayLike | None = None,
) -> list[PatchEffect]:
    """Return the effect of patching activations of `corrupt` into `clean`.

    Swap the two batches to patch the clean activations into the corrupted texts.

    Args:
        model: the network.
        clean: the base texts.
        corrupt: their counterfactuals, the sources of activations, with equal numbers of tokens.
        measure: measure for the answers of the clean texts.
        sites: names, globs, shorthands, heads or neurons such as `blocks.*.attn.hook_z[head=*]`.
        at: positions that are patched: `all` at once, `each` in turn, or one of each text, as
            column numbers [batch].
        measured: position of each text whose prediction is measured, [batch]; None means the last
            token.
        groups: group of each pair, (n_pairs,); None means that pairs are independent.

    Returns:
        One row for each site, head and position, in the order of the forward pass.

    Raises:
        DataError: pairs of unequal numbers of tokens, or of equal texts; see `check_pairs`.
        UnknownNameError: a pattern matches no site.

    >>> from probekit import GPT2, Tokenizer
    >>> from probekit.interventions.pairs import single_tokens
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> clean = tokenizer.batch(["The key"], bos=False, side="left")
    >>> corrupt = tokenizer.batch(["The keys"], bos=False, side="left")
    >>> answer, wrong = single_tokens(tokenizer, [" is", " are"])[:, None]
    >>> rows = patch(
    ...     model, clean, corrupt, AnswerMeasure(answer, wrong), "blocks.*.hook_resid_post",
    ...     at="each",
    ... )
    >>> len(rows), round(rows[-1].recovery, 4)  # last block, last position
    (12, 1.0)
    """
    selected = all_selections(model, sites)
    values = patched_values(model, clean, corrupt, measure, selected, at=at, measured=measured)
    names = np.arange(len(clean)) if groups is None else np.asarray(groups)
    if len(names) != len(clean):
        raise DataError(f"There are {len(names)} groups for {len(clean)} pairs. Give one for each.")
    return effects_of(values, measure, names)


@dataclass(frozen=True, eq=False)
class PatchedValues:
    """Measures of all pairs, before statistics.

    Attributes:
        base: measure of the clean texts, (n_pairs,).
        source: measure of the counterfactuals, (n_pairs,).
        patched: measure of each patch, (n_pairs,), NaN for pairs without its position.
    """

    base: Floats
    source: Floats
    patched: dict[Patch, Floats]


def patched_values(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    selected: Sequence[SiteSelection],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    only: Iterable[Patch] | None = None,
) -> PatchedValues:
    """Return the measure of every pair and patch; see `patch`.

    `only` restricts the passes to some patches. Pairs are processed in batches of
    `PAIRS_AT_ONCE`, so that memory does not grow with their number.
    """
    check_pairs(clean, corrupt)
    _check_rows(len(clean), measure, at)
    wanted = None if only is None else set(only)
    parts = []
    for rows in torch.split(torch.arange(len(clean)), PAIRS_AT_ONCE):
        own_measured = None if measured is None else measured[rows]
        names = sites_to_keep(selected)
        base = BasePass.keep(model, clean[rows], own_measured, names)
        source = BasePass.keep(model, corrupt[rows], own_measured, names)
        own_at = at[rows] if isinstance(at, Tensor) else at
        grid = [one for one in _grid(selected, own_at, base) if not wanted or one.patch in wanted]
        finals = _finals(grid, base, source)
        parts.append(_scored(grid, finals, base, source, measure[rows]))
    return _joined(parts, selected)


def effects_of(
    values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> list[PatchEffect]:
    """Return the rows of `patch` from the measures of all pairs; `groups` (n_pairs,)."""
    resamples = resamples_of(groups)
    rows = [_effect(key, values, measure, groups) for key in values.patched]
    if resamples.n_groups < 2:
        return rows
    base = mean_of_rows(values.base, resamples)
    # A pair without the position has no effect there.
    filled = [np.where(np.isnan(own), values.base, own) for own in values.patched.values()]
    tests = paired_differences([(mean_of_rows(own, resamples), base) for own in filled], resamples)
    return [
        replace(row, p=test.p, p_best=test.p_adjusted)
        for row, test in zip(rows, tests, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _Runs:
    """Passes of one patch: the texts that have its position, and their columns; None means all."""

    patch: Patch
    rows: Tensor
    columns: Tensor | None


def _check_rows(n: int, measure: AnswerMeasure, at: Positions) -> None:
    if len(measure) != n:
        raise DataError(f"The measure has answers for {len(measure)} texts, not for all {n}.")
    if isinstance(at, str) and at not in ("all", "each"):
        raise ConfigError(
            f"at is {at!r}. Allowed: 'all', 'each', or a position of each text. "
            f"{nearest(at, ('all', 'each'))}"
        )


def _grid(selected: Sequence[SiteSelection], at: Positions, base: BasePass) -> list[_Runs]:
    """Return all patches, those at equal positions next to each other."""
    mask = base.batch.mask
    everything = torch.arange(len(mask), device=mask.device)
    if isinstance(at, Tensor):
        position_mask(at, mask)
        columns = at.to(mask.device).reshape(-1)
        return [_Runs(Patch(one, "chosen"), everything, columns) for one in selected]
    if at == "all":
        return [_Runs(Patch(one, "all"), everything, None) for one in selected]
    first, lengths = mask.int().argmax(1), mask.sum(1)
    grid = []
    for position in range(int(lengths.max())):
        rows = everything[lengths > position]
        columns = first[rows] + position
        grid += [_Runs(Patch(one, position), rows, columns) for one in selected]
    return grid


def _finals(grid: Sequence[_Runs], base: BasePass, source: BasePass) -> list[Tensor]:
    """Return the final residual stream [n d_model] of the passes of each patch.

    Patches that enter the residual stream at the same place and position share their batches.
    """
    finals: dict[int, Tensor] = {}
    together: dict[tuple[int, bool, int | str], list[int]] = defaultdict(list)
    for number, runs in enumerate(grid):
        entry = stream_entry(base.model, runs.patch.selection)
        if entry is None:
            finals[number] = _tapped(runs, base, source)
        else:
            place = entry.layer, entry.after_attention, runs.patch.position
            together[place].append(number)
    for numbers in together.values():
        some = [grid[number] for number in numbers]
        run = _shifted if some[0].columns is None else _shifted_at
        sizes = [len(runs.rows) for runs in some]
        for number, own in zip(numbers, torch.split(run(some, base, source), sizes), strict=True):
            finals[number] = own
    return [finals[number] for number in range(len(grid))]


def _shifted_at(some: Sequence[_Runs], base: BasePass, source: BasePass) -> Tensor:
    changes, columns = [], []
    for runs in some:
        assert runs.columns is not None
        selection, place = runs.patch.selection, (runs.rows, runs.columns)
        change = source.value(selection)[place] - base.value(selection)[place]
        changes.append(linear_entry(base.model, selection).in_stream(change))
        columns.append(runs.columns)
    entry = linear_entry(base.model, some[0].patch.selection)
    rows = torch.cat([runs.rows for runs in some])
    return base.shifted_at(entry, torch.cat(changes), rows, torch.cat(columns))


def _shifted(some: Sequence[_Runs], base: BasePass, source: BasePass) -> Tensor:
    n = len(base.batch)
    entries = [linear_entry(base.model, runs.patch.selection) for runs in some]

    def change(numbers: Tensor) -> Tensor:
        parts = []
        for which in torch.unique(numbers // n).tolist():
            selection, rows = some[which].patch.selection, numbers[numbers // n == which] % n
            own = source.value(selection)[rows] - base.value(selection)[rows]
            parts.append(entries[which].in_stream(own))
        return torch.cat(parts)

    return base.shifted(entries[0], change, torch.cat([runs.rows for runs in some]))


def _tapped(runs: _Runs, base: BasePass, source: BasePass) -> Tensor:
    """Return the final residual streams of passes with a tap, for sites outside the stream."""
    selection = runs.patch.selection
    values = selected_part(source.values[selection.site], selection)
    at = None
    if runs.columns is not None:
        at = torch.zeros_like(base.batch.mask)
        at[runs.rows, runs.columns] = True
    return base.tapped(selection, edits.replace(values, at))[runs.rows]


def _scored(
    grid: Sequence[_Runs],
    finals: Sequence[Tensor],
    base: BasePass,
    source: BasePass,
    measure: AnswerMeasure,
) -> PatchedValues:
    everything = torch.arange(len(base.batch), device=base.final.device)
    score = partial(measure.score, base.model, base=base.final)
    all_rows = torch.cat([everything, everything, *(runs.rows for runs in grid)])
    scores = score(torch.cat([base.final, source.final, *finals]), all_rows).cpu().numpy()
    n = len(everything)
    patched, done = {}, 2 * n
    for runs in grid:
        own = np.full(n, np.nan)
        own[runs.rows.cpu().numpy()] = scores[done : done + len(runs.rows)]
        patched[runs.patch] = own
        done += len(runs.rows)
    return PatchedValues(scores[:n], scores[n : 2 * n], patched)


def _joined(parts: Sequence[PatchedValues], selected: Sequence[SiteSelection]) -> PatchedValues:
    """Return the values of all pairs, with patches in the order of the forward pass."""
    order = {selection: number for number, selection in enumerate(selected)}

    def rank(key: Patch) -> tuple[int, int]:
        return order[key.selection], key.position if isinstance(key.position, int) else -1

    def column(part: PatchedValues, key: Patch) -> Floats:
        return part.patched.get(key, np.full(len(part.base), np.nan))

    keys = sorted({key for part in parts for key in part.patched}, key=rank)
    return PatchedValues(
        np.concatenate([part.base for part in parts]),
        np.concatenate([part.source for part in parts]),
        {key: np.concatenate([column(part, key) for part in parts]) for key in keys},
    )


def _effect(
    key: Patch, values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> PatchEffect:
    """Return the row of one patch, without p-values."""
    known = ~np.isnan(values.patched[key])
    patched, base, source = (x[known] for x in (values.patched[key], values.base, values.source))
    resamples = resamples_of(groups[known])
    effect = mean_interval(patched - base, resamples)
    recovery = ratio_of_sums(patched - base, source - base, resamples)
    return PatchEffect(
        site=key.selection.text,
        layer=layer_of(key.selection.site),
        head=key.selection.head,
        position=key.position,
        base=float(base.mean()),
        source=float(source.mean()),
        patched=float(patched.mean()),
        effect=effect.value,
        effect_low=effect.low,
        effect_high=effect.high,
        recovery=recovery.value,
        low=recovery.low,
        high=recovery.high,
        interchange=float((patched < 0).mean()) if measure.is_signed else float("nan"),
        p=float("nan"),
        p_best=float("nan"),
        n=len(patched),
        groups=resamples.n_groups,
        measure=measure.name,
    )
