"""Measures of many texts after edits along many directions.

Every edit along a direction adds a multiple of one vector to the residual stream. All texts,
directions and doses are rows of one batch that starts at the edited site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.interventions.base_pass import BasePass
from probekit.interventions.causes.directions import DirectionSet
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.stream import StreamEntry, linear_entry
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from probekit.probes.solve.design import Floats

TEXTS_AT_ONCE = 128
_CHANGE_BYTES = 64 << 20  # changes of the residual stream of one block of directions


@dataclass(frozen=True, eq=False)
class Responder:
    """Texts that are edited at one site, head or neuron, and their measure.

    Attributes:
        model: the network.
        batch: the texts.
        selection: where they are edited; a part of the residual stream.
        at: position of each text that is edited, [n_texts]; None means all positions.
        measure: measure of the texts.
        measured: position of each text that is measured; None means the last token.
        read: position of each text whose activations are the features; None means `at`, or else
            `measured`.
    """

    model: Network
    batch: TokenBatch
    selection: SiteSelection
    at: Tensor | None
    measure: AnswerMeasure
    measured: Tensor | None = None
    read: Tensor | None = None

    @cached_property
    def entry(self) -> StreamEntry:
        """Where the edits enter the residual stream."""
        return linear_entry(self.model, self.selection)

    def base(self) -> Floats:
        """Return the measure without edits, (n_texts,)."""
        parts = [part.score(part.kept.final, part.everything) for part in self._parts(self.batch)]
        return np.concatenate(parts)

    def features(self) -> Floats:
        """Return the activations at the positions that are read, (n_texts, n_features)."""
        return np.concatenate([part.own_features() for part in self._parts(self.batch)])

    def steered(self, directions: DirectionSet, by: Sequence[float]) -> Floats:
        """Return the measure after x + k s u, (n_texts, n_directions, n_doses)."""
        doses = directions.spread[:, None] * np.asarray(by)
        return np.concatenate(
            [part.along(directions, doses[None]) for part in self._parts(self.batch)]
        )

    def erased(self, directions: DirectionSet) -> Floats:
        """Return the measure after erasing each direction, (n_texts, n_directions)."""
        parts = []
        for part in self._parts(self.batch):
            reading, mean = part.tensor(directions.reading), part.tensor(directions.mean)
            parts.append(part.along_tokens(directions, -(part.value - mean) @ reading.T))
        return np.concatenate(parts)

    def swapped(self, directions: DirectionSet, sources: TokenBatch) -> Floats:
        """Return the measure after exchange along each direction, (n_texts, n_directions).

        `sources` are counterfactuals of the texts, with equal numbers of tokens.
        """
        parts = []
        for part, other in zip(self._parts(self.batch), self._parts(sources), strict=True):
            reading = part.tensor(directions.reading)
            parts.append(part.along_tokens(directions, (other.value - part.value) @ reading.T))
        return np.concatenate(parts)

    def without(self, mean: Floats) -> Floats:
        """Return the measure after the whole vector is replaced by a mean, (n_texts,)."""
        return np.concatenate(
            [part.whole(part.tensor(mean) - part.value) for part in self._parts(self.batch)]
        )

    def exchanged(self, sources: TokenBatch) -> Floats:
        """Return the measure after the whole vector is replaced by the counterfactual's."""
        parts = zip(self._parts(self.batch), self._parts(sources), strict=True)
        return np.concatenate([part.whole(other.value - part.value) for part, other in parts])

    def of_sources(self, sources: TokenBatch) -> Floats:
        """Return the measure of the counterfactuals, for the answers of the texts, (n_texts,)."""
        parts = self._parts(sources)
        return np.concatenate([part.score(part.kept.final, part.everything) for part in parts])

    def _parts(self, batch: TokenBatch) -> Iterator[_Part]:
        for rows in torch.split(torch.arange(len(batch)), TEXTS_AT_ONCE):
            measured = None if self.measured is None else self.measured[rows]
            kept = BasePass.keep(self.model, batch[rows], measured, [self.selection.site])
            at, read = (
                None if one is None else one[rows].to(self.model.device)
                for one in (self.at, self.at if self.read is None else self.read)
            )
            yield _Part(self, kept, at, self.measure[rows], kept.measured if read is None else read)


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the texts, with their kept pass."""

    whole_set: Responder
    kept: BasePass
    at: Tensor | None
    measure: AnswerMeasure
    read: Tensor

    @cached_property
    def everything(self) -> Tensor:
        return torch.arange(len(self.kept.batch), device=self.kept.final.device)

    @cached_property
    def value(self) -> Tensor:
        """Activations at the edited positions, [n_texts n_features], or at all, [n_texts pos _]."""
        value = self.kept.value(self.whole_set.selection)
        return value if self.at is None else value[self.everything, self.at]

    def own_features(self) -> Floats:
        value = self.kept.value(self.whole_set.selection)[self.everything, self.read]
        return value.double().cpu().numpy()

    def tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(self.value)

    def score(self, final: Tensor, rows: Tensor) -> Floats:
        scores = self.measure.score(self.kept.model, final, rows, self.kept.final)
        return scores.cpu().numpy()

    def whole(self, change: Tensor) -> Floats:
        """Return the measure after a change of the site's value."""
        entry, rows = self.whole_set.entry, self.everything
        change = entry.in_stream(change)
        if self.at is None:
            return self.score(self.kept.shifted(entry, lambda some: change[some], rows), rows)
        return self.score(self.kept.shifted_at(entry, change, rows, self.at), rows)

    def along_tokens(self, directions: DirectionSet, coefficients: Tensor) -> Floats:
        """Return the measure for coefficients [n_texts (pos) n_directions]."""
        n_directions = len(directions)
        if self.at is not None:
            return self.along(directions, coefficients.cpu().numpy()[..., None])[..., 0]
        images, n = self._images(directions), len(self.everything)
        size = max(1, _CHANGE_BYTES // (4 * n * images.shape[1]))
        scores = np.empty((n, n_directions))
        for block in np.array_split(np.arange(n_directions), -(-n_directions // size)):
            own, vectors = coefficients[..., block], images[block]
            scores[:, block] = self._everywhere(own, vectors)
        return scores

    def along(self, directions: DirectionSet, doses: Floats) -> Floats:
        """Return the measure for doses (n_texts or 1, n_directions, n_doses)."""
        images, n = self._images(directions), len(self.everything)
        doses = np.broadcast_to(doses, (n, *doses.shape[1:]))
        size = max(1, _CHANGE_BYTES // (4 * n * doses.shape[2] * images.shape[1]))
        scores = np.empty(doses.shape)
        for block in np.array_split(np.arange(len(images)), -(-len(images) // size)):
            own = self.tensor(doses[:, block].copy())
            vectors = images[block]
            if self.at is None:
                n_columns = self.value.shape[1]
                for dose in range(own.shape[2]):
                    same = own[..., dose][:, None].expand(n, n_columns, len(block))
                    scores[:, block, dose] = self._everywhere(same, vectors)
                continue
            change = own[..., None] * vectors[None, :, None]  # [text direction dose d_model]
            per_text = change.shape[1] * change.shape[2]
            rows = self.everything.repeat_interleave(per_text)
            final = self.kept.shifted_at(
                self.whole_set.entry, change.flatten(0, 2), rows, self.at[rows]
            )
            scores[:, block] = self.score(final, rows).reshape(own.shape)
        return scores

    def _everywhere(self, coefficients: Tensor, vectors: Tensor) -> Floats:
        """Return scores (n_texts, n_directions) for coefficients [n_texts pos n_directions]."""
        n, _, n_directions = coefficients.shape
        rows = self.everything.repeat_interleave(n_directions)
        which = torch.arange(n_directions, device=rows.device).repeat(n)

        def change(some: Tensor) -> Tensor:
            own = coefficients[rows[some], :, which[some]]
            return own[..., None] * vectors[which[some]][:, None]

        final = self.kept.shifted(self.whole_set.entry, change, rows)
        return self.score(final, rows).reshape(n, n_directions)

    def _images(self, directions: DirectionSet) -> Tensor:
        """Return the changes of the residual stream along each direction, [n d_model]."""
        return self.whole_set.entry.in_stream(self.tensor(directions.unit))
