"""GPT-2, written to be read.

    GPT2 -> wte + wpe -> Block -> ... -> Block -> ln_f -> unembedding (wte, tied)
    Block: resid = resid + attn(ln_1(resid)); resid = resid + mlp(ln_2(resid))

Every tensor worth looking at passes through a tap under the name that sites.py lists: a call
`tap("hook_x", x)` returns x, or what the caller of the forward pass puts in its place.
Parameters carry the hub's names.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the code
published with it (tanh GELU, layer norm before each sublayer, learned positions).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal, cast, overload

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.cache import ActivationCache, remember
from probekit.model.config import GPT2Config, model_config
from probekit.model.cross_entropy import cross_entropy
from probekit.model.initialisation import initialise
from probekit.model.inputs import (
    TokenBatch,
    check_context,
    check_targets,
    following,
    readable,
    warn_of_padding,
)
from probekit.model.kv_cache import Extend, KeyValueCache
from probekit.model.layer_norm import LayerNorm
from probekit.model.linear import Linear
from probekit.model.sites import SitePattern, expand
from probekit.model.taps import ForwardStoppedError, Tap, Taps
from probekit.model.visibility import causal, positions_and_visible, seen_from
from probekit.model.weights.loading import as_dtype, read_checkpoint
from probekit.model.weights.saving import write_checkpoint
from probekit.model.weights.sources import find_model
from probekit.products import attend, is_derived, linear, with_gradient


class Attention(nn.Module):
    """Causal multi-head attention: where to read (pattern) and what to move (v)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_heads = config.n_head
        self.pdrop = config.attn_pdrop
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.has_qkv_bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(
        self, x: Tensor, visible: Tensor | None, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return what attention adds to the residual stream, shape [batch pos d_model]."""
        qkv = rearrange(
            self.c_attn(x), "batch pos (qkv n_heads d_head) -> qkv batch pos n_heads d_head",
            qkv=3, n_heads=self.n_heads,
        )  # fmt: skip
        # Indexed, not unpacked: torch forbids in-place changes of unpacked views.
        q, k, v = tap("hook_q", qkv[0]), tap("hook_k", qkv[1]), tap("hook_v", qkv[2])
        if extend is not None:
            k, v = extend(k, v)  # [batch key_pos n_heads d_head], what was read before and this
        if at is not None:
            visible = seen_from(at, visible, q.shape[1], k.shape[1])
            q = _places(q, at)
        pdrop = self.pdrop if self.training else 0.0
        if tap.wants("hook_attn_scores", "hook_pattern"):
            z = _attend(q, k, v, visible, tap, pdrop)
        else:
            z = _attend_fused(q, k, v, visible, pdrop)
        z = tap("hook_z", z)  # [batch pos n_heads d_head]
        attn_out = cast(Tensor, self.c_proj(z.flatten(2)))
        if tap.wants("hook_result"):
            w_o = rearrange(
                self.c_proj.weight, "d_model (n_heads d_head) -> n_heads d_head d_model",
                n_heads=self.n_heads,
            )  # fmt: skip
            result = einsum(z, w_o, "b pos n_heads d_head, n_heads d_head d -> b pos n_heads d")
            changed = tap("hook_result", result.clone())
            summed = changed.sum(2)
            summed = summed if self.c_proj.bias is None else summed + self.c_proj.bias
            if not torch.equal(changed, result):
                return summed
            # A mere look changes no bit: attn_out is then computed as if nobody had asked.
            if is_derived(summed):
                return with_gradient(attn_out, summed)
        return attn_out


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, tap: Taps, pdrop: float
) -> Tensor:
    if visible is None:
        visible = causal(q.shape[1], k.shape[1], q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head]
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    scores = tap("hook_attn_scores", scores.masked_fill_(~visible, -math.inf))
    pattern = tap("hook_pattern", scores.softmax(-1))
    return (F.dropout(pattern, pdrop) @ v).transpose(1, 2)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, pdrop: float) -> Tensor:
    n_queries, n_keys = q.shape[1], k.shape[1]
    if visible is None and 1 < n_queries < n_keys:
        visible = causal(n_queries, n_keys, q.device)
    is_causal = visible is None and n_queries == n_keys  # a single query sees all there is
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head]
    return attend(q, k, v, visible, is_causal=is_causal, pdrop=pdrop).transpose(1, 2)


class MLP(nn.Module):
    """Two linear maps with a tanh GELU between them; the d_mlp values between are the neurons."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, config.d_mlp, bias=config.bias)
        self.c_proj = Linear(config.d_mlp, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return what the MLP adds to the residual stream, shape [batch pos d_model]."""
        pre = tap("hook_pre", self.c_fc(x))  # [batch pos d_mlp]
        # The exact GELU under these weights is a different network that looks almost right.
        post = tap("hook_post", F.gelu(pre, approximate="tanh"))
        return cast(Tensor, self.c_proj(post))


class Block(nn.Module):
    """One transformer block: attention and MLP, each reading and adding to the residual stream."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.resid_pdrop)

    def forward(
        self, resid: Tensor, visible: Tensor | None, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this block, shape [batch pos d_model].

        With `at`, places of shape [batch asked], it comes of these alone: [batch asked d_model].
        """
        resid = tap("hook_resid_pre", resid)
        normed = self.ln_1(resid, tap.within("ln1"))
        attn_out = self.attn(normed, visible, tap.within("attn"), at, extend)
        if at is not None:
            resid = _places(resid, at)
        resid = tap("hook_resid_mid", resid + tap("hook_attn_out", self.drop(attn_out)))
        mlp_out = self.mlp(self.ln_2(resid, tap.within("ln2")), tap.within("mlp"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self.drop(mlp_out)))


class GPT2(nn.Module):
    """GPT-2 with a tap at every site.

    Args:
        config: the sizes and switches.
        seed: draws the weights as GPT-2 was initialised; None leaves them without storage, on the
            meta device, to be filled by `load_state_dict(..., assign=True)`.

    >>> model = GPT2(GPT2Config(n_layer=2, n_head=3, n_embd=21, vocab_size=97, n_positions=16))
    >>> tokens = torch.tensor([[3, 14, 15, 92, 65]])
    >>> model(tokens).shape
    torch.Size([1, 5, 97])
    >>> logits, cache = model.run_with_cache(tokens, sites=["blocks.*.hook_resid_post"])
    >>> cache["resid_post", 1].shape
    torch.Size([1, 5, 21])
    """

    def __init__(self, config: GPT2Config, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.wte = _embedding(config.vocab_size, config.n_embd)
            self.wpe = _embedding(config.n_positions, config.n_embd)
            self.drop = nn.Dropout(config.embd_pdrop)
            self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
            self.ln_f = LayerNorm(config)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed)
        self.eval()  # no dropout until somebody trains: model.train()

    @property
    def unembedding(self) -> Tensor:
        """The matrix that makes logits of the last layer norm's output, [d_vocab d_model]."""
        unembedding = self.wte if self.config.tie_word_embeddings else self.lm_head
        return unembedding.weight

    @classmethod
    def from_pretrained(
        cls, source: str | Path, dtype: str | torch.dtype = torch.float32, device: str = "cpu"
    ) -> GPT2:
        """Return a trained GPT-2, frozen; call `requires_grad_()` on it to train further.

        Args:
            source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder
                in the hub's format or OpenAI's.
            dtype: of weights and computation: float32, float16, bfloat16 or float64.
            device: where the weights go, e.g. `cuda`.

        Raises:
            MissingError: nothing is found under that name.
            CheckpointError: the files are damaged, or not exactly the tensors of a GPT-2.
        """
        numbers, folder = as_dtype(dtype), find_model(source)
        model = cls(model_config(folder), seed=None)
        model.load_state_dict(read_checkpoint(folder, model.state_dict(), numbers), assign=True)
        return model.to(device).requires_grad_(False)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors as the hub has them; transformers opens them."""
        write_checkpoint(Path(folder), self.config, self.state_dict())

    @overload
    def forward(
        self, tokens: Tensor | TokenBatch, mask: Tensor | None = None, tap: Tap | None = None,
        sites: SitePattern | Iterable[SitePattern] | None = None, *, logits: Literal[True] = True,
        at: Tensor | None = None, past: KeyValueCache | None = None,
    ) -> Tensor: ...  # fmt: skip

    @overload
    def forward(
        self, tokens: Tensor | TokenBatch, mask: Tensor | None = None, tap: Tap | None = None,
        sites: SitePattern | Iterable[SitePattern] | None = None, *, logits: bool,
        at: Tensor | None = None, past: KeyValueCache | None = None,
    ) -> Tensor | None: ...  # fmt: skip

    def forward(
        self,
        tokens: Tensor | TokenBatch,
        mask: Tensor | None = None,
        tap: Tap | None = None,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        *,
        logits: bool = True,
        at: Tensor | None = None,
        past: KeyValueCache | None = None,
    ) -> Tensor | None:
        """Return the logits, shape [batch pos d_vocab].

        Args:
            tokens: token ids, shape [batch pos], or a whole `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos]; None means no padding, or
                that of the `TokenBatch`.
                Positions are counted over real tokens, so padding on either side changes nothing.
            tap: sees the value at each site asked for and returns the value to go on with.
            sites: names, globs and shorthands of the sites that the tap sees; None means all but
                those computed on request (`attn.hook_result`). Attention runs fused unless
                scores or patterns are among them.
            logits: False stops after the last site asked for and returns None.
            at: places in each row of `tokens`, shape [batch asked], where alone the last block has
                queries and an MLP. Its sites behind `attn.hook_v`, those of `ln_final` and the
                logits then have `asked` in place of `pos`.
            past: what was read before; the tokens go on from there, and are then part of it.

        Raises:
            UnknownNameError: no site has a name asked for.
            ConfigError: sites are asked for without a tap to see them, or nothing at all.
            DataError: ids outside the vocabulary, padding without a mask, more tokens than the
                context, a mask whose shape is not that of the tokens or that has an empty row, or a
                `past` of another model or of other rows.
        """
        if tap is None and sites is not None:
            raise ConfigError("`sites` says what the tap sees, but no tap was given.")
        asked = (
            set(expand(["*"] if sites is None else sites, self.config.n_layer)) if tap else set()
        )
        if not logits and not asked:
            raise ConfigError("Nothing is asked of this forward pass: no logits and no site.")
        ids, mask = readable(self.config, tokens, mask)
        if mask is None and past is None:
            warn_of_padding(self.config, ids)
        taps = Taps(tap, asked, stop_when_done=not logits)
        try:
            resid = self._residual_stream(ids, mask, taps, at, past)
            return linear(self.ln_f(resid, taps.within("ln_final")), self.unembedding)
        except ForwardStoppedError:
            return None

    def _residual_stream(
        self, tokens: Tensor, mask: Tensor | None, tap: Taps,
        at: Tensor | None, past: KeyValueCache | None,
    ) -> Tensor:  # fmt: skip
        if past is not None:
            mask = past.mask_with(self, tokens, mask)
        # Found where the tokens lie and then moved: with tokens on the host nothing waits for the
        # device.
        positions, visible = positions_and_visible(tokens, mask, past.length if past else 0)
        check_context(self.config, positions)
        device = self.wte.weight.device
        visible = None if visible is None else visible.to(device)
        embed = tap("hook_embed", self.wte(tokens.to(device)))
        # At least float32, whatever the weights are: each block adds to it, and rounding would too.
        wide = embed.to(torch.promote_types(embed.dtype, torch.float32))
        resid: Tensor = self.drop(wide + tap("hook_pos_embed", self.wpe(positions.to(device))))
        last = len(self.h) - 1
        for layer, block in enumerate(self.h):
            places = at.to(device) if at is not None and layer == last else None
            extend = partial(past.extend, layer) if past else None
            resid = block(resid, visible, tap.within(f"blocks.{layer}"), places, extend)
        if past is not None:
            past.advance(tokens.shape[1], mask)
        return resid

    def run_with_cache(
        self,
        tokens: Tensor | TokenBatch,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        mask: Tensor | None = None,
        *,
        logits: bool = True,
        grad: bool = False,
    ) -> tuple[Tensor | None, ActivationCache]:
        """Return the logits (None if `logits=False`) and the values at the sites asked for.

        Args:
            tokens: token ids, shape [batch pos], or a whole `TokenBatch`.
            sites: one or several names, globs, shorthands; None means all but `attn.hook_result`.
            mask: True at tokens, False at padding, shape [batch pos]; part of a `TokenBatch`.
            logits: False stops after the deepest site asked for.
            grad: True makes the logits and all cached values differentiable with respect to each
                cached value, in a frozen model and under `torch.no_grad()` too. False leaves it to
                torch: values depend on the parameters if these require a gradient.

        >>> model = GPT2.from_pretrained("mini")
        >>> tokens = torch.tensor([[10, 20, 30]])
        >>> _, cache = model.run_with_cache(tokens, sites=[("pattern", 3)])
        >>> cache["pattern", 3].shape
        torch.Size([1, 4, 3, 3])
        >>> logits, cache = model.run_with_cache(tokens, [("resid_post", 2)], grad=True)
        >>> (gradient,) = torch.autograd.grad(logits[0, -1, 40], cache["resid_post", 2])
        >>> gradient.shape
        torch.Size([1, 3, 256])
        """
        names = expand(["*"] if sites is None else sites, self.config.n_layer)
        values: dict[str, Tensor] = {}
        with torch.set_grad_enabled(grad or torch.is_grad_enabled()):
            out = self(tokens, mask, remember(values, grad=grad), names, logits=logits)
        return out, ActivationCache(values, self.config.n_layer)

    def loss(
        self,
        tokens: Tensor | TokenBatch,
        mask: Tensor | None = None,
        *,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy in nats per target.

        Args:
            tokens: token ids, shape [batch pos], or a whole `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos]; None means no padding, or
                that of the `TokenBatch`.
            targets: what each position should predict, shape [batch pos], with -100 where nothing
                is counted; None means the token that follows it.

        Raises:
            DataError: the targets have another shape than the tokens, or none of them is counted.

        >>> model = GPT2.from_pretrained("mini")
        >>> model.loss(torch.tensor([[10, 20, 30, 40]])).ndim
        0
        """
        ids, mask = readable(self.config, tokens, mask)
        if targets is None:
            targets = following(ids, mask)
        x = self.ln_f(self._residual_stream(ids, mask, Taps(None), None, None), Taps(None))
        check_targets(self.config, ids, targets)
        return cross_entropy(x.flatten(0, 1), self.unembedding, targets.flatten())


def _places(value: Tensor, at: Tensor) -> Tensor:
    """Return a value [batch pos ...] at some places of each row, shape [batch asked ...]."""
    return value[torch.arange(len(at), device=at.device)[:, None], at]


def _embedding(n: int, d_model: int) -> nn.Embedding:
    # Left to itself it draws numbers, and that imports torch's compiler where there is no storage.
    return nn.Embedding(n, d_model, _weight=torch.empty(n, d_model))
