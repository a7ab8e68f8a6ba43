"""Head scores over several texts, over random tokens that come twice, and what is known of GPT-2.

Source: repeated random tokens as in Olsson et al. 2022, "In-context Learning and Induction Heads":
nothing but the repetition can be predicted in them, so who looks at what followed a token before is
an induction head. The known heads of GPT-2 small are those that the literature names most often,
since Wang et al. 2022, "Interpretability in the Wild".
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
# Of the position embeddings in float32: whoever has them, under whatever name, is GPT-2 small.
_WPE_OF_GPT2_SMALL = "8ef840e2c9b1b4f950baa790cc1aa824c619334d0dc89efb787c3303548164ea"


def known_heads(model: Network) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the heads, as (layer, head), that are known for a score; none but for GPT-2 small.

    >>> known_heads(GPT2.from_pretrained("mini"))
    {}
    """
    wpe = model.position_embedding.detach().cpu().float().contiguous()
    is_small = digest([wpe.numpy().tobytes()]) == _WPE_OF_GPT2_SMALL
    return KNOWN_HEADS if is_small else {}


def random_repeats(
    pool: Sequence[int], n: int, length: int, *, seed: int = 0, bos: int | None = None
) -> list[Tensor]:
    """Return n sequences of `length` random tokens, all different, that come twice.

    Args:
        pool: the ids to draw from.
        n: how many sequences.
        length: of the part that is repeated.
        seed: of the draw.
        bos: an id to put before each; None puts none.

    >>> [ids.tolist() for ids in random_repeats(range(10), 1, 3, bos=50)]
    [[50, 4, 1, 7, 4, 1, 7]]

    Raises:
        ConfigError: no sequence, no token, or more than there are to draw from.
    """
    if n < 1:
        raise ConfigError(f"{n} random sequences were asked for; ask for one or more.")
    if not 1 <= length <= len(pool):
        raise ConfigError(f"The length of a repeat is {length}; allowed: 1 to {len(pool)}.")
    generator = torch.Generator().manual_seed(seed)
    ids, begin = torch.tensor(pool), torch.tensor([] if bos is None else [bos], dtype=torch.int64)
    halves = [ids[torch.randperm(len(ids), generator=generator)[:length]] for _ in range(n)]
    return [torch.cat([begin, half, half]) for half in halves]


def score_heads(
    model: Network, sequences: Sequence[Tensor], watcher: Watcher = SILENT
) -> pd.DataFrame:
    """Return one row a score, layer and head: the mean over the sequences that can have the score.

    The columns are `score`, `layer`, `head`, `value`, `sd` over sequences and their number `n`.

    >>> rows = score_heads(GPT2.from_pretrained("mini"), random_repeats(range(1, 100), 2, 5))
    >>> len(rows), rows["score"].nunique(), set(rows["n"])
    (144, 6, {2})

    Raises:
        DataError: there is no sequence, or one is empty or longer than the context.
    """
    if not sequences:
        raise DataError("There is no text to score heads on. Give one or more.")
    found = []
    for number, ids in enumerate(sequences, start=1):
        found.append(_scores(model, ids))
        watcher.progress("heads", number, len(sequences))
    return pd.concat([_over_texts(name, found) for name in found[0]], ignore_index=True)


def _over_texts(name: str, found: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """Return the rows of a score from its values in each text; a NaN there is left out."""
    values = torch.stack([scores[name] for scores in found]).double().cpu().numpy()
    layer, head = np.indices(values.shape[1:]).reshape(2, -1)
    of_texts = pd.DataFrame(values.reshape(len(found), -1))
    return pd.DataFrame(
        {
            "score": name,
            "layer": layer,
            "head": head,
            "value": of_texts.mean(),
            "sd": of_texts.std(),
            "n": of_texts.count(),
        }
    )


def _scores(model: Network, ids: Tensor) -> dict[str, Tensor]:
    """Return the scores of one text, of shape (layers, heads), a layer's patterns at a time."""
    layers: list[dict[str, Tensor]] = []

    def tap(_site: str, pattern: Tensor) -> Tensor:
        layers.append(head_scores(pattern[0], ids))
        return pattern

    with torch.inference_mode():
        model(ids[None], tap=tap, sites="blocks.*.attn.hook_pattern", logits=False)
    return {name: torch.stack([scores[name] for scores in layers]) for name in layers[0]}
