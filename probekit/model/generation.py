"""Generation of tokens and texts with a key-value cache: decoding, cache, loop, stop strings."""

import codecs
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.errors import ConfigError, DataError
from probekit.model.config import Bos, ModelConfig, is_number
from probekit.model.network import Network
from probekit.model.passes.inputs import NO_TOKEN, TokenBatch, prepare_tokens, warn_of_padding
from probekit.model.passes.taps import ActivationCache, Tap
from probekit.model.sites.sites import SitePattern, Sites
from probekit.model.text.tokenizer import Tokenizer, batch_of

# NumPy splits larger entries of a seed into 32-bit words, so that different seeds could collide.
MAX_SEED = 2**32 - 1

# Stopping criterion: the new ids of one row -> whether the row ends.
Stop = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Decoding:
    """Decoding parameters.

    Attributes:
        max_new_tokens: maximum number of new tokens of each prompt.
        temperature: 0 is greedy decoding, 1 samples from the model's distribution; lower values
            sharpen it, higher values flatten it.
        top_k: sample from the k most probable tokens only, and from those tied with the last.
        top_p: sample from the smallest set of most probable tokens whose probabilities, after
            temperature and top_k, sum to at least p.
        num_samples: number of continuations of each prompt.
        seed: random seed for sampling, below 2^32. Samples depend only on it, on the tokens of the
            prompt and on the index of the sample, not on the rest of the batch.
        stop: stopping criterion: receives the new ids of a row, returns whether the row ends.
        slide: when the context is full, drop the earliest tokens instead of raising an error. Each
            new token then needs a full forward pass, because all positions shift.

    Raises:
        ConfigError: a value is out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    seed: int = 0
    stop: Stop | None = None
    slide: bool = False

    def __post_init__(self) -> None:
        _check_integer("max_new_tokens", self.max_new_tokens, least=1)
        _check_integer("num_samples", self.num_samples, least=1)
        _check_integer("seed", self.seed, least=0, most=MAX_SEED)
        if self.top_k is not None:
            _check_integer("top_k", self.top_k, least=1)
        if not is_number(self.temperature) or self.temperature < 0:
            raise ConfigError(
                f"temperature must be at least 0 (greedy decoding), not {self.temperature!r}."
            )
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p must be above 0 and at most 1, not {self.top_p!r}.")

    def check_length(self, config: ModelConfig, n_prompt: int) -> None:
        """Raise DataError if `n_prompt` prompt tokens and the new ones exceed the context.

        Raises:
            DataError: there are more tokens than the context, and `slide` is false.
        """
        # The last new token is not counted, because no pass reads it.
        if self.slide or n_prompt + self.max_new_tokens - 1 <= config.n_ctx:
            return
        room = config.n_ctx - n_prompt + 1
        remedy = f"request at most {room} new ones" if room > 0 else "shorten the prompt"
        raise DataError(
            f"{n_prompt} prompt tokens and {self.max_new_tokens} new ones do not fit the context "
            f"of {config.n_ctx}: {remedy}, or set slide, which drops the earliest tokens."
        )

    def generators(self, prompts: Sequence[Sequence[int]]) -> list[np.random.Generator]:
        """Return the random generator of each row; an empty list for greedy decoding.

        The samples of a prompt are consecutive rows.

        >>> len(Decoding(1, temperature=1, num_samples=2).generators([[5, 6], [7]]))
        4
        """
        if self.temperature == 0:
            return []
        # NumPy pads short seeds with zeros: without the length, [5] and [5, 0] would be equal.
        return [
            np.random.default_rng([self.seed, sample, len(prompt), *prompt])
            for prompt in prompts
            for sample in range(self.num_samples)
        ]

    def choose(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Return the next token of each row, shape [batch].

        Args:
            logits: shape [batch d_vocab].
            draws: uniform in [0, 1), shape [batch]; unused, and may be empty, if temperature is 0.

        >>> logits = torch.tensor([[0.0, 3.0, 2.9, 0.0]])
        >>> Decoding(1, temperature=1, top_k=2).choose(logits, torch.tensor([0.99]))
        tensor([2])

        Raises:
            DataError: a row has a logit that is NaN or inf, or none above -inf.
        """
        best = logits.amax(-1, keepdim=True)
        # The maximum of a row with a NaN is NaN, that of a row of -inf is -inf.
        wrong_rows = (~best[:, 0].isfinite()).nonzero()
        if len(wrong_rows):
            row = int(wrong_rows[0])
            prompt, sample = 1 + row // self.num_samples, 1 + row % self.num_samples
            raise DataError(
                f"The logits of prompt {prompt}, sample {sample} are not finite (the largest is "
                f"{best[row].item()}), so no token can be chosen. Either a tap returns NaN or inf, "
                "or float16 overflows: check the tap, or load the model in float32 or bfloat16."
            )
        if self.temperature == 0:
            return logits.argmax(-1)
        # Relative to the maximum, so that a small temperature gives -inf rather than NaN.
        scaled = (logits - best).double() / self.temperature
        if self.top_k is not None:
            scaled = keep_top_k(scaled, self.top_k)
        if self.top_p is not None:
            scaled = keep_top_p(scaled, self.top_p)
        sums = scaled.softmax(-1).cumsum(-1)
        # The first token whose cumulative sum exceeds the draw; never one of probability 0. The
        # draw is scaled to stay below the last sum, which is 1 up to rounding.
        return torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k highest logits of each row, and any equal to the last of them; -inf elsewhere.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[-inf, 3., 2.]])
    """
    threshold = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < threshold, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the logits of the nucleus of each row; -inf elsewhere.

    The nucleus is the smallest set of most probable tokens whose probabilities sum to at least p.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.

    >>> keep_top_p(torch.tensor([[0.5, 0.2, 0.3]]).log(), 0.6).exp()
    tensor([[0.5000, 0.0000, 0.3000]])
    """
    ordered, order = logits.softmax(-1).sort(descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= p  # the more probable tokens sum to p or more
    # Place i of a row is for the token `order[i]`; scatter replaces all entries.
    return logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)


