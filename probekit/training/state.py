"""Training state for resumption: weights, optimizer states and progress in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from probekit.files import write_atomic
from probekit.model.gpt2 import GPT2
from probekit.training.progress import Progress, damaged_state, sealed


@dataclass(frozen=True)
class Learner:
    """A network and its optimizers."""

    model: GPT2
    optimizers: tuple[Optimizer, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return all parameters and optimizer states, by name."""
        named = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                named |= {f"optimizer.{number}.{index}.{key}": v for key, v in values.items()}
        return named

    def load(self, named: dict[str, Tensor]) -> None:
        """Load the result of `tensors`, called on a learner of the same network and optimizers."""
        weights = {name: named.pop(f"model.{name}") for name, _ in self.model.named_parameters()}
        self.model.load_state_dict(weights)
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for name, tensor in named.items():
            _, number, index, key = name.split(".")
            states[int(number)].setdefault(int(index), {})[key] = tensor
        for optimizer, state in zip(self.optimizers, states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})


def write_state(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a training state atomically, with a digest of all its bytes.

    Raises:
        StoreError: the file cannot be written.
    """
    # safetensors requires contiguous tensors; transposed views are not.
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, sealed(save(plain, progress.to_metadata())))


def load_state(path: Path, learner: Learner) -> None:
    """Load a state into a learner; `read_progress` must have verified its digest before.

    Raises:
        CheckpointError: the state belongs to another network or optimizer.
    """
    try:
        with safe_open(path, "pt") as file:
            learner.load({name: file.get_tensor(name) for name in list(file.keys())})
    except (SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise damaged_state(path, error) from error
