"""Loading a network of any family."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from probekit.model.config import ModelConfig
from probekit.model.decoder import Decoder
from probekit.model.families.table import FAMILIES, config_of, imported, model_config
from probekit.model.weights.loading import shared_tensors
from probekit.model.weights.revisions import at_revision
from probekit.model.weights.sources import find_model


def network_class(config: ModelConfig) -> type[Decoder]:
    """Return the class of the network that a config describes.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> network_class(GPT2Config()).__name__
    'GPT2'
    """
    own = f"{type(config).__module__}:{type(config).__name__}"
    family = next(family for family in FAMILIES if family.config == own)
    return cast(type[Decoder], imported(family.network))


def load_model(
    source: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str = "cpu",
    *,
    revision: str | None = None,
) -> Decoder:
    """Return a pretrained network of the family that its config.json names, parameters frozen.

    Args:
        source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder.
        dtype: float32, float16, bfloat16 or float64, for weights and computation; None means the
            dtype of the checkpoint, and float32 for checkpoints in float16.
        device: device of the weights, e.g. `cuda`.
        revision: commit, tag or branch of a model on the hub, such as `step1000` of Pythia; the
            same as `org/name@revision`.

    >>> model = load_model("mini")
    >>> type(model).__name__, model.dtype
    ('GPT2', torch.float32)

    Raises:
        ConfigError: a revision of a folder is given.
        MissingError: no model has this name, or it has no such revision.
        CheckpointError: a file is damaged, no family has the architecture, or the tensors are not
            those that the config describes.
    """
    source = at_revision(source, revision)
    config = model_config(find_model(source, "config"))
    return network_class(config).from_pretrained(source, dtype, device)


def from_transformers(model: Any) -> Decoder:
    """Return the network of a loaded model of transformers, such as a LlamaForCausalLM.

    The network uses the model's own tensors: nothing is copied, and a change of one changes the
    other.

    Raises:
        CheckpointError: no family has the architecture, or the tensors are not those that the
            config describes.
    """
    config = config_of(model.config.to_dict(), f"The config of {type(model).__name__}")
    network = network_class(config)(config, seed=None)
    tensors = shared_tensors(
        model.state_dict(), config.WEIGHTS, network.state_dict(), type(model).__name__
    )
    network.load_state_dict(tensors, assign=True)
    return network.requires_grad_(False)


def random_network(config: ModelConfig, seed: int) -> Decoder:
    """Return a network with random weights.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> random_network(GPT2Config(n_layer=1, n_embd=12), seed=0).axis_sizes["n_layers"]
    1
    """
    return network_class(config)(config, seed)
