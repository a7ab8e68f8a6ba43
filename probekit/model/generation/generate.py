"""Continuing tokens, one at a time, without reading any of them twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.cache import Recording
from probekit.model.generation.decoding import Decoding, Stop
from probekit.model.gpt2 import GPT2
from probekit.model.inputs import NO_TOKEN, TokenBatch, prepare_tokens, warn_of_padding
from probekit.model.kv_cache import KeyValueCache
from probekit.model.sites import SitePattern
from probekit.model.taps import Tap

ENDED = NO_TOKEN  # the id after the end of a row


def generate(
    model: GPT2,
    tokens: Tensor | TokenBatch,
    max_new_tokens: int,
    *,
    mask: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    num_samples: int = 1,
    seed: int = 0,
    stop: Stop | None = None,
    slide: bool = False,
    tap: Tap | None = None,
    sites: SitePattern | Iterable[SitePattern] | None = None,
) -> Tensor:
    """Return the new token ids, shape [batch * num_samples new], samples of a prompt together.

    Without `stop` there are `max_new_tokens` of them; with it, as many as the longest row has, and
    -1 after the end of the others.

    Args:
        model: a GPT-2.
        tokens: the prompts: token ids, shape [batch pos], or a whole `TokenBatch`.
        max_new_tokens: how many tokens to add to each, at most.
        mask: True at tokens, False at padding (on either side), shape [batch pos]; part of a
            `TokenBatch`.
        temperature: 0 takes the most probable token; higher draws more evenly.
        top_k: draw among the k most probable tokens only.
        top_p: draw among the fewest most probable tokens whose probabilities sum to p only.
        num_samples: how many continuations each prompt gets.
        seed: of the draws, below 2^32. They depend on it, the prompt and the number of the sample:
            the same prompt gets the same tokens whatever else is in the batch.
        stop: says of the new ids of a row whether it is at its end, such as `StopStrings`.
        slide: beyond the context, let the earliest tokens go instead of refusing.
        tap: sees, and may change, the value at each site in each pass: first all of the prompt (or
            of the context, when it slides), then the newest token alone.
        sites: names, globs and shorthands of the sites that the tap sees; None means all.

    >>> model = GPT2.from_pretrained("mini")
    >>> generate(model, torch.tensor([[10, 20]]), 3, temperature=0.8, num_samples=2).shape
    torch.Size([2, 3])

    Raises:
        ConfigError: temperature, top_k, top_p, num_samples, seed or max_new_tokens make no sense,
            or the model is in training mode.
        DataError: the prompts are nothing that the model can read, or exceed the context together
            with the continuation; the logits are not finite; or a Recording shall slide.
    """
    how = Decoding(
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        num_samples=num_samples,
        seed=seed,
        stop=stop,
        slide=slide,
    )
    return torch.stack(list(new_tokens(model, tokens, how, mask=mask, tap=tap, sites=sites)), dim=1)


@torch.no_grad()
def new_tokens(
    model: GPT2,
    tokens: Tensor | TokenBatch,
    how: Decoding,
    *,
    mask: Tensor | None = None,
    tap: Tap | None = None,
    sites: SitePattern | Iterable[SitePattern] | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row, shape [batch * num_samples], -1 once it has ended.

    The arguments and errors are those of `generate`.

    >>> model = GPT2.from_pretrained("mini")
    >>> [len(step) for step in new_tokens(model, torch.tensor([[10, 20]]), Decoding(3))]
    [1, 1, 1]
    """
    if model.training:
        raise ConfigError(
            "The model is in training mode, where dropout makes every token a draw; call "
            "model.eval() first."
        )
    if how.slide and isinstance(tap, Recording):
        raise DataError(
            "A Recording joins passes that read on, but beyond the context each pass reads a whole "
            "window anew: leave slide out, or look at the windows with a tap of your own."
        )
    ids, mask = prepare_tokens(model.config, tokens, mask)
    if mask is None:
        warn_of_padding(model.config, ids)
    if not len(ids):
        raise DataError("There is no prompt to go on with.")
    ids, mask = _on_the_right(ids.to(model.wte.weight.device), mask)
    how.check_length(model.config, ids.shape[1])
    prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    generators = how.generators(prompts)
    ids, mask = (x.repeat_interleave(how.num_samples, 0) for x in (ids, mask))
    steps = _Steps(model, ids, mask, tap, sites)
    rows: list[list[int]] = [[] for _ in ids]
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(how.max_new_tokens):
        draws = torch.tensor([row.random() for row in generators], dtype=torch.float64)
        chosen = how.choose(steps.logits().float(), draws.to(ids.device))
        yield chosen.masked_fill(ended, ENDED)
        if how.stop is not None:
            for row, token in zip(rows, chosen.tolist(), strict=True):
                row.append(token)
            ended |= torch.tensor([how.stop(row) for row in rows], device=ids.device)
            if bool(ended.all()):
                return
        steps.append(chosen[:, None])


def _on_the_right(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return tokens and mask with all padding on the left, as new tokens come on the right."""
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    mask = mask.to(tokens.device)
    order = mask.to(torch.int8).argsort(dim=-1, stable=True)
    longest = int(mask.sum(-1).max())
    return tokens.gather(1, order)[:, -longest:], mask.gather(1, order)[:, -longest:]


class _Steps:
    """A text that grows: the logits of what comes next, each token read once while it fits."""

    def __init__(
        self,
        model: GPT2,
        tokens: Tensor,
        mask: Tensor,
        tap: Tap | None,
        sites: SitePattern | Iterable[SitePattern] | None,
    ) -> None:
        self._model = model
        # Every step reads them anew, and an iterator can be read but once.
        self._tap, self._sites = tap, list(sites) if isinstance(sites, Iterator) else sites
        self._tokens, self._mask = tokens, mask
        self._past = KeyValueCache()

    def logits(self) -> Tensor:
        """Return the logits of the token after the last, shape [batch d_vocab]."""
        if self._tokens.shape[1] > self._model.config.n_positions:
            self._past = KeyValueCache()
            n = self._model.config.n_positions
            self._tokens, self._mask = self._tokens[:, -n:], self._mask[:, -n:]
        new, mask = (x[:, self._past.length :] for x in (self._tokens, self._mask))
        # Of a prompt only the last position is asked for, unless somebody looks on.
        is_asked_in_part = new.shape[1] > 1 and self._tap is None
        logits: Tensor = self._model(
            new,
            None if bool(mask.all()) else mask,
            self._tap,
            self._sites,
            past=self._past,
            at=torch.full_like(new[:, :1], new.shape[1] - 1) if is_asked_in_part else None,
        )
        return logits[:, -1]

    def append(self, chosen: Tensor) -> None:
        """Add a token to each row, shape [batch 1]."""
        self._tokens = torch.cat([self._tokens, chosen], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(chosen, dtype=torch.bool)], dim=1)
