"""Loading of models of transformers, and the network that is proven of one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from probekit.errors import CheckpointError
from probekit.memory import device_text
from probekit.model.proven.config import ProvenConfig, context_of, epsilon_of, measured_axes
from probekit.model.proven.proof import prove
from probekit.model.proven.taps import ProvenModel
from probekit.model.proven.identity import digest_values, identity_of_model
from probekit.model.proven.network import ProvenNetwork
from probekit.model.weights.hub import find_model
from probekit.model.weights.state_dict import as_dtype


def proven_network(model: Any) -> ProvenNetwork:
    """Return the network of a loaded model of transformers, after its proof.

    Raises:
        CheckpointError: nothing can be proven of the model.
    """
    passes = prove(model)
    if "all" in passes.refused:
        raise CheckpointError(
            f"The activations of this {type(model).__name__} cannot be named: "
            f"{passes.refused['all']}."
        )
    return ProvenNetwork(passes, config_of_proof(passes))


def config_of_proof(passes: ProvenModel) -> ProvenConfig:
    """Return sizes, sites and identity of a proven model."""
    model, config = passes.model, passes.config
    ids = passes.texts()[0]
    _, values = passes.run(ids, sites=list(passes.sites))
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    embedding = model.get_input_embeddings().weight
    sizes = {
        "n_layers": passes.n_layers,
        "d_model": passes.d_model,
        "d_vocab": passes.n_vocab or len(embedding),
        "n_ctx": context_of(config),
    }
    axes, odd = measured_axes(shapes, sizes)
    heads = getattr(config, "num_attention_heads", None)
    sizes.setdefault("n_heads", heads if isinstance(heads, int) else 1)
    sizes.setdefault("d_head", max(1, passes.d_model // sizes["n_heads"]))
    sizes.setdefault("d_mlp", 4 * passes.d_model)
    numbers = {id(one): one.numel() for one in model.parameters()}
    blocks = passes.modules[passes.list_name]
    of_blocks = sum({id(one): one.numel() for one in blocks.parameters()}.values())
    norm = passes.modules.get(passes.norm or "")
    identity = identity_of_model(model, ProvenNetwork.VERSION)
    identity["proof"] = digest_values(values[name] for name in sorted(values))
    special = {
        f"{name}_token_id": getattr(config, f"{name}_token_id", None) for name in ("bos", "eos")
    }
    return ProvenConfig(
        title=type(model).__name__,
        sizes=sizes,
        epsilon=epsilon_of(norm),
        centred=bool(getattr(norm, "bias", None) is not None),
        identity=identity,
        counts=(of_blocks, sum(numbers.values()) - of_blocks),
        formulas=formulas_of(passes),
        axes=axes,
        proven=frozenset(passes.sites.keys() - odd.keys()),
        reasons={**passes.refused, **odd},
        source=(type(model), model.config),
        **special,
    )


def formulas_of(passes: ProvenModel) -> dict[str, str]:
    """Return where each kind of site is in the model, by general name."""
    return {
        f"blocks.{{l}}.{kind}": f"proven in {passes.list_name}" for kind in passes.sites.values()
    }


# The network whose config was requested last, until it is loaded: by source and dtype.
_PREPARED: dict[tuple[str, str | None], ProvenNetwork] = {}


def prepared_config(source: str | Path, dtype: str | None = None) -> ProvenConfig:
    """Return the config of a model, which is loaded and proven; `load_proven` then returns it.

    Raises:
        CheckpointError: transformers cannot load the model, or nothing can be proven of it.
    """
    key = (str(source), dtype)
    if key not in _PREPARED:
        _PREPARED.clear()
        _PREPARED[key] = load_proven(source, dtype, "cpu")
    return _PREPARED[key].config


def load_proven(
    source: str | Path, dtype: str | torch.dtype | None = None, device: str | Sequence[str] = "cpu"
) -> ProvenNetwork:
    """Return the network of a model as transformers loads it, frozen, after its proof.

    Args:
        source: name or folder.
        dtype: dtype of the weights; None means that of the checkpoint, and float32 for float16.
        device: device of the weights.

    Raises:
        CheckpointError: transformers cannot load the model, or nothing can be proven of it.
    """
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    ready = _PREPARED.pop((str(source), name), None)
    if ready is not None and device_text(device) == "cpu":
        return ready
    model = loaded(find_model(source), None if dtype is None else as_dtype(dtype))
    return proven_network(model.to(device_text(device)))


def loaded(folder: Path, dtype: torch.dtype | None) -> Any:
    """Return the model of transformers in a folder, frozen; code in the folder is never run.

    Raises:
        CheckpointError: transformers cannot load it.
    """
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype or "auto", attn_implementation="eager", **options
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise CheckpointError(f"transformers cannot load {folder}: {error}") from error
    if dtype is None and model.dtype == torch.float16:
        model = model.float()
    return model.eval().requires_grad_(False)


def random_proven(
    config: ProvenConfig, seed: int, dtype: torch.dtype | None, device: str
) -> ProvenNetwork:
    """Return the network of the same class and config with weights that transformers draws."""
    kind, settings = config.source
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind._from_config(copy.deepcopy(settings), attn_implementation="eager")
    model = model.to(device=device, dtype=dtype or torch.float32)
    return proven_network(model.eval().requires_grad_(False))
