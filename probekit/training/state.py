"""What a killed run goes on from: weights, optimizers and the number of steps done, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from probekit.errors import CheckpointError
from probekit.model.gpt2 import GPT2
from probekit.provenance import write_atomic


@dataclass(frozen=True)
class Learner:
    """A network and what updates its weights."""

    model: GPT2
    optimizers: tuple[Optimizer, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes with a step, by name."""
        named = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                named |= {f"optimizer.{number}.{index}.{key}": v for key, v in values.items()}
        return named

    def load(self, named: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave, of a learner of the same kind."""
        weights = {name: named.pop(f"model.{name}") for name, _ in self.model.named_parameters()}
        self.model.load_state_dict(weights)
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for name, tensor in named.items():
            _, number, index, key = name.split(".")
            states[int(number)].setdefault(int(index), {})[key] = tensor
        for optimizer, state in zip(self.optimizers, states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})


def write_state(path: Path, learner: Learner, step: int) -> None:
    """Write what a run goes on from after `step` steps; the file before stays until it is whole.

    Raises:
        StoreError: the file cannot be written.
    """
    # A safetensors file must have its tensors side by side: transposed views are made plain.
    tensors = {name: tensor.cpu().contiguous() for name, tensor in learner.tensors().items()}
    write_atomic(path, save(tensors, {"step": str(step)}))


def read_state(path: Path, learner: Learner) -> int:
    """Return how many steps are done, with the learner brought to where it was after them.

    Raises:
        CheckpointError: the file is damaged or of another network or optimizer.
    """
    try:
        with safe_open(path, "pt") as file:
            step = int(file.metadata()["step"])
            learner.load({name: file.get_tensor(name) for name in list(file.keys())})
    except (SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged or of another run ({error}). Delete it to begin from the start."
        ) from error
    return step
