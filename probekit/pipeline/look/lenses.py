"""Logit lens, attribution, head scores, patching and norms of texts that a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probekit.accelerators import check_device
from probekit.activations.forward import ranges
from probekit.activations.records import FloatArray
from probekit.analysis import logits
from probekit.analysis.heads import known_heads, random_repeats, score_heads
from probekit.data.positions import MASSIVE
from probekit.errors import ConfigError, DataError
from probekit.interventions.measures import AnswerMeasure, lacks_space
from probekit.interventions.patching import estimated_effects, patch, patch_top
from probekit.model.config import Bos
from probekit.model.families.table import load_model
from probekit.model.network import Network
from probekit.model.passes.inputs import check_context, check_tokens
from probekit.model.passes.taps import Tap
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.sites.sites import SitePattern
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.pipeline.setup.texts import ReadTexts
from probekit.results.network import MEAN, AttributedLogit, PatchedPair, ScoredHeads
from probekit.results.record import Norms
from probekit.terminal import SILENT, Watcher

HEADS = "blocks.*.attn.hook_z[head=*]"

_DTYPES = {
    "site": "string",
    **dict.fromkeys(("layer", "head", "position"), "Int64"),
    **dict.fromkeys(("edited", "effect", "recovery", "estimate"), "float64"),
}
# Columns as they are computed: `patched`, the measure after the patch, is then renamed to `edited`.
_COLUMNS = ("base", "source", "patched", *(name for name in _DTYPES if name != "edited"))
SAMPLE = 64  # sequences; few suffice, because the ratio is large (about 30 in GPT-2)
MOST_TOKENS = 4  # of the massive ones at a site, in the record
NORM_TOKENS = 1024  # of one pass


@dataclass(frozen=True, eq=False)
class ModelAndTokenizer:
    """A model with its tokenizer."""

    source: str
    model: Network
    tokenizer: Tokenizer

    @classmethod
    def load(cls, source: str, device: str = "cpu") -> ModelAndTokenizer:
        """Return a model with its tokenizer by name or folder.

        Raises:
            ConfigError: the device is not available.
            MissingError: there is no such model.
        """
        check_device(device)
        return cls(source, load_model(source, device=device), Tokenizer.from_pretrained(source))

    def ids(self, text: str, *, bos: Bos = "auto", chat: bool = False) -> Tensor:
        """Return the token ids of a text, shape (n_tokens,); of the user's turn for a chat.

        Raises:
            ConfigError: both `bos` and `chat` are true.
            MissingError: the model has no chat template.
            DataError: the text has no token, or is longer than the context.
        """
        if bos is True and chat:
            raise ConfigError("The chat template writes beginning-of-text. Leave out bos.")
        encoded = self.tokenizer.encode_chat(text) if chat else self.tokenizer.encode(text, bos=bos)
        ids = encoded.ids
        if not len(ids):
            raise DataError("The text is empty.")
        tokens = torch.from_numpy(ids).to(self.model.device)
        check_tokens(self.model.config, tokens[None])
        check_context(self.model.config, torch.arange(len(tokens)))
        return tokens


def read_lens(
    network: ModelAndTokenizer,
    texts: Sequence[str],
    *,
    bos: Bos = "auto",
    chat: bool = False,
    sites: Sequence[SitePattern] = logits.SITES,
    top_k: int = logits.TOP_K,
    watcher: Watcher = SILENT,
) -> pd.DataFrame:
    """Return the logit lens of texts: rows of `lens_rows`, with the text's number as `prompt`.

    Texts are numbered from 1. There is at least one. For a chat, each is the user's turn.

    >>> mini = ModelAndTokenizer.load("mini")
    >>> read_lens(mini, ["The keys", "A door"], bos=False)["prompt"].nunique()
    2

    Raises:
        UnknownNameError: a name matches no site.
        ConfigError: a site does not support the lens, or top_k is out of range.
        DataError: a text has no token, or more than the context.
    """
    # The output of the last layer always comes last.
    names = logits.lens_sites([*sites, ("resid_post", -1)], network.model.sites)
    tables = []
    for number, ids in enumerate([network.ids(text, bos=bos, chat=chat) for text in texts], 1):
        result = logits.logit_lens(network.model, ids, names, top_k=top_k, watcher=watcher)
        rows = logits.lens_rows(result, names, ids, network.tokenizer)
        rows.insert(0, "prompt", number)
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def attribute(
    network: ModelAndTokenizer,
    text: str,
    token: str | None = None,
    *,
    bos: Bos = "auto",
    minus: str | None = None,
    minus_mean: bool = False,
    position: int = -1,
) -> AttributedLogit:
    """Return the contribution of each component to the logit of a token after a text.

    Args:
        network: model and tokenizer.
        text: input text.
        token: text of the token, with the space before a word; None for the most probable one.
        bos: whether to prepend the beginning-of-text token to the text.
        minus: token whose logit is subtracted.
        minus_mean: whether to subtract the mean logit of all tokens.
        position: position of the logit; negative numbers count from the end.

    >>> mini = ModelAndTokenizer.load("mini")
    >>> found = attribute(mini, "The keys to the", " old", bos=False, minus=" new")
    >>> len(found.rows), found.position
    (39, 3)

    Raises:
        ConfigError: there is no such position, a token text is not a single token, or both `minus`
            and `minus_mean` are given.
        DataError: the text is empty, or longer than the context.
    """
    ids = network.ids(text, bos=bos)
    place = logits.position_from_start(position, len(ids))
    with torch.inference_mode():
        values = network.model(ids[None, : place + 1])[0, -1].float()
    chosen = int(values.argmax()) if token is None else one_token(network.tokenizer, token)
    subtracted = None if minus is None else one_token(network.tokenizer, minus)
    result = logits.logit_attribution(
        network.model, ids, chosen, minus=subtracted, minus_mean=minus_mean, position=place
    )
    names = network.tokenizer.strings
    subtracted_name = "" if subtracted is None else names([subtracted])[0]
    if minus_mean:
        subtracted_name = MEAN
    words = (tuple(names(ids.tolist())), place, names([chosen])[0], subtracted_name)
    rank = int((values > values[chosen]).sum()) + 1
    numbers = (result.logit, float(values.softmax(-1)[chosen]), rank)
    return AttributedLogit(*words, *numbers, result.rows)


def one_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of a token by its text; a special token has its own name.

    >>> one_token(Tokenizer.from_pretrained("mini"), " the") != 0
    True

    Raises:
        ConfigError: the text is empty or several tokens.
    """
    if text in tokenizer.special:
        return tokenizer.special[text]
    ids = tokenizer.encode(text, bos=False).ids
    if len(ids) == 1:
        return int(ids[0])
    if not len(ids):
        raise ConfigError("The token is empty. Give its text, with the space before a word.")
    pieces = ", ".join(map(repr, tokenizer.strings(ids)))
    spaced = tokenizer.encode(f" {text}", bos=False).ids
    advice = "Give the text of a single token."
    if len(spaced) == 1:
        advice = f"With a space before it, {f' {text}'!r}, it is a single token."
    raise ConfigError(f"{text!r} is {len(ids)} tokens of this model: {pieces}. {advice}")


