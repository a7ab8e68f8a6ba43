"""Cross-entropy after the unembedding, computed in chunks of tokens.

The logits of 4,096 tokens over a vocabulary of 50,257 take 0.8 GB, and softmax, loss and gradient
read and write them several times. A chunk of a few hundred tokens fits the processor's cache: it
needs less memory, and training a small model on a CPU is a fifth faster.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from probekit.model.passes.inputs import NOT_COUNTED
from probekit.products import linear, to_device

CHUNK = 256  # tokens whose logits are in memory at once


def cross_entropy(
    x: Tensor, unembedding: Tensor, targets: Tensor, softcap: float | None = None
) -> Tensor:
    """Return the mean cross-entropy in nats over all targets other than -100, a scalar.

    Without a softcap it equals `F.cross_entropy(x @ unembedding.T, targets)`. Only first-order
    gradients exist.

    Args:
        x: output of the final norm, shape [n_tokens d_model].
        unembedding: shape [d_vocab d_model].
        targets: id to predict at each token, -100 to exclude it, shape [n_tokens]; at least one is
            not excluded.
        softcap: cap c of the logits l, which become c tanh(l / c); None for none.

    >>> x, unembedding = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    >>> round(cross_entropy(x, unembedding, torch.tensor([0, -100])).item(), 5)
    0.00025
    """
    x, targets = (to_device(one, unembedding.device) for one in (x, targets))
    return cast(Tensor, _CrossEntropy.apply(x, unembedding, targets, softcap))  # type: ignore[no-untyped-call]  # torch's


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while the logits of a chunk are in memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, unembedding: Tensor, targets: Tensor, softcap: float | None
    ) -> Tensor:
        """Return the loss; keep the gradients of `x` and `unembedding` for the backward pass."""
        counted = targets != NOT_COUNTED
        loss_dtype = torch.promote_types(x.dtype, torch.float32)
        shares = counted.to(loss_dtype) / counted.sum()  # of each token in the mean, [n_tokens]
        targets = targets.clamp(min=0)  # excluded ones become a valid id, with the share 0
        loss = torch.zeros((), dtype=loss_dtype, device=x.device)
        differentiated = (x, unembedding) if any(ctx.needs_input_grad) else ()
        grads = [torch.zeros_like(tensor) for tensor in differentiated]
        x_cast, unembedding_cast = _autocast(x), _autocast(unembedding)
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            # Shapes [chunk d_model], [chunk 1] and [chunk 1].
            part, share, target = x_cast[chunk], shares[chunk, None], targets[chunk, None]
            logits = linear(part, unembedding_cast).to(loss_dtype)  # [chunk d_vocab]
            if softcap is not None:
                logits = softcap * (logits / softcap).tanh()
            log_p = logits.log_softmax(-1)
            loss = loss - (log_p.gather(1, target) * share).sum()
            if grads:
                x_grad, unembedding_grad = grads
                # Probabilities minus the one-hot target, computed in place of `log_p`.
                error = log_p.exp_().scatter_add_(1, target, -torch.ones_like(share))
                if softcap is not None:
                    # The derivative of c tanh(l / c), where `logits` are capped already.
                    error.mul_(1 - (logits / softcap).square())
                error = error.mul_(share).to(part.dtype)
                x_grad[chunk] = error @ unembedding_cast
                unembedding_grad.add_(error.T @ part)
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    def backward(ctx: Any, *loss_grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the four arguments of `forward`, given that of the loss."""
        (loss_grad,) = loss_grads
        x_grad, unembedding_grad = ctx.saved_tensors
        return x_grad * loss_grad, unembedding_grad * loss_grad, None, None


def _autocast(x: Tensor) -> Tensor:
    """Return x in the dtype in which autocast computes matrix products."""
    device = x.device.type
    is_on = torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if is_on else x
