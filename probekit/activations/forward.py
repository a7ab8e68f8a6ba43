"""One batch through the model: only the asked rows of the asked sites are computed and kept."""

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
from probekit.model.text.tokenizer import pad

FloatArray = npt.NDArray[np.floating[Any]]

DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch, which may still be on their way from the device.

    Attributes:
        rows: their numbers, shape (n_rows,).
        values: at each site, on the host, shape [row ...].
        dtype: `float32` or `float16`, what `arrays` gives.
        arrival: of the last of the values; None where they have not travelled.
    """

    rows: IntArray
    values: dict[str, Tensor]
    dtype: str
    arrival: torch.cuda.Event | None

    def arrays(self) -> dict[str, FloatArray]:
        """Return the rows at each site, shape (n_rows, ...), as soon as they are there."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return {site: value.to(DTYPES[self.dtype]).numpy() for site, value in self.values.items()}


@torch.inference_mode()
def run_batch(
    model: Network, batch: Batch, plan: RowPlan, sites: Sequence[str], dtype: str
) -> BatchRows:
    """Return the rows of one batch at each site.

    On a GPU they are copied while the next batch is computed; nothing waits for them here.

    Args:
        model: a GPT-2.
        batch: sequences and rows.
        plan: which positions of its sequence make a row.
        sites: full names of sites with a pos axis.
        dtype: `float32` or `float16`, the numbers on disk.
    """
    ids, mask = pad(batch.sequences, "right")
    device = model.device
    is_cuda = device.type == "cuda"
    everywhere, asked, at = _plan_gathers(batch, plan, ids.shape[1])
    gathers = {ids.shape[1]: everywhere.to(device)}
    if at is not None:
        gathers[at.shape[1]] = asked.to(device)
    values: dict[str, Tensor] = {}

    def keep(site: str, value: Tensor) -> Tensor:
        rows = gathers[value.shape[1]].rows(value)  # a copy, never a view that pins the batch
        # Halved before it travels. To the host and without waiting means to pinned memory.
        values[site] = rows.to(DTYPES[dtype]).to("cpu", non_blocking=True) if is_cuda else rows
        return value

    # A caller's autocast would round the products, and the identity of the rows not tell of it.
    with torch.autocast(device.type, enabled=False):
        model(ids, mask, keep, sites, logits=False, at=at)
    arrival = torch.cuda.current_stream(device).record_event() if is_cuda else None
    return BatchRows(batch.rows, values, dtype, arrival)


@dataclass(frozen=True)
class _Gather:
    """How rows are taken from a value of shape [batch pos ...].

    Attributes:
        place: what is taken, numbered through all of [batch pos], shape [place].
        row: the row that each place goes into, shape [place].
        count: the number of places of each row, shape [row].
    """

    place: Tensor
    row: Tensor
    count: Tensor

    def to(self, device: torch.device) -> _Gather:
        """Return the same on a device."""
        return _Gather(*(part.to(device) for part in (self.place, self.row, self.count)))

    def rows(self, value: Tensor) -> Tensor:
        """Return the mean over the places of each row in float32, shape [row ...]."""
        picked = value.flatten(0, 1).index_select(0, self.place)  # [place ...]
        if len(self.place) == len(self.count):
            return picked.float()
        return row_means(picked, self.row, self.count)


def _plan_gathers(
    batch: Batch, plan: RowPlan, width: int
) -> tuple[_Gather, _Gather, Tensor | None]:
    """Return how rows are taken of all positions, of the asked ones, and which those are.

    The last is None where a sequence has so many of them that all are computed. This does not
    depend on the sites: a row has the same bits whatever is captured together with it.
    """
    starts, ends = plan.offsets[batch.rows], plan.offsets[batch.rows + 1]
    count = ends - starts
    row = np.repeat(np.arange(len(count)), count)
    place = batch.member[row] * width + plan.positions[ranges(starts, count)]

    distinct, which = np.unique(place, return_inverse=True)
    member, position = np.divmod(distinct, width)
    slot = np.arange(len(distinct)) - np.searchsorted(member, member)
    n_asked = int(slot.max()) + 1
    at = np.zeros((len(batch.sequences), n_asked), dtype=np.int64)
    at[member, slot] = position
    rest = torch.from_numpy(row), torch.from_numpy(count)
    return (
        _Gather(torch.from_numpy(place), *rest),
        _Gather(torch.from_numpy((member * n_asked + slot)[which]), *rest),
        torch.from_numpy(at) if n_asked <= width // 2 else None,
    )
