"""AdamW as GPT-2 was trained with it, and Muon for the matrices of the blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from probekit.model.gpt2 import GPT2
from probekit.training.recipe import Training


def make_optimizers(model: GPT2, training: Training) -> tuple[Optimizer, ...]:
    """Return what updates the weights, each parameter in exactly one; their rates are set later.

    Weight decay acts on matrices, embeddings among them, and not on biases and layer norms.

    Source: Brown et al. 2020, appendix B, for AdamW; Jordan et al. 2024, "Muon: an optimizer for
    hidden layers in neural networks", with the scale of Liu et al. 2025, "Muon is scalable for LLM
    training", by which one learning rate serves both.

    >>> from probekit.model.config import GPT2Config
    >>> model = GPT2(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=97, n_positions=16))
    >>> [type(o).__name__ for o in make_optimizers(model, Training(steps=1, batch=1))]
    ['AdamW']
    """
    in_blocks, matrices, vectors = _kinds_of(model)
    if training.optimizer == "adamw":
        return (_adamw([*matrices, *in_blocks], vectors, training),)
    muon = Muon(
        in_blocks,
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return muon, _adamw(matrices, vectors, training)


def _adamw(matrices: Sequence[Tensor], vectors: Sequence[Tensor], training: Training) -> AdamW:
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=training.learning_rate, betas=training.betas, fused=True)


Parameters = list[nn.Parameter]


def _kinds_of(model: GPT2) -> tuple[Parameters, Parameters, Parameters]:
    """Return the matrices of the blocks, the other matrices, and the vectors."""
    kinds: tuple[Parameters, Parameters, Parameters] = ([], [], [])
    for name, parameter in model.named_parameters():
        kinds[2 if parameter.ndim == 1 else 0 if name.startswith("h.") else 1].append(parameter)
    return kinds
