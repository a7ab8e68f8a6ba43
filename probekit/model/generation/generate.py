"""Token generation with a key-value cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.decoder import Decoder
from probekit.model.generation.decoding import Decoding, Stop
from probekit.model.passes.cache import Recording
from probekit.model.passes.inputs import NO_TOKEN, TokenBatch, prepare_tokens, warn_of_padding
from probekit.model.passes.kv_cache import KeyValueCache
from probekit.model.passes.taps import Tap
from probekit.model.sites.sites import SitePattern

ENDED = NO_TOKEN  # the id after the end of a row


def generate(
    model: Decoder,
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
    """Return the new token ids, shape [batch * num_samples new].

    The samples of a prompt are consecutive rows. Without `stop`, every row has `max_new_tokens`
    tokens. With it, there are as many columns as the longest row has tokens, and shorter rows end
    with -1.

    Args:
        model: the network.
        tokens: token ids of the prompts, shape [batch pos], or a `TokenBatch`.
        max_new_tokens: maximum number of new tokens of each prompt.
        mask: True at tokens, False at padding on either side, shape [batch pos]; a `TokenBatch`
            contains it.
        temperature: 0 is greedy decoding; higher values flatten the distribution.
        top_k: sample from the k most probable tokens only.
        top_p: sample from the smallest set of most probable tokens whose probabilities sum to at
            least p.
        num_samples: number of continuations of each prompt.
        seed: random seed for sampling, below 2^32. Samples depend only on it, on the prompt and on
            the index of the sample, not on the rest of the batch.
        stop: stopping criterion, such as `StopStrings`: receives the new ids of a row, returns
            whether the row ends.
        slide: when the context is full, drop the earliest tokens instead of raising an error.
        tap: called at each site in each pass; may replace the value. The first pass has all prompt
            tokens, later ones the newest token only; with `slide`, a full context.
        sites: names, globs and shorthands of the sites at which the tap is called; None means all
            except those computed on request.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> generate(model, torch.tensor([[10, 20]]), 3, temperature=0.8, num_samples=2).shape
    torch.Size([2, 3])

    Raises:
        ConfigError: a decoding parameter is out of range, or the model is in training mode.
        DataError: the prompts are invalid, or exceed the context together with the new tokens; the
            logits are not finite; or `slide` is used with a `Recording`.
    """
    decoding = Decoding(
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        num_samples=num_samples,
        seed=seed,
        stop=stop,
        slide=slide,
    )
    steps = new_tokens(model, tokens, decoding, mask=mask, tap=tap, sites=sites)
    return torch.stack(list(steps), dim=1)


@torch.no_grad()
def new_tokens(
    model: Decoder,
    tokens: Tensor | TokenBatch,
    decoding: Decoding,
    *,
    mask: Tensor | None = None,
    tap: Tap | None = None,
    sites: SitePattern | Iterable[SitePattern] | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row, shape [batch * num_samples]; -1 in rows that have ended.

    Arguments and errors are those of `generate`.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> [len(step) for step in new_tokens(model, torch.tensor([[10, 20]]), Decoding(3))]
    [1, 1, 1]
    """
    if model.training:
        raise ConfigError(
            "The model is in training mode, so dropout would make the tokens random. Call "
            "model.eval() first."
        )
    if decoding.slide and isinstance(tap, Recording):
        raise DataError(
            "A Recording joins consecutive passes, but with slide the windows of the passes "
            "overlap. Leave slide out, or pass a tap that handles windows."
        )
    ids, mask = prepare_tokens(model.config, tokens, mask)
    if mask is None:
        warn_of_padding(model.config, ids)
    if not len(ids):
        raise DataError("tokens has no rows. Pass at least one prompt.")
    ids, mask = _left_padded(ids.to(model.device), mask)
    decoding.check_length(model.config, ids.shape[1])
    prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    generators = decoding.generators(prompts)
    ids, mask = (x.repeat_interleave(decoding.num_samples, 0) for x in (ids, mask))
    steps = _Steps(model, ids, mask, tap, sites)
    rows: list[list[int]] = [[] for _ in ids]
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(decoding.max_new_tokens):
        draws = torch.tensor([row.random() for row in generators], dtype=torch.float64)
        chosen = decoding.choose(steps.logits().float(), draws.to(ids.device))
        yield chosen.masked_fill(ended, ENDED)
        if decoding.stop is not None:
            for row, token in zip(rows, chosen.tolist(), strict=True):
                row.append(token)
            ended |= torch.tensor([decoding.stop(row) for row in rows], device=ids.device)
            if bool(ended.all()):
                return
        steps.append(chosen[:, None])


def _left_padded(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return tokens and mask with all padding moved to the left, before new tokens."""
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    mask = mask.to(tokens.device)
    order = mask.to(torch.int8).argsort(dim=-1, stable=True)
    longest = int(mask.sum(-1).max())
    return tokens.gather(1, order)[:, -longest:], mask.gather(1, order)[:, -longest:]


class _Steps:
    """Tokens of a growing batch; each is read once until the context is full."""

    def __init__(
        self,
        model: Decoder,
        tokens: Tensor,
        mask: Tensor,
        tap: Tap | None,
        sites: SitePattern | Iterable[SitePattern] | None,
    ) -> None:
        self._model = model
        # A list, because every step iterates over the sites again.
        self._tap, self._sites = tap, list(sites) if isinstance(sites, Iterator) else sites
        self._tokens, self._mask = tokens, mask
        self._past = KeyValueCache()

    def logits(self) -> Tensor:
        """Return the logits of the next token, shape [batch d_vocab]."""
        if self._tokens.shape[1] > self._model.config.n_ctx:
            self._past = KeyValueCache()
            n = self._model.config.n_ctx
            self._tokens, self._mask = self._tokens[:, -n:], self._mask[:, -n:]
        new, mask = (x[:, self._past.length :] for x in (self._tokens, self._mask))
        # Only the last position of a prompt is needed, unless a tap reads all of them.
        only_last = new.shape[1] > 1 and self._tap is None
        logits: Tensor = self._model(
            new,
            None if bool(mask.all()) else mask,
            self._tap,
            self._sites,
            past=self._past,
            at=torch.full_like(new[:, :1], new.shape[1] - 1) if only_last else None,
        )
        return logits[:, -1]

    def append(self, chosen: Tensor) -> None:
        """Add a token to each row, shape [batch 1]."""
        self._tokens = torch.cat([self._tokens, chosen], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(chosen, dtype=torch.bool)], dim=1)