def _check_integer(name: str, value: object, least: int, most: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name} must be an integer {allowed}, not {value!r}.")


class KeyValueCache:
    """Keys and values of all tokens read so far, for each block of one model; initially empty.

    Pass the same cache to consecutive forward passes, under `torch.no_grad()`. A tap is then called
    with the new positions only, and the keys and values that it returns are cached. A pass that
    fails or stops early leaves the cache unchanged.

    >>> from probekit import GPT2
    >>> model, past = GPT2.from_pretrained("mini"), KeyValueCache()
    >>> tokens = torch.tensor([[5, 6, 7]])
    >>> _ = model(tokens[:, :2], past=past)
    >>> torch.allclose(model(tokens[:, 2:], past=past), model(tokens)[:, 2:], atol=1e-4)
    True
    >>> past.length
    3
    """

    def __init__(self) -> None:
        self.length = 0  # columns read, including padding
        self._model: weakref.ref[nn.Module] | None = None
        self._n_rows = 0
        self._mask: Tensor | None = None  # [batch length]; None until a pass has a mask
        self._storage: dict[int, Tensor] = {}  # by block, [kv batch n_heads capacity d_head]

    def join_mask(self, model: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask of cached and new columns, or None if no pass had a mask.

        The first pass also binds the cache to its model.

        Raises:
            DataError: the cache belongs to another model or has another batch size.
        """
        if self.length and self._model is not None and self._model() is not model:
            raise DataError(
                "The cache was filled by another model. Pass a new KeyValueCache for each model."
            )
        self._model = weakref.ref(model)
        if self.length and self._n_rows != len(tokens):
            raise DataError(
                f"The cache holds {self._n_rows} rows, the tokens have {len(tokens)}. "
                "Continue the same rows, or pass a new KeyValueCache."
            )
        self._n_rows = len(tokens)
        if mask is None and self._mask is None:
            return None
        old, new = self._mask, mask
        if old is None:
            old = torch.ones(len(tokens), self.length, dtype=torch.bool, device=tokens.device)
        if new is None:
            new = torch.ones_like(tokens, dtype=torch.bool)
        return torch.cat([old, new.to(device=tokens.device, dtype=torch.bool)], dim=1)

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all columns, shape [batch key_pos n_heads d_head] each.

        Args:
            layer: index of the block.
            k: keys of the new columns, shape [batch pos n_heads d_head].
            v: values of the new columns, shape [batch pos n_heads d_head].
        """
        end = self.length + k.shape[1]
        # While the length is 0, storage can only be left from a failed pass and is not reused.
        previous = self._storage[layer] if self.length else None
        if previous is None or previous.shape[3] < end:
            batch, _, n_heads, d_head = k.shape
            # Full storage is doubled, so copies are rare.
            larger = k.new_empty(2, batch, n_heads, max(end, 2 * self.length), d_head)
            if previous is not None:
                larger[:, :, :, : self.length] = previous[:, :, :, : self.length]
            self._storage[layer] = larger
        keys, values = self._storage[layer]  # [batch n_heads capacity d_head] each
        keys[:, :, self.length : end] = k.transpose(1, 2)
        values[:, :, self.length : end] = v.transpose(1, 2)
        return keys[:, :, :end].transpose(1, 2), values[:, :, :end].transpose(1, 2)

    def of_rows(self, rows: Tensor) -> "KeyValueCache":
        """Return a cache of some rows, whose keys and values transformers holds."""
        selected = KeyValueCache()
        selected.length, selected._n_rows, selected._model = self.length, len(rows), self._model
        selected._mask = None if self._mask is None else self._mask[rows]
        return selected

    def advance(self, n_new: int, mask: Tensor | None) -> None:
        """Add the new columns to `length`, after the last block has extended the cache."""
        self.length += n_new
        self._mask = mask


class Recording:
    """A tap that stores the activations of consecutive forward passes, as in generation.

    Joined, they equal those of a single pass over the whole text. The last generated token has
    none, because no pass has read it. Generation with `slide=True` refuses a Recording, because
    overlapping windows cannot be joined.

    >>> from probekit import GPT2, generate
    >>> model, tokens, record = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]]), Recording()
    >>> _ = generate(model, tokens, 4, tap=record, sites=["blocks.*.hook_resid_post"])
    >>> record.cache(model.sites)["resid_post", 5].shape
    torch.Size([1, 6, 256])
    """

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Store a value and return it."""
        # A clone of a value that requires a gradient would not be the tensor later ones depend on.
        stored = value if value.requires_grad else value.clone()
        self._values.setdefault(site, []).append(stored)
        return value

    def cache(self, sites: Sites) -> ActivationCache:
        """Return the activations of all passes so far, joined along the positions.

        Args:
            sites: the sites of the model.
        """
        joined = {}
        for site, parts in self._values.items():
            axes = sites.axes_of(site)
            if "key_pos" not in axes:
                joined[site] = torch.cat(parts, dim=axes.index("pos"))
                continue
            # Earlier passes lack the later keys; a single pass would mask them.
            n_keys = parts[-1].shape[-1]
            # The table has sites without the choice of a head, such as [head=1] in `site`.
            masked = sites.describe(site.partition("[")[0]).masked
            padded = [F.pad(part, (0, n_keys - part.shape[-1]), value=masked) for part in parts]
            joined[site] = torch.cat(padded, dim=axes.index("query_pos"))
        return ActivationCache(joined, sites)


ENDED = NO_TOKEN  # the id after the end of a row


def generate(
    model: Network,
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
        top_k: sample from the k most probable tokens only, and from those tied with the last.
        top_p: sample from the smallest set of most probable tokens whose probabilities, after
            temperature and top_k, sum to at least p.
        num_samples: number of continuations of each prompt.
        seed: random seed for sampling, below 2^32. Samples depend only on it, on the prompt and on
            the index of the sample, not on the rest of the batch.
        stop: stopping criterion, such as `StopStrings`: receives the new ids of a row, returns
            whether the row ends.
        slide: when the context is full, drop the earliest tokens instead of raising an error.
        tap: called at each site in each pass; may replace the value. The first pass has all prompt
            tokens, later ones the newest token only; once `slide` drops tokens, a full context.
        sites: names, globs and shorthands of the sites at which the tap is called; None means all
            except those computed on request.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> generate(model, torch.tensor([[10, 20]]), 3, temperature=0.8, num_samples=2).shape
    torch.Size([2, 3])

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: a decoding parameter is out of range, `sites` are given without a tap, or the
            model is in training mode.
        DataError: the prompts are invalid, or exceed the context together with the new tokens; the
            logits are not finite; or `slide` is used with a `Recording`.
    """
    decoding = Decoding(max_new_tokens, temperature, top_k, top_p, num_samples, seed, stop, slide)
    steps = new_tokens(model, tokens, decoding, mask=mask, tap=tap, sites=sites)
    return torch.stack(list(steps), dim=1)


@torch.no_grad()
def new_tokens(
    model: Network,
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
    given_ids, given_mask = prepare_tokens(model.config, tokens, mask)
    if given_mask is None:
        warn_of_padding(model.config, given_ids)
        given_mask = torch.ones_like(given_ids, dtype=torch.bool)
    if not len(given_ids):
        raise DataError("tokens has no rows. Pass at least one prompt.")
    given_ids, is_token = given_ids.to(model.device), given_mask.bool().to(model.device)
    # New tokens follow on the right, so that all padding moves to the left.
    padding_first = is_token.to(torch.int8).argsort(dim=-1, stable=True)
    longest = int(is_token.sum(-1).max())
    prompt_ids = given_ids.gather(1, padding_first)[:, -longest:]
    prompt_mask = is_token.gather(1, padding_first)[:, -longest:]
    decoding.check_length(model.config, longest)
    prompts = [row[real].tolist() for row, real in zip(prompt_ids, prompt_mask, strict=True)]
    generators = decoding.generators(prompts)
    # Both grow by one column in each step.
    ids = prompt_ids.repeat_interleave(decoding.num_samples, 0)
    mask = prompt_mask.repeat_interleave(decoding.num_samples, 0)
    sites = list(sites) if isinstance(sites, Iterator) else sites  # every step reads them again
    past, n_ctx = KeyValueCache(), model.config.n_ctx
    new_ids: list[list[int]] = [[] for _ in ids]  # of each row, for the stopping criterion
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(decoding.max_new_tokens):
        if ids.shape[1] > n_ctx:  # only with `slide`; cached keys have the earlier positions
            past, ids, mask = KeyValueCache(), ids[:, -n_ctx:], mask[:, -n_ctx:]
        unread, unread_mask = ids[:, past.length :], mask[:, past.length :]
        attended = None if bool(unread_mask.all()) else unread_mask
        # Only the last position of a prompt is needed, unless a tap reads all of them.
        only_last = unread.shape[1] > 1 and tap is None
        # Shape [batch 1].
        last = torch.full_like(unread[:, :1], unread.shape[1] - 1) if only_last else None
        logits: Tensor = model(unread, attended, tap, sites, past=past, at=last)[:, -1]
        draws = torch.tensor([generator.random() for generator in generators], dtype=torch.float64)
        chosen = decoding.choose(logits.float().to(ids.device), draws.to(ids.device))
        yield chosen.masked_fill(ended, ENDED)
        if decoding.stop is not None:
            for row, token in zip(new_ids, chosen.tolist(), strict=True):
                row.append(token)
            ended |= torch.tensor([decoding.stop(row) for row in new_ids], device=ids.device)
            if bool(ended.all()):
                return
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        mask = F.pad(mask, (0, 1), value=True)


@dataclass(frozen=True)
class Continuation:
    """Generated continuation of a prompt.

    Attributes:
        text: generated text before the stop string.
        ids: the tokens of this text; the last one may also contain a part of the stop string.
        stopped_by: stop string that ended the text; None if `max_new_tokens` did.
    """

    text: str
    ids: tuple[int, ...]
    stopped_by: str | None


class StopStrings:
    """Stopping criterion: ends a row when its new text contains one of the given strings.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> stop = StopStrings(tokenizer, ["."])
    >>> stop(tokenizer.encode("The end", bos=False).ids), stop.cut("The end. And")
    (False, 'The end')

    Raises:
        ConfigError: one of the strings is empty, or `strings` is a single string.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(strings):
            raise ConfigError(f"Stop strings must be a list of non-empty strings, not {strings!r}.")
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        # In bytes; without strings no tail contains one, so that its length does not matter.
        self._longest = max((len(text.encode()) for text in strings), default=0)

    def __call__(self, ids: Sequence[int]) -> bool:
        """Return whether one of the last ids completes a stop string."""
        # A token has at least one byte, so this many tokens contain the longest stop string.
        tail = self._tokenizer.bytes_of(ids[-self._longest :])
        return any(text.encode() in tail for text in self.strings)

    def cut(self, text: str) -> str:
        """Return the text before the first stop string in it."""
        starts = [text.find(stop) for stop in self.strings if stop in text]
        return text[: min(starts, default=len(text))]

    def continuation(self, row: Sequence[int], longest: int) -> Continuation:
        """Return the continuation in the new tokens of a row: at most `longest`.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> row = tokenizer.encode("The end. And", bos=False).ids.tolist()
        >>> StopStrings(tokenizer, ["."]).continuation(row, 9).text
        'The end'
        """
        ids = [token for token in row if token != ENDED][:longest]
        ends = (n for n in range(1, len(ids) + 1) if self(ids[:n]))
        ids = ids[: next(ends, longest)]
        text = self._tokenizer.decode(ids)
        cut = self.cut(text)
        n_ids = int((self._tokenizer.decode_tokens(ids).offsets[:, 0] < len(cut)).sum())
        stops = (stop for stop in self.strings if text.startswith(stop, len(cut)))
        return Continuation(cut, tuple(ids[:n_ids]), next(stops, None))

    def n_final(self, text: str) -> int:
        """Return how many first characters of a growing text no stop string can include.

        >>> StopStrings(Tokenizer.from_pretrained("mini"), ["<end>"]).n_final("so <en")
        3
        """
        prefixes = {stop[:n] for stop in self.strings for n in range(1, len(stop))}
        n_open = max((len(part) for part in prefixes if text.endswith(part)), default=0)
        return min(len(self.cut(text)), len(text) - n_open)


def continue_texts(
    model: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    decoding: Decoding,
    *,
    bos: Bos = "auto",
    chat: bool = False,
    stop: Sequence[str] | None = None,
    tap: Tap | None = None,
    sites: Sequence[str] | None = None,
) -> list[list[Continuation]]:
    """Return `decoding.num_samples` continuations of each prompt, generated in one batch.

    Args:
        model: the network.
        tokenizer: its tokenizer.
        prompts: texts to continue.
        decoding: decoding parameters; its stopping criterion is not used.
        bos: whether to put the beginning-of-text token before each prompt.
        chat: whether each prompt is the user's turn, written by the model's chat template, which
            puts that token itself; a continuation is then the assistant's turn.
        stop: strings that end a continuation; None means the tokenizer's ends of text.
        tap: called at each site in each pass; see `generate`.
        sites: names of the sites at which the tap is called; None as in `generate`.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> [[first]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(first.ids), first.stopped_by
    (3, None)

    Raises:
        ConfigError: a stop string is empty; `bos` is true, but the vocabulary has no such token, or
            the prompts are a chat's; or as in `generate`.
        MissingError: the model has no chat template.
        DataError: there is no prompt, one is empty without `bos` or exceeds the context together
            with the new tokens, or the logits are not finite.
        UnknownNameError: no site has one of the names.
    """
    stopping = StopStrings(tokenizer, tokenizer.ends_of_text if stop is None else stop)
    batch = _encode(model, tokenizer, prompts, bos=bos, chat=chat)
    steps = list(new_tokens(model, batch, replace(decoding, stop=stopping), tap=tap, sites=sites))
    return continuations(steps, stopping, decoding)


def continuations(
    steps: Sequence[Tensor], stopping: StopStrings, decoding: Decoding
) -> list[list[Continuation]]:
    """Return the continuations of each prompt in the steps of `new_tokens`."""
    rows = torch.stack([*steps], 1).tolist()
    found = [stopping.continuation(row, decoding.max_new_tokens) for row in rows]
    n_samples = decoding.num_samples  # of each prompt, in consecutive rows
    return [found[first : first + n_samples] for first in range(0, len(found), n_samples)]


def stream_text(
    model: Network,
    tokenizer: Tokenizer,
    prompt: str,
    decoding: Decoding,
    *,
    bos: Bos = "auto",
    chat: bool = False,
    stop: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield the first continuation of a prompt in pieces, as soon as each is final.

    The pieces join to the text that `continue_texts` returns: an incomplete character, or a
    possible beginning of a stop string, is held back until later tokens decide. Arguments and
    errors are those of `continue_texts`.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> pieces = list(stream_text(model, tokenizer, "She said", Decoding(3), bos=False))
    >>> [[full]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(pieces), "".join(pieces) == full.text
    (3, True)
    """
    stopping = StopStrings(tokenizer, tokenizer.ends_of_text if stop is None else stop)
    batch = _encode(model, tokenizer, [prompt], bos=bos, chat=chat)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text, n_shown = "", 0
    for step in new_tokens(model, batch, replace(decoding, stop=stopping, num_samples=1)):
        text += decoder.decode(tokenizer.bytes_of([int(step)]))
        n_final = stopping.n_final(text)
        if n_final > n_shown:
            yield text[n_shown:n_final]
            n_shown = n_final
    rest = stopping.cut(text + decoder.decode(b"", final=True))[n_shown:]
    if rest:
        yield rest


def _encode(
    model: Network, tokenizer: Tokenizer, prompts: Sequence[str], *, bos: Bos, chat: bool
) -> TokenBatch:
    """Return the tokens of the prompts, padded on the left, on the device of the model."""
    for number, prompt in enumerate(prompts, start=1):
        if not prompt and (chat or not tokenizer.has_bos(bos)):
            which = f"Prompt {number}" if len(prompts) > 1 else "The prompt"
            raise DataError(
                f"{which} is empty. Give a text, or set bos to start from beginning-of-text."
            )
    if not chat:
        return tokenizer.batch(prompts, bos=bos, side="left").to(model.device)
    if bos is True:
        raise ConfigError("The chat template writes beginning-of-text. Leave out bos.")
    return batch_of([tokenizer.encode_chat(text) for text in prompts], "left").to(model.device)
