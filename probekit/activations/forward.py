"""Forward pass of one batch that extracts only the requested rows of the requested sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probekit.activations.batches import Batch
from probekit.activations.pooling import ranges, row_means
from probekit.data.positions import IntArray, RowPlan
from probekit.model.network import Network
from probekit.model.passes.inputs import pad

FloatArray = npt.NDArray[np.floating[Any]]

DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class BatchRows:
    """Rows of one batch, whose copy from the device may still be in progress.

    Attributes:
        rows: row indices in the plan, shape (n_rows,).
        values: values of the rows in host memory, by site, shape [row ...].
        dtype: dtype of the result of `arrays`, `float32` or `float16`.
        arrival: event after the last copy; None if nothing is copied from a device.
    """

    rows: IntArray
    values: dict[str, Tensor]
    dtype: str
    arrival: torch.cuda.Event | None

    def arrays(self) -> dict[str, FloatArray]:
        """Wait for the copies and return the rows at each site, shape (n_rows, ...)."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return {site: value.to(DTYPES[self.dtype]).numpy() for site, value in self.values.items()}


@torch.inference_mode()
def run_batch(
    model: Network, batch: Batch, plan: RowPlan, sites: Sequence[str], dtype: str
) -> BatchRows:
    """Run the model on one batch and return the requested rows at each site.

    Rows on a GPU are copied to the host asynchronously, while the next batch is computed.

    Args:
        model: a GPT-2.
        batch: sequences to run, and the rows to extract from them.
        plan: the positions of each row.
        sites: full names of sites with a pos axis.
        dtype: dtype on disk, `float32` or `float16`.
    """
    ids, mask = pad(batch.sequences, "right")
    device = model.device
    is_cuda = device.type == "cuda"
    all_gather, requested_gather, at = _plan_gathers(batch, plan, ids.shape[1])
    gathers = {ids.shape[1]: all_gather.to(device)}
    if at is not None:
        gathers[at.shape[1]] = requested_gather.to(device)
    values: dict[str, Tensor] = {}

    def extract(site: str, value: Tensor) -> Tensor:
        rows = gathers[value.shape[1]].rows(value)  # a copy: a view would keep the batch alive
        # Converting first halves the copy. A non-blocking copy to the host is in pinned memory.
        values[site] = rows.to(DTYPES[dtype]).to("cpu", non_blocking=True) if is_cuda else rows
        return value

    # A caller's autocast would round the products, which the identity does not record.
    with torch.autocast(device.type, enabled=False):
        model(ids, mask, extract, sites, logits=False, at=at)
    arrival = torch.cuda.current_stream(device).record_event() if is_cuda else None
    return BatchRows(batch.rows, values, dtype, arrival)


@dataclass(frozen=True)
class _Gather:
    """Indices that gather the positions of each row from a tensor of shape [batch pos ...].

    Attributes:
        place: positions of all rows, one row after the other, as flat indices into [batch pos];
            shape [place].
        row: index of the row that each place belongs to, shape [place].
        count: number of places of each row, shape [row].
    """

    place: Tensor
    row: Tensor
    count: Tensor

    def to(self, device: torch.device) -> _Gather:
        """Return a copy on a device."""
        return _Gather(*(part.to(device) for part in (self.place, self.row, self.count)))

    def rows(self, value: Tensor) -> Tensor:
        """Return the mean over the positions of each row in float32, shape [row ...]."""
        picked = value.flatten(0, 1).index_select(0, self.place)  # [place ...]
        if len(self.place) == len(self.count):
            return picked.float()
        return row_means(picked, self.row, self.count)


def _plan_gathers(
    batch: Batch, plan: RowPlan, width: int
) -> tuple[_Gather, _Gather, Tensor | None]:
    """Return two gathers, and the positions at which the last block is computed.

    The first gather is for sites computed at all positions, the second for those computed at the
    requested positions only. The third result has these positions for each sequence, shape
    [batch n_at]. It is None if a sequence has so many of them that the model computes all. This
    does not depend on the sites, so that a row has the same bits whichever sites are captured.

    Args:
        batch: sequences to run, and the rows to extract from them.
        plan: the positions of each row.
        width: padded length of the sequences.
    """
    starts, ends = plan.offsets[batch.rows], plan.offsets[batch.rows + 1]
    count = ends - starts
    row = np.repeat(np.arange(len(count)), count)
    place = batch.member[row] * width + plan.positions[ranges(starts, count)]

    distinct, inverse = np.unique(place, return_inverse=True)
    member, position = np.divmod(distinct, width)
    slot = np.arange(len(distinct)) - np.searchsorted(member, member)
    n_requested = int(slot.max()) + 1
    at = np.zeros((len(batch.sequences), n_requested), dtype=np.int64)
    at[member, slot] = position
    shared = torch.from_numpy(row), torch.from_numpy(count)
    return (
        _Gather(torch.from_numpy(place), *shared),
        _Gather(torch.from_numpy((member * n_requested + slot)[inverse]), *shared),
        torch.from_numpy(at) if n_requested <= width // 2 else None,
    )
