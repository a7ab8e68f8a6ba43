"""Numbers of a network's output at the probed tokens, captured in the pass of their activations.

    entropy                 of the next token, in nats
    largest_probability     of a next token
    margin                  the largest logit minus the second largest, in nats
    next_log_probability    of the token that follows in the text; where none follows, its expected
                            value by the network, minus the entropy
    residual_norm           Euclidean norm of the residual stream after the last block
    answer_difference       logit of the first token of one answer minus that of the other

They are those of the tokens that a row reads, in float32 after a softcap of the logits. A row that
reads several tokens has the mean of each number. Logits are computed at these tokens only, a few at
a time. The numbers are a column of the store, named by their version and by the answers: other
columns do not depend on them, and numbers of another version are never read.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.forward import Batch, ranges, row_means
from probekit.activations.records import OUTPUT
from probekit.data.positions import IntArray, RowPlan
from probekit.model.network import Network
from probekit.model.proven.network import ProvenNetwork
from probekit.products import to_device
from probekit.provenance import PART_VERSIONS, digest

# Why a run has no numbers of the output.
NO_OUTPUT = (
    "The logits of this network are not available, so the baseline `output`, its own confidence, "
    "is left out."
)
NUMBERS = (
    "entropy",
    "largest_probability",
    "margin",
    "next_log_probability",
    "residual_norm",
    "answer_difference",
)
_LOGITS = 1 << 24  # numbers in memory at once


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
        ('output.1', 'output.1.2bd41b6d8d23c1f1')
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
        of_row = (to_device(torch.from_numpy(one), found.device) for one in (row, counts))
        return row_means(found, *of_row)

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
            log_p = logits.log_softmax(-1)
            entropy = torch.special.entr(log_p.exp()).sum(-1)
            first, second = logits.topk(2).values.unbind(-1)
            ids = to_device(torch.from_numpy(following[part]), logits.device)
            next_log_p = log_p.gather(-1, ids.clamp(min=0)[:, None])[:, 0]
            found = [entropy, log_p.amax(-1).exp(), first - second]
            found += [next_log_p.where(ids >= 0, -entropy)]
            found += [resid[part].float().norm(dim=-1).to(logits.device)]
            if self.answers is not None:
                answers = to_device(torch.from_numpy(self.answers[rows[part]]), logits.device)
                one, other = logits.gather(-1, answers).unbind(-1)
                found += [one - other]
            parts.append(torch.stack(found, dim=1))
        return torch.cat(parts)


def has_logits(model: Network) -> bool:
    """Return whether the logits of a network follow from its last residual stream, as proven."""
    return not isinstance(model, ProvenNetwork) or model.has_lens


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
