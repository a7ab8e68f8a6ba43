"""What the networks of all families share: the forward pass around the blocks, loss and weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import ModelConfig
from probekit.model.layers.cross_entropy import cross_entropy
from probekit.model.layers.modules import Linear, Norm
from probekit.model.network import Network
from probekit.model.passes.context import Context
from probekit.model.passes.inputs import (
    TokenBatch,
    check_context,
    check_targets,
    next_tokens,
    prepare_tokens,
    warn_of_padding,
)
from probekit.model.passes.kv_cache import KeyValueCache
from probekit.model.passes.resuming import resume_blocks
from probekit.model.passes.taps import ForwardStoppedError, Tap, Taps
from probekit.model.sites.parts import tap_parts
from probekit.model.sites.sites import SitePattern
from probekit.model.weights.loading import as_dtype, read_checkpoint
from probekit.model.weights.saving import write_checkpoint
from probekit.model.weights.sources import at_revision, find_model
from probekit.products import linear


class Decoder(nn.Module, Network):
    """A decoder-only transformer with a tap at every site; each family derives its network.

    A family defines `CONFIG`, its modules, and `residual_stream`; its blocks may need more than
    `block_inputs` gives them. Modules are found by the names in `config.WEIGHTS`.
    """

    CONFIG: type[ModelConfig]

    @abstractmethod
    def __init__(self, config: Any, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [d_vocab d_model]."""
        return self.get_parameter(self.config.WEIGHTS.embedding)

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""
        names, is_tied = self.config.WEIGHTS, self.config.tie_word_embeddings
        return self.get_parameter(names.embedding if is_tied else names.unembedding)

    @property
    def position_embedding(self) -> Tensor | None:
        """Embedding of every position, shape [n_ctx d_model]; None without learned positions."""
        return None

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, in order.

        Each has `after_attention(resid, tap)`, the part of the block after `hook_resid_mid`, unless
        the network lacks that site.
        """
        return cast(nn.ModuleList, self.get_submodule(self.config.WEIGHTS.layers.rstrip(".")))

    @property
    def last_norm(self) -> Norm:
        """The norm before the unembedding."""
        return cast(Norm, self.get_submodule(self.config.WEIGHTS.norm))

    @property
    def final_norm_gain(self) -> Tensor:
        """Gain of the final norm, shape [d_model]."""
        return self.last_norm.gain

    @property
    def final_norm_bias(self) -> Tensor | None:
        """Bias of the final norm, shape [d_model]; None if it has none."""
        return self.last_norm.bias

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        heads = cast(Linear, self.blocks[layer].get_submodule(self.config.WEIGHTS.heads))
        return heads.weight, heads.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return self.blocks[layer].get_parameter(f"{self.config.WEIGHTS.neurons}.weight")

    def attention_norm_gain(self, layer: int) -> Tensor | None:
        """Return the gain of the norm between heads and stream, [d_model]; None without one."""
        name = self.config.WEIGHTS.after_heads
        return cast(Norm, self.blocks[layer].get_submodule(name)).gain if name else None

    @abstractmethod
    def residual_stream(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream after the last block, shape [batch pos d_model].

        Args:
            tokens: token ids on the device of the weights, 0 at padding, shape [batch pos].
            context: positions, visibility and cache of the pass.
            tap: taps at all sites.
        """

    def block_inputs(self, context: Context) -> Sequence[tuple[Any, ...]]:
        """Return the inputs of each block besides the stream: visibility, and angles if it rotates."""
        return [(context.visible,)] * len(self.blocks)

    def run_blocks(self, resid: Tensor, context: Context, tap: Taps, start: int = 0) -> Tensor:
        """Return the residual stream after the last block, from that before block `start`.

        Args:
            resid: residual stream, shape [batch pos d_model].
            context: positions, visibility and cache of the pass.
            tap: taps at all sites.
            start: index of the first block that is computed.
        """
        blocks, inputs = self.blocks, self.block_inputs(context)
        for layer in range(start, len(blocks)):
            at = context.at if layer == len(blocks) - 1 else None
            taps, extend = tap.within(f"blocks.{layer}"), context.extend(layer)
            resid = blocks[layer](resid, *inputs[layer], taps, at, extend)
        return resid

    def normed(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the final norm of the residual stream, with taps at `ln_final`."""
        return cast(Tensor, self.last_norm(resid, tap))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.token_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.token_embedding.dtype

    def final_norm(self, resid: Tensor) -> Tensor:
        """Return the final norm of residuals, shape [... d_model]."""
        return self.normed(resid, Taps(None))

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits of the output of the final norm, shape [... d_vocab]."""
        return self.capped(self.uncapped_logits(x))

    def uncapped_logits(self, x: Tensor) -> Tensor:
        """Return the logits before a softcap, which are linear in `x`, shape [... d_vocab]."""
        return linear(x, self.unembedding)

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap of the network; unchanged if it has none."""
        return logits

    def resume(self, resid: Tensor, layer: int, **options: Any) -> Tensor:
        """Return the residual stream after the last block; see `Network.resume`."""
        return resume_blocks(self, resid, layer, **options)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        dtype: str | torch.dtype | None = None,
        device: str = "cpu",
        *,
        revision: str | None = None,
    ) -> Self:
        """Return a pretrained network with frozen parameters; `requires_grad_()` unfreezes them.

        Args:
            source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder
                in the format of the hub (or, for GPT-2, of OpenAI).
            dtype: float32, float16, bfloat16 or float64, for weights and computation; None means
                the dtype of the checkpoint; float16 then becomes float32, because many processors
                are slow in float16 and its range is small.
            device: device of the weights, e.g. `cuda`.
            revision: commit, tag or branch of a model on the hub; the same as `org/name@revision`.

        Raises:
            ConfigError: a revision of a folder is given.
            MissingError: no model has this name, or it has no such revision.
            CheckpointError: a file is damaged, or its tensors are not those of this network.
        """
        weights_dtype = None if dtype is None else as_dtype(dtype)
        source = at_revision(source, revision)
        folder = find_model(source, check=cls.CONFIG.from_folder, vocabulary=cls.CONFIG.VOCABULARY)
        model = cls(cls.CONFIG.from_folder(folder), seed=None)
        names = model.config.WEIGHTS
        tensors = read_checkpoint(
            folder, names, model.state_dict(), weights_dtype, model.config.TITLE
        )
        model.load_state_dict(tensors, assign=True)
        return model.to(device).requires_grad_(False)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which transformers reads, and their digests.

        Raises:
            StoreError: a file cannot be written.
        """
        write_checkpoint(Path(folder), self.config, self.state_dict())

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
        """Return the logits, shape [batch pos d_vocab], or None with `logits=False`.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos]. None means the mask of the
                `TokenBatch`, or no padding. Positions count real tokens, so padding on either side
                does not change the result.
            tap: function called at each requested site; returns the value to continue with.
            sites: names, globs or shorthands of the requested sites, or functions of a name. A
                head or neuron is written as `blocks.3.attn.hook_z[head=2]`. None means all sites
                except those computed on request (`attn.hook_result`). Attention is fused unless
                scores or patterns are requested.
            logits: False stops the pass after the last requested site.
            at: positions in each row of `tokens`, shape [batch n_at]. The last block computes its
                queries and its MLP at these positions only. Its sites after keys and values, the
                sites of `ln_final` and the logits then have the axis n_at in place of pos.
            past: cache with the keys and values of earlier tokens. `tokens` continue these tokens,
                and their keys and values are added to it.

        Raises:
            UnknownNameError: a pattern matches no site.
            ConfigError: `sites` without a tap, or neither logits nor a site is requested.
            DataError: ids outside the vocabulary; padding without a mask; more tokens than the
                context; a mask with another shape or an empty row; or a `past` of another model or
                batch size.
        """
        if tap is None and sites is not None:
            raise ConfigError("`sites` was given without `tap`. Pass a tap, or leave `sites` out.")
        parts = self.sites.select(["*"] if sites is None else sites) if tap else ()
        requested = {part.site for part in parts}
        if not logits and not requested:
            raise ConfigError(
                "Neither logits nor a site is requested. Pass logits=True, or a tap and sites."
            )
        ids, mask = prepare_tokens(self.config, tokens, mask)
        if mask is None and past is None:
            warn_of_padding(self.config, ids)
        tap = tap_parts(self.sites, tap, parts) if tap else None
        taps = Taps(tap, requested, stop_when_done=not logits)
        try:
            resid = self._resid(ids, mask, taps, at, past)
            return self.unembed(self.normed(resid, taps.within("ln_final")))
        except ForwardStoppedError:
            return None

    def _resid(
        self, tokens: Tensor, mask: Tensor | None, tap: Taps,
        at: Tensor | None = None, past: KeyValueCache | None = None,
    ) -> Tensor:  # fmt: skip
        context = Context.of(self, tokens, mask, at, past, self.device)
        check_context(self.config, context.positions)
        resid = self.residual_stream(tokens.to(self.device), context, tap)
        context.end()
        return resid

    def loss(
        self,
        tokens: Tensor | TokenBatch,
        mask: Tensor | None = None,
        *,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy in nats per target.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos].
            targets: id to predict at each position, shape [batch pos]; -100 excludes a position.
                None means the next token.

        Raises:
            DataError: the targets differ in shape from the tokens, lie outside the vocabulary, or
                are all excluded.

        >>> from probekit import GPT2
        >>> model = GPT2.from_pretrained("mini")
        >>> model.loss(torch.tensor([[10, 20, 30, 40]])).ndim
        0
        """
        ids, mask = prepare_tokens(self.config, tokens, mask)
        if targets is None:
            targets = next_tokens(ids, mask)
        x = self.final_norm(self._resid(ids, mask, Taps(None)))
        check_targets(self.config, ids, targets)
        return self.mean_loss(x.flatten(0, 1), targets.flatten())

    def mean_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits of `x`, shape [n_tokens d_model]."""
        return cross_entropy(x, self.unembedding, targets)


def stream_of(embed: Tensor) -> Tensor:
    """Return embeddings in the dtype of the residual stream, at least float32.

    In half precision, rounding errors would accumulate over the blocks.
    """
    return embed.to(torch.promote_types(embed.dtype, torch.float32))


def embedding(n: int, d_model: int) -> nn.Embedding:
    """Return an embedding that is not initialised.

    nn.Embedding would initialise its weight, which imports torch's compiler on the meta device.
    """
    return nn.Embedding(n, d_model, _weight=torch.empty(n, d_model))
