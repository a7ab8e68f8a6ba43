"""Activation patching of one pair of texts, with a model and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import pandas as pd
import torch

from probekit.analysis.logits import SITES
from probekit.errors import ConfigError, DataError
from probekit.interventions.attribution_patching import estimated_effects, patch_top
from probekit.interventions.effects import PatchEffect
from probekit.interventions.measures import AnswerMeasure, lacks_space
from probekit.interventions.patching import patch
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SitePattern
from probekit.pipeline.look.lenses import ModelAndTokenizer, one_token
from probekit.results.network import PatchedPair

HEADS = "blocks.*.attn.hook_z[head=*]"

_DTYPES = {
    "site": "string",
    **dict.fromkeys(("layer", "head", "position"), "Int64"),
    **dict.fromkeys(("edited", "effect", "recovery", "estimate"), "float64"),
}


def patch_pair(
    network: ModelAndTokenizer,
    clean: str,
    corrupt: str,
    answer: str,
    wrong: str,
    *,
    bos: bool,
    sites: Sequence[SitePattern] = SITES,
    heads: bool = False,
    verify: int | None = None,
) -> PatchedPair:
    """Return the effect of writing activations of a corrupt text into the pass of a clean text.

    Args:
        network: model and tokenizer.
        clean: the base text.
        corrupt: its counterfactual, with as many tokens.
        answer: text of the right token after the clean text, with the space before a word.
        wrong: text of the token whose logit is subtracted.
        bos: whether to prepend the beginning-of-text token to both texts.
        sites: sites that are patched at each position.
        heads: whether to patch each attention head at all positions, too.
        verify: number of patches of positions, and of heads, with the largest effects estimated
            from gradients, that are verified by patching; None patches all without estimates.

    >>> mini = ModelAndTokenizer.load("mini")
    >>> pair = patch_pair(mini, "The old key", "The old keys", " is", " are", bos=False)
    >>> len(pair.rows), round(float(pair.rows["recovery"].iloc[-1]), 4)  # last block, last token
    (21, 1.0)

    Raises:
        DataError: the texts are empty, equal, too long, or have unequal numbers of tokens.
        ConfigError: an answer is not a single token, or both are the same.
        UnknownNameError: a pattern matches no site.
    """
    tokens = one_token(network.tokenizer, answer), one_token(network.tokenizer, wrong)
    if tokens[0] == tokens[1]:
        raise ConfigError(
            f"The answer and the wrong answer are both {answer!r}, so their logits never differ. "
            "Give two tokens."
        )
    batches = _batches(network, clean, corrupt, bos)
    measure = AnswerMeasure(torch.tensor(tokens[:1]), torch.tensor(tokens[1:]))
    grids: list[tuple[Iterable[SitePattern], Literal["all", "each"]]] = [(sites, "each")]
    if heads:
        grids.append(([HEADS], "all"))
    rows: list[dict[str, object]] = []
    for patterns, at in grids:
        if verify is None:
            effects = patch(network.model, *batches, measure, patterns, at=at)
            rows += [
                _row(one.site, one.layer, one.head, one.position, one, None) for one in effects
            ]
            continue
        estimates = estimated_effects(network.model, *batches, measure, patterns, at=at)
        for top in patch_top(network.model, *batches, measure, estimates, top=verify, at=at):
            chosen, place = top.patch.selection, top.patch.position
            layer = layer_of(chosen.site)
            rows.append(_row(chosen.text, layer, chosen.head, place, top.verified, top.estimate))
    table, names = pd.DataFrame(rows), network.tokenizer.strings
    return PatchedPair(
        clean=tuple(names(batches[0].ids[0].tolist())),
        corrupt=tuple(names(batches[1].ids[0].tolist())),
        answer=names([tokens[0]])[0],
        wrong=names([tokens[1]])[0],
        base=float(table["base"].dropna().iloc[0]),
        source=float(table["source"].dropna().iloc[0]),
        rows=table[list(_DTYPES)].astype(_DTYPES),
        unspaced=tuple(
            text for text in (answer, wrong) if lacks_space(network.tokenizer, clean, text)
        ),
    )


def _batches(
    network: ModelAndTokenizer, clean: str, corrupt: str, bos: bool
) -> tuple[TokenBatch, TokenBatch]:
    """Return the tokens of both texts after checks that name the tokens."""
    own, other = (network.ids(text, bos=bos) for text in (clean, corrupt))
    if len(own) != len(other):
        listed = (
            " ".join(map(repr, network.tokenizer.strings(ids.tolist()))) for ids in (own, other)
        )
        raise DataError(
            f"The clean text has {len(own)} tokens and the corrupt text {len(other)}, so positions "
            "do not correspond. Use texts with equal numbers of tokens:\n  " + "\n  ".join(listed)
        )
    if torch.equal(own, other):
        raise DataError(
            "The clean and the corrupt text have the same tokens, so patching changes nothing. "
            "Change the corrupt text where the answer depends on it."
        )
    return (
        network.tokenizer.batch([clean], bos=bos),
        network.tokenizer.batch([corrupt], bos=bos),
    )


def _row(
    site: str,
    layer: int | None,
    head: int | None,
    position: object,
    measured: PatchEffect | None,
    estimate: float | None,
) -> dict[str, object]:
    """Return the row of a patch; numbers that were not measured are None."""
    numbers = ("base", "source", "patched", "effect", "recovery")
    base, source, edited, effect, recovery = (getattr(measured, name, None) for name in numbers)
    return {
        "site": site,
        "layer": layer,
        "head": head,
        "position": position if isinstance(position, int) else None,
        "base": base,
        "source": source,
        "edited": edited,
        "effect": effect,
        "recovery": recovery,
        "estimate": estimate,
    }
