"""Activation patching: replace activations of a text by those of its counterfactual.

For each site, head and position one pass per pair, which starts at the patched site and stops at
the measured position. The measure is that of the answer of the clean text throughout.

Source: Vig et al. (2020), Investigating gender bias in language models using causal mediation
analysis; Meng et al. (2022), Locating and editing factual associations in GPT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probekit.errors import ConfigError, DataError, nearest
from probekit.interventions import edits
from probekit.interventions.base_pass import BasePass, sites_to_keep
from probekit.interventions.edits import position_mask
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching.pairs import check_pairs
from probekit.interventions.patching.patch_effects import (
    Patch,
    PatchedValues,
    PatchEffect,
    effects_of,
)
from probekit.interventions.stream import linear_entry, stream_entry
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import head_or_neuron
from probekit.model.sites.sites import SitePattern, SiteSelection
from probekit.probes.solve.design import Floats

PAIRS_AT_ONCE = 32

# All positions at once, each position in turn, or the given position of each text [batch].
Positions = Literal["all", "each"] | Tensor


def patch(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    sites: SitePattern | Iterable[SitePattern],
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
    >>> from probekit.interventions.patching.pairs import single_tokens
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
    selected = model.sites.select(sites)
    [values] = patched_values(model, clean, corrupt, [measure], selected, at=at, measured=measured)
    names = np.arange(len(clean)) if groups is None else np.asarray(groups)
    if len(names) != len(clean):
        raise DataError(f"There are {len(names)} groups for {len(clean)} pairs. Give one for each.")
    return effects_of(values, measure, names)


def patched_values(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measures: Sequence[AnswerMeasure],
    selected: Sequence[SiteSelection],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    only: Iterable[Patch] | None = None,
) -> list[PatchedValues]:
    """Return each measure of every pair and patch, from the same passes; see `patch`.

    `only` restricts the passes to some patches. Pairs are processed in batches of
    `PAIRS_AT_ONCE`, so that memory does not grow with their number.
    """
    check_pairs(clean, corrupt)

    def source_of(rows: Tensor, base: BasePass) -> BasePass:
        return BasePass.keep(model, corrupt[rows], base.measured, sites_to_keep(selected))

    return replaced_values(
        model, clean, measures, selected, source_of, at=at, measured=measured, only=only
    )


def replaced_values(
    model: Network,
    batch: TokenBatch,
    measures: Sequence[AnswerMeasure],
    selected: Sequence[SiteSelection],
    source_of: Callable[[Tensor, BasePass], BasePass],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    only: Iterable[Patch] | None = None,
) -> list[PatchedValues]:
    """Return each measure of every text with activations replaced by those of another pass.

    `source_of` returns that pass, given the rows of some texts and their pass without edits. See
    `patch` for the other arguments.
    """
    _check_rows(len(batch), measures, at)
    wanted = None if only is None else set(only)
    parts: list[list[PatchedValues]] = [[] for _ in measures]
    for rows in torch.split(torch.arange(len(batch)), PAIRS_AT_ONCE):
        own_measured = None if measured is None else measured[rows]
        base = BasePass.keep(model, batch[rows], own_measured, sites_to_keep(selected))
        source = source_of(rows, base)
        own_at = at[rows] if isinstance(at, Tensor) else at
        grid = [
            one for one in _grid(selected, own_at, base) if wanted is None or one.patch in wanted
        ]
        finals = _finals(grid, base, source)
        for own, measure in zip(parts, measures, strict=True):
            own.append(_scored(grid, finals, base, source, measure[rows]))
    return [_joined(own, selected) for own in parts]


@dataclass(frozen=True, eq=False)
class _Runs:
    """Passes of one patch: the texts that have its position, and their columns; None means all."""

    patch: Patch
    rows: Tensor
    columns: Tensor | None


def _check_rows(n: int, measures: Sequence[AnswerMeasure], at: Positions) -> None:
    for measure in measures:
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
    values = head_or_neuron(base.model.sites, source.values[selection.site], selection)
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
