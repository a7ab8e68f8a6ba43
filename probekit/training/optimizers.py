"""Optimizers: AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from probekit.model.families.gpt2 import GPT2
from probekit.training.recipe import TrainingSection

Parameters = list[nn.Parameter]


def make_optimizers(model: GPT2, training: TrainingSection) -> tuple[Optimizer, ...]:
    """Return the optimizers; each parameter belongs to exactly one.

    Weight decay applies to matrices, including embeddings, and not to biases and layer norms. The
    training loop sets the learning rates.

    Source: Brown et al. 2020, appendix B, for AdamW; Jordan et al. 2024, "Muon: an optimizer for
    hidden layers in neural networks", with the scaling of Liu et al. 2025, "Muon is scalable for
    LLM training", so that both optimizers use the same learning rate.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> model = GPT2(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=97, n_positions=16))
    >>> [type(o).__name__ for o in make_optimizers(model, TrainingSection(steps=1, batch=1))]
    ['AdamW']
    """
    named = list(model.named_parameters())
    vectors = [p for _, p in named if p.ndim == 1]
    if training.optimizer == "adamw":
        return (_adamw([p for _, p in named if p.ndim > 1], vectors, training),)
    in_blocks = {name: p for name, p in named if p.ndim > 1 and name.startswith("h.")}
    others = [p for name, p in named if p.ndim > 1 and name not in in_blocks]
    return _muon(in_blocks, training), _adamw(others, vectors, training)


def _adamw(matrices: Parameters, vectors: Parameters, training: TrainingSection) -> AdamW:
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=training.learning_rate, betas=training.betas, fused=True)


def _muon(matrices: dict[str, nn.Parameter], training: TrainingSection) -> Muon:
    """Return Muon over the matrices, with queries, keys and values as separate matrices.

    c_attn stacks the three. If they were orthogonalised together, the part with the largest
    gradients, usually the values, would get most of the update.
    """
    parts: list[tuple[nn.Parameter, Parameters]] = [
        (parameter, _views(parameter, 3 if "c_attn" in name else 1))
        for name, parameter in matrices.items()
    ]
    muon = Muon(
        [view for _, views in parts for view in views],
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )

    def split_gradients(*_: object) -> None:
        for parameter, views in parts:
            if parameter.grad is not None:
                for view, gradient in zip(views, parameter.grad.chunk(len(views)), strict=True):
                    view.grad = gradient

    muon.register_step_pre_hook(split_gradients)
    return muon


def _views(parameter: nn.Parameter, count: int) -> Parameters:
    """Split a matrix into `count` parameters that share its storage."""
    return [nn.Parameter(part) for part in parameter.detach().chunk(count)]