def scored_heads(
    network: ModelAndTokenizer,
    texts: Sequence[str] = (),
    *,
    n: int = 10,
    length: int = 50,
    seed: int = 0,
    bos: Bos = "auto",
    watcher: Watcher = SILENT,
) -> ScoredHeads:
    """Return the scores of every head on texts or, without texts, on repeated random tokens.

    Args:
        network: the model with its tokenizer.
        texts: the texts.
        n: number of random sequences.
        length: number of random tokens, which are repeated once.
        seed: random seed of these tokens.
        bos: whether to prepend the beginning-of-text token.
        watcher: receives progress.

    >>> mini = ModelAndTokenizer.load("mini")
    >>> scored_heads(mini, ["The key and the key"], bos=False).read
    '1 text of 5 tokens'
    >>> scored_heads(mini, n=2, length=10, bos=False).read
    '2 sequences of 10 random tokens, each repeated once, seed 0'

    Raises:
        ConfigError: n or the length is below 1, or the length exceeds the number of different
            tokens, or twice the length, with beginning-of-text, exceeds the context.
        DataError: a text is empty or longer than the context.
    """
    has_bos = network.tokenizer.has_bos(bos)
    context, n_bos = network.model.config.n_ctx, int(has_bos)
    if texts:
        sequences = [network.ids(text, bos=bos) for text in texts]
        noun, n_tokens = "text" if len(texts) == 1 else "texts", sum(map(len, sequences))
        read = f"{len(texts)} {noun} of {n_tokens:,} tokens"
    elif n_bos + 2 * length > context:
        after = " after beginning-of-text" if has_bos else ""
        raise ConfigError(
            f"{length} tokens, repeated once{after}, exceed the context of {context}. Allowed: a "
            f"length of at most {(context - n_bos) // 2}."
        )
    else:
        bos_id = network.tokenizer.bos_id if has_bos else None
        sequences = random_repeats(network.tokenizer.ordinary_ids, n, length, seed=seed, bos=bos_id)
        noun = "sequence" if n == 1 else "sequences"
        read = f"{n} {noun} of {length} random tokens, each repeated once, seed {seed}"
    on_device = [ids.to(network.model.device) for ids in sequences]
    rows = score_heads(network.model, on_device, watcher)
    return ScoredHeads(rows, read, known_heads(network.model))


