"""The interface between a network and the rest of the package.

Captures and analyses use these members only; the modules of a network (`wte`, `ln_f`, ...) are
private to `probekit.model`. Each family implements it; `probekit.model.families` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from probekit.model.config import ModelConfig
from probekit.model.passes.cache import ActivationCache, remember
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SitePattern, Sites


class Network(Protocol):
    """A transformer language model with a tap at every site.

    Attributes:
        config: sizes and switches, under the names of the hub's config.json.
        training: whether dropout is active.

    >>> from probekit import GPT2
    >>> network: Network = GPT2.from_pretrained("mini")
    >>> network.sites[:3]
    ('hook_embed', 'hook_pos_embed', 'blocks.0.hook_resid_pre')
    >>> network.axis_sizes["d_model"], network.dtype
    (256, torch.float32)
    """

    config: ModelConfig
    training: bool

    @property
    def sites(self) -> Sites:
        """Names of all sites in the order of the forward pass, with their axes and formulas."""
        return self.config.sites

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Size of each axis that does not depend on the input, e.g. `n_layers` and `d_model`."""
        return self.config.axis_sizes

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""

    @property
    def code_modules(self) -> tuple[str, ...]:
        """Dotted names of the modules whose code computes the activations.

        The key of an activation cache covers their code and that of all modules that they import.
        """
        return (type(self).__module__,)

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""

    @property
    def position_embedding(self) -> Tensor | None:
        """Embedding of every position, shape [n_ctx d_model]; None without learned positions."""

    @property
    def final_norm_gain(self) -> Tensor:
        """Gain of the final norm, shape [d_model]."""

    @property
    def final_norm_bias(self) -> Tensor | None:
        """Bias of the final norm, shape [d_model]; None if it has none."""

    def final_norm(self, resid: Tensor) -> Tensor:
        """Return the final norm of residuals, shape [... d_model]."""

    def unembed(self, x: Tensor) -> Tensor:
        """Return the logits of the output of the final norm, shape [... d_vocab]."""

    def uncapped_logits(self, x: Tensor) -> Tensor:
        """Return the logits before a softcap, which are linear in `x`, shape [... d_vocab].

        They equal `unembed(x)` in a network without a softcap of the logits.
        """

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap of the network; unchanged if it has none."""

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of the heads of a layer and the bias of their sum.

        The matrix has the shape [d_model (n_heads d_head)], the bias [d_model]; None if there is no
        bias.
        """

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""

    def resume(self, resid: Tensor, layer: int, **options: Any) -> Tensor:
        """Return the residual stream after the last block, computed from that at a block.

        `options` are those of `probekit.model.passes.resuming.resume_blocks`.

        >>> from probekit import GPT2
        >>> model, tokens = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]])
        >>> logits, cache = model.run_with_cache(tokens, [("resid_pre", 3)])
        >>> resid = model.resume(cache["resid_pre", 3], 3)
        >>> torch.allclose(model.final_norm(resid) @ model.unembedding.T, logits, atol=1e-4)
        True
        """

    def attention_norm_gain(self, layer: int) -> Tensor | None:  # noqa: ARG002
        """Return the gain of the norm between the heads of a layer and the residual stream.

        Shape [d_model]; None if the output of attention is added to the stream as it is. The scale
        of the norm is the site `ln1_post.hook_scale`.
        """
        return None

    def __call__(self, tokens: Tensor | TokenBatch, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass; see `Decoder.forward`."""

    def run_with_cache(
        self,
        tokens: Tensor | TokenBatch,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        mask: Tensor | None = None,
        *,
        logits: bool = True,
        grad: bool = False,
    ) -> tuple[Tensor | None, ActivationCache]:
        """Return the logits, or None with `logits=False`, and the activations at some sites.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            sites: names, globs or shorthands, heads or neurons such as
                `blocks.3.attn.hook_z[head=2]`, or functions of a name; None means all sites except
                `attn.hook_result`.
            mask: True at tokens, False at padding, shape [batch pos].
            logits: False stops the pass after the last requested site.
            grad: True makes logits and cached values differentiable with respect to every cached
                value, even in a frozen model or under `torch.no_grad()`.

        >>> from probekit import GPT2
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
        parts = self.sites.select(["*"] if sites is None else sites)
        names = [part.text for part in parts]
        values: dict[str, Tensor] = {}
        with torch.set_grad_enabled(grad or torch.is_grad_enabled()):
            out = self(tokens, mask, remember(values, grad=grad), names, logits=logits)
        return out, ActivationCache(values, self.sites)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield all parameters."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return all parameters by name."""
