"""The network of a loaded model of transformers, which shares its tensors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from probekit.errors import CheckpointError
from probekit.model.config import WeightNames
from probekit.model.families.table import MODEL_TYPES, config_of, network_class
from probekit.model.network import Network
from probekit.model.proven.choice import runs_in_transformers
from probekit.model.proven.doors import has_hook
from probekit.model.proven.loading import proven_network
from probekit.model.weights.state_dict import faults_of, transposed


def from_transformers(
    model: Any,
    *,
    ignore: Sequence[str] | None = None,
    engine: Literal["auto", "native", "transformers"] = "auto",
) -> Network:
    """Return the network of a loaded model of transformers, such as a LlamaForCausalLM.

    The network uses the model's own tensors: nothing is copied, and a change of a tensor changes
    both. Of a model that a family of the package computes, only the config and the weights are
    read: replaced modules, and changed buffers such as `inv_freq` after `half()`, are not seen.
    Others are run by transformers, and have the sites that are proven. Hooks are refused.

    Args:
        model: the model of transformers.
        ignore: unknown keys of its config that change nothing in this model.
        engine: what computes the network: `native` for a family of the package, `transformers` for
            the model itself; `auto` is a family where there is one.

    Raises:
        CheckpointError: the tensors are not those that the config describes, a module has a forward
            hook, or, for the model itself, nothing can be proven of it.
        ConfigError: there is no such engine.
    """
    for inside in ("module", "_orig_mod") * 2:  # of DataParallel, and of torch.compile
        model = getattr(model, inside, model)
    title, is_model = type(model).__name__, _has_config(model)
    if not is_model or any(parameter.is_meta for parameter in model.parameters()):
        fault = "weights on the meta device: not loaded, or offloaded" if is_model else "no config"
        remedy = "a model of transformers that is in memory, such as "
        remedy += "LlamaForCausalLM.from_pretrained(FOLDER)"
        # What has no config may be no module.
        for name, one in () if is_model else getattr(model, "named_modules", dict)():
            if _has_config(one):
                remedy = f"the network inside: model.{name}, a {type(one).__name__}"
                break
        raise CheckpointError(f"The {title} has {fault}. Pass {remedy}.")
    for name, one in model.named_modules():
        if has_hook(one):
            raise CheckpointError(f"The {title} has a forward hook at {name!r}. Remove it.")
    if runs_in_transformers(model, engine, MODEL_TYPES):
        return proven_network(model)
    config = config_of(model.config.to_dict(), f"The config of {title}", ignore or ())
    network = network_class(config)(config, seed=None)
    try:
        tensors = shared_tensors(model.state_dict(), config.WEIGHTS, network.state_dict(), title)
    except CheckpointError as error:
        inner = getattr(model, "base_model", model)
        is_whole = inner is model or title.endswith(("CausalLM", "LMHeadModel"))
        if is_whole or not config.tie_word_embeddings:
            raise
        place = f"model.{model.base_model_prefix}, a {type(inner).__name__}"
        raise CheckpointError(f"{error}\nIt has a network inside: pass {place}.") from error
    network.load_state_dict(tensors, assign=True)
    return network.requires_grad_(False)


def _has_config(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "to_dict")


def shared_tensors(
    tensors: Mapping[str, Tensor], names: WeightNames, like: Mapping[str, Tensor], title: str
) -> dict[str, Tensor]:
    """Return the state dict of a network that shares the tensors of a state dict of the hub.

    Args:
        tensors: tensors by their names in checkpoints.
        names: the family's names of tensors.
        like: state dict of the network to fill; only names and shapes are used.
        title: where the tensors are from, for messages.

    Raises:
        CheckpointError: names or shapes differ from those of `like`, or dtypes from each other.
    """
    found, bare = {}, names.unwrapped(tensors)
    for hub_name, tensor in unstacked({bare[name]: one for name, one in tensors.items()}, names):
        name = names.in_network(hub_name)
        if name in like or not re.search(names.buffers, name):
            found[name] = transposed(names, name, tensor.detach())
    # An unembedding equal to the embedding is redundant.
    ends = [found[name] for name in (names.unembedding, names.embedding) if name in found]
    if names.unembedding not in like and len(ends) == 2 and torch.equal(*ends):
        del found[names.unembedding]
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in like.items()}
    if faults := faults_of(shapes, expected, names):
        raise CheckpointError(
            f"{title} does not have the tensors that its config describes:\n  "
            + "\n  ".join(faults)
        )
    by_dtype = {tensor.dtype: name for name, tensor in found.items()}
    if len(by_dtype) > 1:
        shown = ", ".join(f"{name} {dtype}" for dtype, name in by_dtype.items())
        raise CheckpointError(
            f"{title} has weights of several dtypes: {shown}. Convert all to one."
        )
    return found


def unstacked(tensors: Mapping[str, Tensor], names: WeightNames) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors; those with the maps of all experts as one part for each map.

    >>> from probekit.model.families.olmoe import OLMoEConfig
    >>> stacked = {"mlp.experts.gate_up_proj": torch.zeros(2, 6, 4)}
    >>> [(name, *part.shape) for name, part in unstacked(stacked, OLMoEConfig.WEIGHTS)][:2]
    [('mlp.experts.0.gate_proj.weight', 3, 4), ('mlp.experts.0.up_proj.weight', 3, 4)]
    """
    for name, tensor in tensors.items():
        maps = next((maps for end, maps in names.stacked if name.endswith(end)), None)
        if maps is None:
            yield name, tensor
            continue
        experts = name.rpartition(".")[0]
        for number, of_expert in enumerate(tensor):
            for part, weight in zip(maps, of_expert.chunk(len(maps)), strict=True):
                yield f"{experts}.{number}.{part}.weight", weight
