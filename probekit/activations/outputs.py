"""Numbers of a network's output at the probed tokens, captured in the pass of their activations.

    entropy                 of the next token, in nats
    largest_probability     of a next token
    margin                  the largest logit minus the second largest, in nats
    next_log_probability    of the token that follows in the text; where none follows, its expected
                            value by the network, minus the entropy
    residual_norm           Euclidean norm of the residual stream after the last block
    answer_difference       logit of the first token of one answer minus that of the other

The numbers are taken at the tokens that a row reads, in float32 after a softcap of the logits. A
row that reads several tokens has the mean of each number. Logits are computed at these tokens only,
a few at a time. The numbers are a column of the store, named by their version and by the answers:
other columns do not depend on them, and numbers of another version are never read.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.capture import Passes, Reader, Work
from probekit.activations.forward import Batch, BatchRows, ranges, row_means, run_batches
from probekit.activations.records import OUTPUT
from probekit.activations.store import ActivationStore
from probekit.data.positions import IntArray, RowPlan
from probekit.lazy_rows import Floats
from probekit.model.network import Network
from probekit.model.proven.network import ProvenNetwork
from probekit.products import to_device
from probekit.provenance import PART_VERSIONS, digest

NUMBERS = (
    "entropy",
    "largest_probability",
    "margin",
    "next_log_probability",
    "residual_norm",
    "answer_difference",
)
_LOGITS = 1 << 24  # numbers in memory at once
LOWEST = -200.0  # logits further below the largest one count as this, such as those of -inf


@dataclass(frozen=True, eq=False)
class OutputNumbers:
    """The numbers of a network's output that are captured.

    Attributes:
        answers: token ids of the two answers of each row, shape (n_rows, 2); None for no answers.
    """

    answers: IntArray | None = None

    @property
    def column(self) -> str:
        """Name of their column in a store.

        >>> OutputNumbers().column, OutputNumbers(np.array([[5, 6]])).column
        ('output.1', 'output.1.d33025fdb8259e75')
        """
        name = f"{OUTPUT}{PART_VERSIONS['output']}"
        return name if self.answers is None else f"{name}.{digest([self.answers.tobytes()])[:16]}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers, in their order."""
        return NUMBERS[:-1] if self.answers is None else NUMBERS

    def of_batch(self, model: Network, resid: Tensor, batch: Batch, plan: RowPlan) -> Tensor:
        """Return the numbers of the rows of a batch in float32, shape [row n_numbers].

        Args:
            model: the network.
            resid: residual stream after the last block at the tokens that rows read, one row after
                the other, shape [token d_model].
            batch: sequences and rows.
            plan: the positions of each row.
        """
        counts = plan.offsets[batch.rows + 1] - plan.offsets[batch.rows]
        row = np.repeat(np.arange(len(counts)), counts)
        positions = plan.positions[ranges(plan.offsets[batch.rows], counts)]
        following = following_tokens(batch.sequences, batch.member[row], positions)
        found = self._of_tokens(model, resid, following, batch.rows[row])
        if len(row) == len(counts):
            return found
        each, n = (to_device(torch.from_numpy(one), found.device) for one in (row, counts))
        return row_means(found, each, n)

    def _of_tokens(
        self, model: Network, resid: Tensor, following: IntArray, rows: IntArray
    ) -> Tensor:
        """Return the numbers of tokens, shape [token n_numbers].

        Args:
            model: the network.
            resid: residual stream after the last block at the tokens, shape [token d_model].
            following: id of the token after each, shape (n_tokens,); -1 if there is none.
            rows: number of the row that reads each token, shape (n_tokens,).
        """
        n_at_once = max(1, _LOGITS // model.config.d_vocab)
        parts = []
        for start in range(0, len(resid), n_at_once):
            part = slice(start, start + n_at_once)
            x = model.final_norm(resid[part])
            logits = model.capped(model.uncapped_logits(x).float())
            first, second = logits.topk(2).values.unbind(-1)
            # In place: memory of this size costs as much as the arithmetic.
            below = logits.sub_(first[:, None]).clamp_(min=LOWEST)
            weights = below.exp()
            total = weights.sum(-1)
            entropy = total.log() - weights.mul_(below).sum(-1) / total
            ids = to_device(torch.from_numpy(following[part]), logits.device)
            next_log_p = below.gather(-1, ids.clamp(min=0)[:, None])[:, 0] - total.log()
            found = [entropy, 1 / total, first - second, next_log_p.where(ids >= 0, -entropy)]
            found += [resid[part].float().norm(dim=-1).to(logits.device)]
            if self.answers is not None:
                answers = to_device(torch.from_numpy(self.answers[rows[part]]), logits.device)
                one, other = below.gather(-1, answers).unbind(-1)
                found += [one - other]
            parts.append(torch.stack(found, dim=1))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class WithOutput(Reader):
    """A reader of rows, whose network gives numbers of its output, too.

    Of rows that exist already, the network reads the texts once more for them.
    """

    reader: Reader
    model: Network
    numbers: OutputNumbers

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the numbers."""
        return (self.numbers.column,)

    @property
    def origin(self) -> str:
        """That of the reader."""
        return self.reader.origin

    def run_batches(
        self, batches: Sequence[Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[BatchRows]:
        """Yield the rows of batches."""
        read = [site for site in sites if site not in self.columns]
        is_wanted, is_one_pass = len(read) < len(sites), isinstance(self.reader, Passes)
        if read and not (is_wanted and is_one_pass):
            yield from self.reader.run_batches(batches, plan, read, dtype)
        if is_wanted:
            yield from self._passes(batches, plan, read if is_one_pass else [], dtype)

    @torch.inference_mode()
    def _passes(
        self, batches: Sequence[Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[BatchRows]:
        """Yield the rows of sites and the numbers of batches, by passes of the network."""
        last = f"blocks.{self.model.config.n_layers - 1}.hook_resid_post"
        streams = list[tuple[Batch, Tensor]]()  # of batches whose pass has ended

        def keep(batch: Batch, site: str, picked: Tensor) -> None:
            if site == last:
                streams.append((batch, picked))

        requested = [*sites, *[last] * (last not in sites)]
        for part in run_batches(self.model, batches, plan, requested, dtype, keep):
            yield BatchRows({site: part.values[site] for site in sites if site in part.values})
            while streams:  # after the pass: a tap must not run modules of its network
                batch, stream = streams.pop(0)
                with torch.autocast(self.model.device.type, enabled=False):
                    rows = self.numbers.of_batch(self.model, stream, batch, plan).cpu()
                yield BatchRows({self.numbers.column: (rows, None)})

    def check(self, errors: Mapping[str, Any], tokens: RowPlan, rows: IntArray) -> None:
        """Check errors, as the reader does."""
        self.reader.check(errors, tokens, rows)

    def how_read(self, missing: Sequence[Sequence[Batch]]) -> str:
        """Return how weights are read to compute shards."""
        return self.reader.how_read(missing)


def with_output(work: Work, numbers: OutputNumbers | None) -> Work:
    """Return a capture that has the numbers, too.

    It is the same one if there are none, if it is not proven that the logits of its network follow
    from the last residual stream, or if its finished cache lacks them and cannot be written.
    """
    model, store = work.model, work.store
    if numbers is None or (isinstance(model, ProvenNetwork) and not model.has_lens):
        return work
    is_finished = store.is_sealed and not any(map(store.missing, work.sites))
    folder = store.files.place
    is_fixed = isinstance(folder, Path) and not os.access(folder, os.W_OK)
    if is_finished and is_fixed and store.missing(numbers.column):
        return work
    return replace(work, reader=WithOutput(work.reader, model, numbers))


def read_output(
    store: ActivationStore, numbers: OutputNumbers | None, position: int, n_positions: int
) -> dict[str, Floats] | None:
    """Return the numbers at one of the positions in a store by name, each (n_rows,).

    None if there are none.
    """
    if numbers is None or store.missing(numbers.column):
        return None
    rows = np.arange(position, store.n_rows, n_positions)  # see `interleave`
    values = store.read(numbers.column, rows).astype(np.float64)
    return dict(zip(numbers.names, values.T, strict=True))


def following_tokens(sequences: list[IntArray], member: IntArray, positions: IntArray) -> IntArray:
    """Return the id of the token after each position, shape (n_positions,); -1 at the last token.

    Args:
        sequences: token ids.
        member: index of the sequence of each position.
        positions: the positions.

    >>> texts = [np.array([7, 8, 9]), np.array([4])]
    >>> following_tokens(texts, np.array([0, 0, 1]), np.array([0, 2, 0])).tolist()
    [8, -1, -1]
    """
    after = np.concatenate([np.append(ids[1:], -1) for ids in sequences])
    starts = np.cumsum([0, *map(len, sequences)])
    found: IntArray = after[starts[member] + positions]
    return found