def patch_pair(
    network: ModelAndTokenizer,
    clean: str,
    corrupt: str,
    answer: str,
    wrong: str,
    *,
    bos: Bos = "auto",
    sites: Sequence[SitePattern] = logits.SITES,
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
            from gradients, that are verified by patching, at least 1; None patches all without
            estimates.

    >>> mini = ModelAndTokenizer.load("mini")
    >>> pair = patch_pair(mini, "The old key", "The old keys", " is", " are", bos=False)
    >>> len(pair.rows), round(float(pair.rows["recovery"].iloc[-1]), 4)  # last block, last token
    (21, 1.0)

    Raises:
        DataError: the texts are empty, equal, too long, or have unequal numbers of tokens.
        ConfigError: an answer is not a single token, both are the same, or `verify` is below 1.
        UnknownNameError: a pattern matches no site.
    """
    if verify is not None and verify < 1:
        raise ConfigError(f"The number of verified patches is {verify}. Allowed: at least 1.")
    tokenizer = network.tokenizer
    right_id, wrong_id = one_token(tokenizer, answer), one_token(tokenizer, wrong)
    if right_id == wrong_id:
        raise ConfigError(
            f"The answer and the wrong answer are both {answer!r}, so their logits never differ. "
            "Give two tokens."
        )
    clean_ids, corrupt_ids = network.ids(clean, bos=bos), network.ids(corrupt, bos=bos)
    if len(clean_ids) != len(corrupt_ids):
        strings = [tokenizer.strings(ids.tolist()) for ids in (clean_ids, corrupt_ids)]
        listed = "\n  ".join(" ".join(map(repr, tokens)) for tokens in strings)
        raise DataError(
            f"The clean text has {len(clean_ids)} tokens and the corrupt text {len(corrupt_ids)}, "
            "so positions do not correspond. Use texts with equal numbers of tokens:\n  " + listed
        )
    if torch.equal(clean_ids, corrupt_ids):
        raise DataError(
            "The clean and the corrupt text have the same tokens, so patching changes nothing. "
            "Change the corrupt text where the answer depends on it."
        )
    batches = tokenizer.batch([clean], bos=bos), tokenizer.batch([corrupt], bos=bos)
    measure = AnswerMeasure(torch.tensor([right_id]), torch.tensor([wrong_id]))
    grids: list[tuple[Iterable[SitePattern], Literal["all", "each"]]] = [(sites, "each")]
    if heads:
        grids.append(([HEADS], "all"))
    rows: list[dict[str, object]] = []
    for patterns, at in grids:
        if verify is None:
            rows += map(asdict, patch(network.model, *batches, measure, patterns, at=at))
            continue
        estimates = estimated_effects(network.model, *batches, measure, patterns, at=at)
        for top in patch_top(network.model, *batches, measure, estimates, top=verify, at=at):
            site = top.patch.selection
            place = {"site": site.text, "layer": layer_of(site.site), "head": site.head}
            effect = {} if top.verified is None else asdict(top.verified)
            rows.append(effect | place | {"position": top.patch.position, "estimate": top.estimate})
    # Rows that are only estimated have no `base` and no `source`.
    table = pd.DataFrame(rows, columns=_COLUMNS)
    # Patches of all positions have no number of a position: "all" becomes a missing value.
    table["position"] = pd.to_numeric(table["position"], errors="coerce")
    return PatchedPair(
        clean=tuple(tokenizer.strings(clean_ids.tolist())),
        corrupt=tuple(tokenizer.strings(corrupt_ids.tolist())),
        answer=tokenizer.strings([right_id])[0],
        wrong=tokenizer.strings([wrong_id])[0],
        base=float(table["base"].dropna().iloc[0]),
        source=float(table["source"].dropna().iloc[0]),
        rows=table.rename(columns={"patched": "edited"})[list(_DTYPES)].astype(_DTYPES),
        unspaced=tuple(text for text in (answer, wrong) if lacks_space(tokenizer, clean, text)),
    )


@torch.inference_mode()
def residual_norms(model: Network, texts: ReadTexts, design: ExperimentDesign) -> list[Norms]:
    """Return median norms and massive activations at each site along d_model; see `Norms`.

    They are those of at most `SAMPLE` distinct sequences of at least two tokens, evenly spaced over
    the data. Without such sites or sequences the list is empty.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"; Sun et al.
    2024, "Massive Activations in Large Language Models".
    """
    sites = [site for site in texts.sites if describe(site).axes == ("batch", "pos", "d_model")]
    distinct = list({ids.tobytes(): ids for ids in texts.ids if len(ids) > 1}.values())
    if not sites or not distinct:
        return []
    chosen = np.linspace(0, len(distinct) - 1, min(SAMPLE, len(distinct))).astype(int)
    sequences = sorted((distinct[index] for index in chosen), key=len)
    norms: dict[str, list[Tensor]] = {site: [] for site in sites}

    def measure(site: str, value: Tensor) -> Tensor:
        """Keep the norms of sequences of one length at a site, as a tap that changes nothing."""
        norms[site].append(value.float().norm(dim=-1).flatten().cpu())  # [batch pos]
        return value

    passes: list[tuple[Tensor, None, Tap, None]] = []
    for length, of_length in groupby(sequences, key=len):
        tokens = torch.from_numpy(np.stack(list(of_length))).to(model.device)
        batches = torch.split(tokens, max(1, NORM_TOKENS // length))
        passes += [(batch, None, measure, None) for batch in batches]
    for _ in model.run_together(passes, sites):
        pass
    lengths, plan = np.array([len(ids) for ids in sequences]), texts.plan
    starts = np.cumsum(lengths) - lengths
    start_of = dict(zip((ids.tobytes() for ids in sequences), starts.tolist(), strict=True))
    # The sampled token of each position that rows read; -1 if their text is not sampled.
    start = np.array([start_of.get(ids.tobytes(), -1) for ids in texts.ids])
    start = np.repeat(start[plan.example], np.diff(plan.offsets))
    read = np.where(start < 0, -1, start + plan.positions)
    text, position = np.repeat(np.arange(len(lengths)), lengths), ranges(0 * starts, lengths)
    token = np.where(position > 0, np.concatenate(sequences), -1)
    tokens_of = texts.tokenizer.strings

    def of_site(site: str, norms: FloatArray) -> Norms:
        """Return the facts of a site from the norms (n_tokens,) of the sampled tokens."""
        first, other = (float(np.median(norms[(position == 0) == it])) for it in (True, False))
        is_massive, found = norms > MASSIVE * other, []
        for one in np.unique(token[is_massive]).tolist():
            at, name = is_massive & (token == one), "" if one < 0 else tokens_of([one])[0]
            ends = int(position[at].min()), int(position[at].max())
            found.append((name, len(set(text[at])), *ends))
        # Whether each row reads such a token; NaN if its text is not sampled.
        reads = np.logical_or.reduceat(np.append(is_massive, False)[read], plan.offsets[:-1])
        reads = np.where(read[plan.offsets[:-1]] < 0, np.nan, reads)
        shares = {
            one.text: float(np.nanmean(reads[k :: len(design.positions)]))
            for k, one in enumerate(design.positions)
        }
        return Norms(
            site=site, layer=layer_of(site), first_position_norm=first, other_norm=other,
            n_texts=len(lengths), massive=sorted(found, key=lambda one: -one[1])[:MOST_TOKENS],
            read={} if plan.skip_massive else shares,
        )  # fmt: skip

    return [of_site(site, torch.cat(norms[site]).numpy()) for site in sites]
