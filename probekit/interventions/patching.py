"""Activation patching and ablation: replace activations by those of another text, or by a mean.

    patching   those of the text's counterfactual
    ablation   a mean, zero, or those of a random other text
    estimates  of every patch from one backward pass (attribution patching)

For each site, head and position one pass per text, which starts at the edited site (outside the
residual stream at the beginning of its block) and stops at the measured position. The measure is
that of the answer of the unedited text throughout.

Effects are means over all pairs, with intervals of a jackknife over groups, and

    recovery = sum(patched - base) / sum(source - base)

The ratio of sums is used, not the mean of ratios, because the denominator of a single text may be
close to 0. The p-value of a patch is the larger one of random signs and of a bootstrap of whole
groups; see `probekit.probes.score.differences`. Sizes and power are simulated by
`python -m benchmarks.patch_tests`.

The estimate of a patch is the gradient of the measure, times source minus base. It ranks grids of
sites, positions and heads; `patch_top` verifies the largest by patching them, because the estimate
is poor where the network is far from linear.

Source: Vig et al. (2020), Investigating gender bias in language models using causal mediation
analysis; Meng et al. (2022), Locating and editing factual associations in GPT; Wang et al. (2022),
Interpretability in the wild (mean ablation); Chan et al. (2022), Causal scrubbing (resampling);
Nanda (2023), Attribution patching; Kramár et al. (2024), AtP*; for `steps` above 1, Hanna et al.
(2024), Have faith in faithfulness (gradients averaged between source and base embeddings).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from probekit.amounts import counted
from probekit.errors import ConfigError, DataError, nearest
from probekit.interventions import edits
from probekit.interventions.measures import AnswerMeasure, check_pairs
from probekit.interventions.names import Replacement
from probekit.interventions.verdicts import ratio_of_sums, resamples_of, skewed_interval
from probekit.lazy_rows import Floats
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import head_or_neuron, part_features, remember
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SitePattern, SiteSelection
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metrics import mean_of_rows

PAIRS_AT_ONCE = 32

# All positions at once, each position in turn, or the given position of each text [batch].
Positions = Literal["all", "each"] | Tensor


@dataclass(frozen=True)
class Patch:
    """A site, head or neuron, and the position that is patched.

    Attributes:
        selection: the site, head or neuron.
        position: index counted from the left without padding, `all`, or `chosen`.
    """

    selection: SiteSelection
    position: int | str


class Runs(NamedTuple):
    """A patch, the texts that have its position, and their columns; None means all columns."""

    patch: Patch
    texts: Tensor
    columns: Tensor | None


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one site, head or neuron, over all pairs that have the position.

    Attributes:
        site: the site, with its head or neuron.
        layer: block of the site; None outside the blocks.
        head: head of the site; None for the whole site or a neuron.
        position: index of the position, counted from the left without padding; `all`; or `chosen`
            for a position of each text.
        base: mean measure of the clean texts.
        source: mean measure of the counterfactuals, for the answers of the clean texts.
        patched: mean measure of the clean texts with the patch.
        effect: `patched` minus `base`, with the limits of its interval `effect_low` and
            `effect_high`.
        recovery: share of the difference between source and base, a ratio of sums, with its limits
            `low` and `high`; NaN if 0 is in the interval of the difference.
        interchange: share of the pairs that prefer the wrong answer after the patch; NaN unless
            the measure is a logit difference or a probability, with a wrong answer.
        p: p-value of no mean effect over all pairs (0 for those without the position): the larger
            of those from random signs and from a bootstrap of whole groups; NaN below 6 groups.
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


def effects_of(
    values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> list[PatchEffect]:
    """Return the rows of `patch` from the measures of all pairs; `groups` (n_pairs,)."""
    resamples = resamples_of(groups)
    p_values = [(np.nan, np.nan)] * len(values.patched)
    if resamples.n_groups > 1:
        # A pair without the position has no effect there.
        changes = (np.nan_to_num(patched - values.base) for patched in values.patched.values())
        zeros = np.zeros(1 + resamples.n_units)  # the effects are compared with 0
        pairs = [(mean_of_rows(change, resamples), zeros) for change in changes]
        tests = paired_differences(pairs, resamples, is_skewed=True)
        p_values = [(test.p, test.p_adjusted) for test in tests]
    rows = []
    of_patches = zip(values.patched.items(), p_values, strict=True)
    for (patch, of_pairs), (patch_p, patch_p_best) in of_patches:
        known = ~np.isnan(of_pairs)
        patched, base, source = of_pairs[known], values.base[known], values.source[known]
        of_known = resamples_of(groups[known])
        effect = mean_of_rows(patched - base, of_known)
        interval = skewed_interval(effect, of_known)
        recovery = ratio_of_sums(patched - base, source - base, of_known)
        site = patch.selection
        row = PatchEffect(
            site=site.text,
            layer=layer_of(site.site),
            head=site.head,
            position=patch.position,
            base=float(base.mean()),
            source=float(source.mean()),
            patched=float(patched.mean()),
            effect=float(effect[0]),
            effect_low=interval.low,
            effect_high=interval.high,
            recovery=recovery.value,
            low=recovery.low,
            high=recovery.high,
            interchange=float((patched < 0).mean()) if measure.is_signed else np.nan,
            p=patch_p,
            p_best=patch_p_best,
            n=len(patched),
            groups=of_known.n_groups,
            measure=measure.name,
        )
        rows.append(row)
    return rows


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
        DataError: pairs of unequal numbers of tokens, or of equal texts (see `check_pairs`), groups
            or answers of another number of texts, or a position that does not exist.
        ConfigError: `at` is a word other than `all` and `each`.
        UnknownNameError: a pattern matches no site.

    >>> from probekit import GPT2, Tokenizer
    >>> from probekit.interventions.measures import single_tokens
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

    def source_of(rows: Tensor, base: edits.BasePass) -> edits.BasePass:
        """Return the pass of the counterfactuals, measured at the positions of the texts."""
        sites = [one.site for one in selected]
        return edits.BasePass.keep(model, corrupt[rows], base.measured, sites)

    return _replaced_values(model, clean, measures, selected, source_of, at, measured, only)


def ablated_values(
    model: Network,
    batch: TokenBatch,
    measures: Sequence[AnswerMeasure],
    selected: Sequence[SiteSelection],
    replacement: Replacement,
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    averaged: tuple[TokenBatch, Tensor | None] | None = None,
    seed: int = 0,
) -> list[PatchedValues]:
    """Return each measure of every text after ablation of each site, head or neuron.

    There are no counterfactuals: the attribute `source` of the values equals `base`.

    Args:
        model: the network.
        batch: the texts.
        measures: measures of the texts, which are scored from the same passes.
        selected: sites, heads or neurons; for `mean` parts of the residual stream.
        replacement: `mean`, `zero`, or `resample`: the activations of another text, at the same
            position from the left, or at its own chosen position.
        at: positions that are ablated; see `patch`.
        measured: position of each text that is measured, [batch]; None means the last token.
        averaged: for `mean`, the averaged texts, such as the training rows, and the position of
            each, [n_texts], or None for all; by default `batch` at its ablated positions.
        seed: random seed of `resample`.

    Raises:
        ConfigError: a mean of a site that is not a part of the residual stream.
        DataError: for `resample`, a text is the only one, or at all positions the only one with its
            number of tokens.

    >>> from probekit import GPT2, Tokenizer
    >>> from probekit.interventions.measures import single_tokens
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> batch = tokenizer.batch(["The keys"], bos=False, side="right")
    >>> answer, wrong = single_tokens(tokenizer, [" are", " is"])[:, None]
    >>> site = SiteSelection("blocks.3.hook_resid_post")
    >>> [found] = ablated_values(model, batch, [AnswerMeasure(answer, wrong)], [site], "zero")
    >>> len(found.patched)
    1
    """
    sites = list(dict.fromkeys(selection.site for selection in selected))
    means: dict[str, Tensor] = {}
    if replacement == "mean":
        for selection in selected:
            edits.linear_entry(model, selection)  # raises an error if there is none
        texts, place = averaged or (batch, at if isinstance(at, Tensor) else None)
        sums: dict[str, Tensor] = {}
        n_averaged = 0
        for rows in torch.split(torch.arange(len(texts)), PAIRS_AT_ONCE):
            kept = edits.BasePass.keep(model, texts[rows], None, sites)
            mask = kept.batch.mask
            mask = mask if place is None else edits.position_mask(place[rows], mask)
            n_averaged += int(mask.sum())
            for site in sites:
                sums[site] = sums.get(site, 0.0) + kept.values[site][mask].double().sum(0)
        means = {site: total / n_averaged for site, total in sums.items()}
    donors = np.full(len(batch), -1)  # the other text of each text
    if replacement == "resample":
        generator, lengths = np.random.default_rng(seed), batch.mask.sum(1).numpy()
        # At one position, a text of any length can replace it.
        kinds = np.zeros_like(lengths) if isinstance(at, Tensor) else lengths
        for kind in np.unique(kinds):
            same = np.flatnonzero(kinds == kind)
            if len(same) > 1:
                shuffled = generator.permutation(same)
                donors[shuffled] = np.roll(shuffled, 1)  # no text receives its own activations
        alone = np.flatnonzero(donors < 0)
        if len(alone):
            raise DataError(
                f"{counted(len(alone), 'text')} of {len(lengths)} have no other text with as many "
                f"tokens, such as row {alone[0]} with {lengths[alone[0]]} tokens, so that no text "
                "can replace all their activations. Ablate with `mean` or `zero`, or at the "
                "probed token."
            )

    def constant(_: Tensor, base: edits.BasePass) -> edits.BasePass:
        """Return the pass with the mean of each site or, without means, with zeros."""
        values = {}
        for site, value in base.values.items():
            mean = means[site].to(value) if site in means else torch.zeros_like(value)
            values[site] = mean.expand_as(value)
        return replace(base, values=values)

    def of_donors(rows: Tensor, base: edits.BasePass) -> edits.BasePass:
        """Return the pass with the activations of the donors of texts, at `at` or everywhere."""
        donor_rows = torch.from_numpy(donors)[rows]
        donated = edits.BasePass.keep(model, batch[donor_rows], None, sites).values
        if not isinstance(at, Tensor):
            return replace(base, values=donated)
        # The value at the donor's position moves to the position that is replaced.
        texts = torch.arange(len(rows), device=base.final.device)
        target, origin = (at[which].reshape(-1).to(texts.device) for which in (rows, donor_rows))
        values = {site: base.values[site].clone() for site in sites}
        for site in sites:
            values[site][texts, target] = donated[site][texts, origin]
        return replace(base, values=values)

    source_of = of_donors if replacement == "resample" else constant
    return _replaced_values(model, batch, measures, selected, source_of, at, measured)


def _replaced_values(
    model: Network,
    batch: TokenBatch,
    measures: Sequence[AnswerMeasure],
    selected: Sequence[SiteSelection],
    source_of: Callable[[Tensor, edits.BasePass], edits.BasePass],
    at: Positions,
    measured: Tensor | None,
    only: Iterable[Patch] | None = None,
) -> list[PatchedValues]:
    """Return each measure of every text with activations replaced by those of another pass.

    `source_of` returns that pass, given the rows of some texts and their pass without edits. See
    `patch` for the other arguments.
    """
    n = len(batch)
    for measure in measures:
        if len(measure) != n:
            raise DataError(f"The measure has answers for {len(measure)} texts, not for all {n}.")
    if isinstance(at, str) and at not in ("all", "each"):
        raise ConfigError(
            f"at is {at!r}. Allowed: 'all', 'each', or a position of each text. "
            f"{nearest(at, ('all', 'each'))}"
        )
    wanted = None if only is None else set(only)
    of_measures = [PatchedValues(np.empty(n), np.empty(n), {}) for _ in measures]
    sites = [one.site for one in selected]
    for rows in torch.split(torch.arange(n), PAIRS_AT_ONCE):
        rows_measured = None if measured is None else measured[rows]
        base = edits.BasePass.keep(model, batch[rows], rows_measured, sites)
        source = source_of(rows, base)
        grid = patch_grid(selected, at[rows] if isinstance(at, Tensor) else at, base.batch.mask)
        grid = [runs for runs in grid if wanted is None or runs.patch in wanted]
        # All predictions: without edits, of the sources, and of each patch; and the text of each.
        finals = torch.cat([base.final, source.final, *_finals(grid, base, source)])
        everything = torch.arange(len(rows), device=base.final.device)
        texts = [everything, everything, *(runs.texts for runs in grid)]
        numbers = rows.numpy()
        for values, measure in zip(of_measures, measures, strict=True):
            scores = measure[rows].score(model, finals, torch.cat(texts), base.final).cpu()
            parts = [part.numpy() for part in torch.split(scores, [len(part) for part in texts])]
            values.base[numbers], values.source[numbers] = parts[:2]
            for runs, of_patch in zip(grid, parts[2:], strict=True):
                column = values.patched.setdefault(runs.patch, np.full(n, np.nan))
                column[numbers[runs.texts.cpu().numpy()]] = of_patch
    # Patches are sorted by site; the positions of a site are in order already.
    order = {selection: number for number, selection in enumerate(selected)}
    for values in of_measures:
        patches = sorted(values.patched, key=lambda patch: order[patch.selection])
        for patch in patches:
            values.patched[patch] = values.patched.pop(patch)
    return of_measures


def patch_grid(selected: Sequence[SiteSelection], at: Positions, mask: Tensor) -> list[Runs]:
    """Return all patches of texts with a mask, those at equal positions next to each other."""
    everything = torch.arange(len(mask), device=mask.device)
    if isinstance(at, Tensor):
        edits.position_mask(at, mask)  # raises an error if a position does not exist
        columns = at.to(mask.device).reshape(-1)
        return [Runs(Patch(one, "chosen"), everything, columns) for one in selected]
    if at == "all":
        return [Runs(Patch(one, "all"), everything, None) for one in selected]
    first, lengths = mask.int().argmax(1), mask.sum(1)
    grid: list[Runs] = []
    for position in range(int(lengths.max())):
        texts = everything[lengths > position]
        columns = first[texts] + position
        grid += [Runs(Patch(one, position), texts, columns) for one in selected]
    return grid


def _finals(grid: Sequence[Runs], base: edits.BasePass, source: edits.BasePass) -> list[Tensor]:
    """Return the final residual stream [n d_model] of the passes of each patch.

    Patches that enter the residual stream at the same place and position share their batches.
    """
    finals: dict[int, Tensor] = {}
    together: dict[tuple[int, bool, int | str], list[int]] = defaultdict(list)
    for number, (patch, texts, columns) in enumerate(grid):
        selection, mask = patch.selection, None
        entry = edits.stream_entry(base.model, selection)
        if entry is None:  # a site outside the stream: passes with a tap
            values = head_or_neuron(base.model.sites, source.values[selection.site], selection)
            if columns is not None:
                mask = torch.zeros_like(base.batch.mask)
                mask[texts, columns] = True
            finals[number] = base.tapped(selection, edits.replace(values, mask))[texts]
        else:
            together[entry.layer, entry.after_attention, patch.position].append(number)
    for numbers in together.values():
        shifted = _shifted([grid[number] for number in numbers], base, source)
        sizes = [len(grid[number].texts) for number in numbers]
        finals |= zip(numbers, torch.split(shifted, sizes), strict=True)
    return [finals[number] for number in range(len(grid))]


def _shifted(grid: Sequence[Runs], base: edits.BasePass, source: edits.BasePass) -> Tensor:
    """Return the final residual streams of patches that enter the stream at the same place.

    All patches are at all positions, or all are at one position of each text.
    """
    selections = [runs.patch.selection for runs in grid]
    entries = [edits.linear_entry(base.model, selection) for selection in selections]
    texts = torch.cat([runs.texts for runs in grid])

    def change(which: int, *place: Tensor) -> Tensor:
        """Return the change by a patch; `place` are texts, and their columns unless all change."""
        source_value, base_value = (kept.value(selections[which]) for kept in (source, base))
        return entries[which].in_stream(source_value[place] - base_value[place])

    columns = [runs.columns for runs in grid if runs.columns is not None]
    if columns:
        places = zip([runs.texts for runs in grid], columns, strict=True)
        changes = torch.cat([change(which, *place) for which, place in enumerate(places)])
        return base.shifted(entries[0], lambda passes: changes[passes], texts, torch.cat(columns))
    n_texts = len(base.batch)

    def changes_of(passes: Tensor) -> Tensor:
        """Return the changes by passes with these numbers; see `BasePass.shifted`."""
        # Passes ascend, and each patch has one of every text: a patch of all texts, then the next.
        patches, rows = passes // n_texts, passes % n_texts
        in_order = torch.unique(patches).tolist()
        return torch.cat([change(which, rows[patches == which]) for which in in_order])

    return base.shifted(entries[0], changes_of, texts)


_WITH_GRADIENT = ("logit_difference", "probability", "loss")


@dataclass(frozen=True)
class AttributedPatch:
    """A patch of a grid with its estimated and, if it was among the largest, verified effect.

    Attributes:
        patch: the site, head or neuron, and the position.
        estimate: estimated mean effect.
        verified: effect by patching; None if it was not verified. Its `p_best` is adjusted for the
            whole grid (Bonferroni), because the estimates use the same pairs.
    """

    patch: Patch
    estimate: float
    verified: PatchEffect | None = None


def estimated_effects(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    sites: SitePattern | Iterable[SitePattern],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    steps: int = 1,
) -> dict[Patch, Floats]:
    """Return the estimated effect of each patch on each pair, (n_pairs,); NaN without its position.

    Args:
        model: the network.
        clean: the base texts.
        corrupt: their counterfactuals, with equal numbers of tokens.
        measure: a measure with a gradient: logit_difference, probability or loss.
        sites: names, globs, shorthands, heads or neurons.
        at: `all`, `each`, or a position of each text; see `patch`.
        measured: position of each text whose prediction is measured; None means the last token.
        steps: number of points between the embeddings of base and source at which gradients are
            averaged; 1 uses the gradient at the base.

    Raises:
        ConfigError: the measure has no gradient, or the network is spread over several devices.
        DataError: pairs of unequal numbers of tokens, or of equal texts; see `check_pairs`.
        UnknownNameError: a pattern matches no site.

    >>> from probekit import GPT2, Tokenizer
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> clean = tokenizer.batch(["The key"], bos=False, side="left")
    >>> corrupt = tokenizer.batch(["The keys"], bos=False, side="left")
    >>> measure = AnswerMeasure(torch.tensor([8]), torch.tensor([9]))
    >>> len(estimated_effects(model, clean, corrupt, measure, "blocks.*.attn.hook_z[head=*]"))
    24
    """
    model.check_one_device()
    check_pairs(clean, corrupt)
    if measure.name not in _WITH_GRADIENT:
        raise ConfigError(
            f"{measure.name} has no gradient at the base. Attribution patching requires one of "
            f"{', '.join(_WITH_GRADIENT)}."
        )
    selected = model.sites.select(sites)
    names = list(dict.fromkeys(one.site for one in selected))
    last = f"blocks.{model.axis_sizes['n_layers'] - 1}.hook_resid_post"
    first = model.sites[0]  # the embedding, or the stream before the first block
    estimates: dict[Patch, Floats] = {}
    if measured is None:  # the largest column that has a token
        measured = (clean.mask * torch.arange(clean.mask.shape[1])).argmax(1)
    for rows in torch.split(torch.arange(len(clean)), PAIRS_AT_ONCE):
        measured_at = measured[rows].to(model.device)
        clean_batch, corrupt_batch = clean[rows].to(model.device), corrupt[rows].to(model.device)
        numbers = torch.arange(len(rows), device=model.device)
        # The estimate at each position, from the gradients at points between base and source.
        with torch.no_grad():
            base, source = (
                model.run_with_cache(batch, [first, *names], logits=False)[1]
                for batch in (clean_batch, corrupt_batch)
            )
        total = {site: torch.zeros_like(base[site]) for site in names}
        for step in range(steps):
            # Several points are the midpoints of equal steps from base (0) to source (1).
            share = (step + 0.5) / steps if steps > 1 else 0.0
            embed = base[first] + share * (source[first] - base[first])
            values: dict[str, Tensor] = {}
            # Taps that store the activations of each site in `values`, with their gradients.
            kept = [(site, remember(values, grad=True)) for site in dict.fromkeys([*names, last])]
            tap = edits.compose(model, [(first, edits.replace(embed)), *kept])
            with torch.enable_grad():
                model(clean_batch, tap=tap, sites=tap.sites, logits=False)
                final = values[last][numbers, measured_at]
                scores = measure[rows].score(model, final, numbers, final.detach())
                tensors = [values[site] for site in names]
                gradients = torch.autograd.grad(scores.sum(), tensors, allow_unused=True)
            for site, gradient in zip(names, gradients, strict=True):
                if gradient is not None:  # the prediction depends on the site
                    total[site] += gradient.detach() / steps
        change = {site: total[site] * (source[site] - base[site]) for site in names}
        mask, at_rows = clean_batch.mask, (at[rows] if isinstance(at, Tensor) else at)
        for selection in selected:
            # Attention scores that are masked are infinite in both passes: their change is NaN.
            parts = part_features(model.sites, change[selection.site].nan_to_num(), selection)
            sums = (parts.sum(-1) * mask).double().cpu()
            for patch, texts, columns in patch_grid([selection], at_rows, mask):
                pairs = texts.cpu()  # those that have the position
                of_pairs = sums.sum(1)[pairs] if columns is None else sums[pairs, columns.cpu()]
                of_patch = estimates.setdefault(patch, np.full(len(clean), np.nan))
                of_patch[rows[pairs].numpy()] = of_pairs.numpy()
    return estimates


def patch_top(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    estimates: Mapping[Patch, Floats],
    *,
    top: int = 20,
    at: Positions = "all",
    measured: Tensor | None = None,
    groups: ArrayLike | None = None,
) -> list[AttributedPatch]:
    """Return all estimated patches, the largest with their verified effects.

    Args:
        model: the network.
        clean: the base texts.
        corrupt: their counterfactuals, with equal numbers of tokens.
        measure: the measure of the estimates.
        estimates: result of `estimated_effects` for these pairs.
        top: number of patches with the largest absolute mean estimates that are verified.
        at: positions of the estimates.
        measured: position of each text whose prediction is measured; None means the last token.
        groups: group of each pair; None means that pairs are independent.
    """
    means = {patch: float(np.nanmean(values)) for patch, values in estimates.items()}
    largest = sorted(means, key=lambda patch: -abs(means[patch]))[:top]
    selected = list(dict.fromkeys(patch.selection for patch in means))
    [values] = patched_values(
        model, clean, corrupt, [measure], selected, at=at, measured=measured, only=largest
    )
    names = np.arange(len(clean)) if groups is None else np.asarray(groups)
    rows = effects_of(values, measure, names)
    verified = {
        patch: replace(row, p_best=float(np.minimum(1.0, row.p * len(means))))  # NaN stays NaN
        for patch, row in zip(values.patched, rows, strict=True)
    }
    return [AttributedPatch(patch, mean, verified.get(patch)) for patch, mean in means.items()]
