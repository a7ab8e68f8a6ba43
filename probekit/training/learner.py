"""A network and its optimizers: how they begin, and how they are saved and restored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from probekit.files import write_atomic
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import write_checkpoint
from probekit.training.recipe import Recipe, TrainingSection
from probekit.training.run_files import Progress, checkpoint_folder, damaged_state, sealed


def initial_model(recipe: Recipe, d_vocab: int) -> GPT2:
    """Return the network before training, initialised with the seed of the recipe.

    With `position_waves` its position embeddings are sinusoids instead of random numbers.
    """
    model = GPT2(recipe.model.config(d_vocab), seed=recipe.seed)
    if recipe.model.position_waves:
        with torch.no_grad():
            positions = model.position_embedding
            positions.copy_(sinusoids(*positions.shape) * recipe.model.position_waves)
    return model


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Return sinusoidal position embeddings, shape [n_ctx d_model].

    Their mean square is 1, or nearly so if d_model is odd.

    Wavelengths range from 2 pi tokens to nearly 2 pi n_ctx. A shift by one token is then the same
    rotation at every position, so a head that attends to the previous token has to learn only one.

    Source: Vaswani et al. 2017, section 3.5; there the longest wavelength is 2 pi times 10,000.

    >>> sinusoids(256, 64).pow(2).mean().round(decimals=2)
    tensor(1.)
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    phase = torch.arange(d_model) % 2 * (math.pi / 2)  # cos(x) = sin(x + pi / 2)
    frequency = n_positions ** (-pairs / max(1, d_model // 2))  # d_model may be 1
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    # The mean square of a sine is 1 / 2.
    return (math.sqrt(2) * torch.sin(position * frequency + phase)).float()


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
    named = dict(model.named_parameters())
    matrices = {name: parameter for name, parameter in named.items() if parameter.ndim > 1}
    in_blocks = {name: matrix for name, matrix in matrices.items() if name.startswith("h.")}
    of_muon = in_blocks if training.optimizer == "muon" else {}
    others = [matrix for name, matrix in matrices.items() if name not in of_muon]
    groups = [
        {"params": others, "weight_decay": training.weight_decay},
        {"params": [vector for vector in named.values() if vector.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=training.learning_rate, betas=training.betas, fused=True)
    return (_muon(of_muon, training), adamw) if of_muon else (adamw,)


def _muon(matrices: dict[str, nn.Parameter], training: TrainingSection) -> Muon:
    """Return Muon over the matrices, with queries, keys and values as separate matrices.

    c_attn stacks the three. If they were orthogonalised together, the part with the largest
    gradients, usually the values, would get most of the update.
    """
    parts: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
    for name, parameter in matrices.items():
        stacked = parameter.detach().chunk(3 if "c_attn" in name else 1)
        parts.append((parameter, [nn.Parameter(part) for part in stacked]))  # sharing its storage
    muon = Muon(
        [view for _, views in parts for view in views],
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )

    def split_gradients(*_: object) -> None:
        """Give each separate matrix its part of the gradient of the stacked one."""
        for parameter, views in parts:
            if parameter.grad is not None:
                for view, gradient in zip(views, parameter.grad.chunk(len(views)), strict=True):
                    view.grad = gradient

    muon.register_step_pre_hook(split_gradients)
    return muon


@dataclass(frozen=True)
class Learner:
    """A network and its optimizers."""

    model: GPT2
    optimizers: tuple[Optimizer, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters as model.NAME and optimizer states as optimizer.NUMBER.INDEX.KEY."""
        named = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                named |= {f"optimizer.{number}.{index}.{key}": v for key, v in values.items()}
        return named


def write_state(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a training state atomically, with a digest of all that it contains.

    Raises:
        StoreError: the file cannot be written.
    """
    # safetensors requires contiguous arrays; transposed views are not.
    arrays = {name: tensors[name].cpu().contiguous().numpy() for name in sorted(tensors)}
    write_atomic(path, save(arrays, sealed(progress, arrays)))


def load_state(path: Path, learner: Learner) -> None:
    """Load a state into a learner.

    `read_progress` must have verified its digest before, and `Progress.check_recipe` its settings.

    Raises:
        CheckpointError: the state belongs to another network, or to more optimizers.
    """
    try:
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in list(file.keys())}
        names = [name for name, _ in learner.model.named_parameters()]
        learner.model.load_state_dict({name: named.pop(f"model.{name}") for name in names})
        # The other tensors are optimizer.NUMBER.INDEX.KEY; see `Learner.tensors`.
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in learner.optimizers]
        for name, tensor in named.items():
            _, number, index, key = name.split(".")
            states[int(number)].setdefault(int(index), {})[key] = tensor
        for optimizer, state in zip(learner.optimizers, states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise damaged_state(path, error) from error


def save_checkpoint(
    run: Path, model: GPT2, step: int, dtype: torch.dtype, tokenizer: Tokenizer
) -> Path:
    """Save the model after a step in the hub's format and return its folder.

    Args:
        run: run folder.
        model: the network.
        step: number of completed steps.
        dtype: dtype on disk.
        tokenizer: tokenizer of the run; its <|endoftext|> is saved as BOS and EOS token.

    Raises:
        StoreError: the folder cannot be written.
        CheckpointError: the folder has a damaged digests.json.
    """
    folder = checkpoint_folder(run, step)
    tokenizer.save_pretrained(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    end = tokenizer.bos_id
    write_checkpoint(folder, replace(model.config, bos_token_id=end, eos_token_id=end), tensors)
    return folder
