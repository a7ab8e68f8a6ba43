"""Head scores over several texts, repeated random tokens, and the known heads of GPT-2 small.

Source: repeated random tokens as in Olsson et al. 2022, "In-context Learning and Induction Heads".
Only the repetition is predictable in them, so a head that attends to the token after an earlier
occurrence is an induction head. The known heads are those most often named in the literature since
Wang et al. 2022, "Interpretability in the Wild".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probekit.analysis.head_scores import head_scores
from probekit.errors import ConfigError, DataError
from probekit.model.network import Network
from probekit.provenance import digest
from probekit.watcher import SILENT, Watcher

KNOWN_HEADS = {
    "previous_token": ((4, 11),),
    "induction": ((5, 5), (5, 1), (6, 9), (7, 2), (7, 10)),
    "duplicate_token": ((3, 0), (0, 1)),
}
# Digest of the float32 position embeddings, which identify GPT-2 small whatever its name.
_WPE_OF_GPT2_SMALL = "8ef840e2c9b1b4f950baa790cc1aa824c619334d0dc89efb787c3303548164ea"


def known_heads(model: Network) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the known heads of GPT-2 small as (layer, head) by score; empty for other models.

    >>> from probekit import GPT2
    >>> known_heads(GPT2.from_pretrained("mini"))
    {}
    """
    if model.position_embedding is None:
        return {}
    embedding = model.position_embedding.detach().cpu().float().contiguous()
    is_small = digest([embedding.numpy().tobytes()]) == _WPE_OF_GPT2_SMALL
    return KNOWN_HEADS if is_small else {}


def random_repeats(
    pool: Sequence[int], n: int, length: int, *, seed: int = 0, bos: int | None = None
) -> list[Tensor]:
    """Return n sequences of `length` distinct random tokens, each repeated once.

    Args:
        pool: ids to sample from.
        n: number of sequences.
        length: length of the repeated part.
        seed: random seed.
        bos: id to put before each sequence; None for none.

    >>> [ids.tolist() for ids in random_repeats(range(10), 1, 3, bos=50)]
    [[50, 4, 1, 7, 4, 1, 7]]

    Raises:
        ConfigError: `n` is below 1, or `length` is not from 1 to the size of the pool.
    """
    if n < 1:
        raise ConfigError(f"The number of random sequences is {n}. Allowed: at least 1.")
    if not 1 <= length <= len(pool):
        raise ConfigError(
            f"The length of the repeated part is {length}. Allowed: 1 to {len(pool)}."
        )
    generator = torch.Generator().manual_seed(seed)
    ids, prefix = torch.tensor(pool), torch.tensor([] if bos is None else [bos], dtype=torch.int64)
    halves = [ids[torch.randperm(len(ids), generator=generator)[:length]] for _ in range(n)]
    return [torch.cat([prefix, half, half]) for half in halves]


def score_heads(
    model: Network, sequences: Sequence[Tensor], watcher: Watcher = SILENT
) -> pd.DataFrame:
    """Return the mean of each score over the sequences, one row per score, layer and head.

    The columns are `score`, `layer`, `head`, `value` (mean), `sd` (standard deviation over
    sequences) and `n` (number of sequences for which the score is defined).

    >>> from probekit import GPT2
    >>> rows = score_heads(GPT2.from_pretrained("mini"), random_repeats(range(1, 100), 2, 5))
    >>> len(rows), rows["score"].nunique(), set(rows["n"])
    (144, 6, {2})

    Raises:
        DataError: there is no sequence, or one is empty or longer than the context.
    """
    if not sequences:
        raise DataError("There is no sequence to score heads on. Give at least one.")
    per_text = []
    for number, ids in enumerate(sequences, start=1):
        per_text.append(_scores(model, ids))
        watcher.progress("heads", number, len(sequences))
    return pd.concat([_aggregate(name, per_text) for name in per_text[0]], ignore_index=True)


def _aggregate(name: str, per_text: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """Return the rows of one score from its values in each text, without NaN values."""
    values = torch.stack([scores[name] for scores in per_text]).double().cpu().numpy()
    layer, head = np.indices(values.shape[1:]).reshape(2, -1)
    frame = pd.DataFrame(values.reshape(len(per_text), -1))
    return pd.DataFrame(
        {
            "score": name,
            "layer": layer,
            "head": head,
            "value": frame.mean(),
            "sd": frame.std(),
            "n": frame.count(),
        }
    )


def _scores(model: Network, ids: Tensor) -> dict[str, Tensor]:
    """Return the scores (n_layers, n_heads) of one text; only one layer's patterns are kept."""
    layers: list[dict[str, Tensor]] = []

    def tap(_site: str, pattern: Tensor) -> Tensor:
        layers.append(head_scores(pattern[0], ids))
        return pattern

    with torch.inference_mode():
        model(ids[None], tap=tap, sites="blocks.*.attn.hook_pattern", logits=False)
    return {name: torch.stack([scores[name] for scores in layers]) for name in layers[0]}
