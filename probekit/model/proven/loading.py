"""Loading of models of transformers, and the network that is proven of one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from probekit.accelerators import check_device
from probekit.errors import CheckpointError, ConfigError
from probekit.memory import device_text, fits_in_memory
from probekit.model.config import count_parameters
from probekit.model.proven.choice import ADAPTER, Proving, is_gguf
from probekit.model.proven.config import ProvenConfig, Source, context_of, measured_axes
from probekit.model.proven.identity import (
    identity_of_model,
    kept_proof,
    packed_proof,
    quiet_transformers,
)
from probekit.model.proven.network import ProvenNetwork
from probekit.model.proven.norms import measured_norm
from probekit.model.proven.taps import ProvenModel
from probekit.model.weights import sources
from probekit.model.weights.hub import find_model
from probekit.model.weights.state_dict import as_dtype
from probekit.provenance import digest_json
from probekit.terminal import SILENT, Watcher

# The network whose config was requested last, until it is loaded: by source, dtype and device.
_PREPARED: dict[tuple[Any, ...], ProvenNetwork] = {}


def _key_of(source: str | Path, dtype: str | None, device: str) -> tuple[Any, ...]:
    """Return the key of a prepared network, with the sizes and times of the files of a folder."""
    place = Path(sources.without_options(source)).expanduser()
    files = sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []
    states = [(one.name, one.stat().st_mtime_ns, one.stat().st_size) for one in files]
    return str(source), dtype, device, tuple(states)


def prepared_config(source: str | Path, dtype: str | None, at: Proving) -> ProvenConfig:
    """Return the config of a model, which is loaded and proven; `load_proven` then returns it.

    Raises:
        CheckpointError: transformers cannot load the model, or nothing can be proven of it.
    """
    key = _key_of(source, dtype, at.device)
    if key not in _PREPARED:
        _PREPARED[key] = load_proven(source, dtype, *at)
    return _PREPARED[key].config


def load_proven(
    source: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | Sequence[str] = "cpu",
    watcher: Watcher = SILENT,
) -> ProvenNetwork:
    """Return the network of a model as transformers loads it, frozen, after its proof.

    Args:
        source: name or folder, or a GGUF file.
        dtype: dtype of the weights; None means that of the checkpoint, and float32 for float16.
        device: device of the weights.
        watcher: receives the progress of the proof.

    Raises:
        CheckpointError: transformers cannot load the model, or nothing can be proven of it.
        ConfigError: several devices are given, or one that is not available.
    """
    if "," in device_text(device):
        raise ConfigError(
            f"Networks that transformers computes are on one device, not on {device_text(device)}."
        )
    check_device(device_text(device))
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    ready = _PREPARED.pop(_key_of(source, name, device_text(device)), None)
    _PREPARED.clear()  # another one would stay in memory
    if ready is not None:
        return ready
    if is_gguf(source):
        path = Path(sources.without_options(source)).expanduser()
        if find_spec("gguf") is None:
            raise CheckpointError(
                f"{path} is a GGUF file. To read it, install gguf: pip install 'probekit[gguf]'."
            )
        folder, options = path.parent, {"gguf_file": path.name}
    else:
        folder, options = find_model(source), {}
    model = _loaded(folder, None if dtype is None else as_dtype(dtype), options)
    if device_text(device) != "cpu":
        model = model.to(device_text(device))
    return proven_network(model, watcher)


def _loaded(folder: Path, dtype: torch.dtype | None, options: dict[str, Any]) -> Any:
    """Return the model of transformers in a folder, frozen; code in the folder is never run.

    Raises:
        CheckpointError: transformers cannot load it.
    """
    import transformers

    if (folder / ADAPTER).exists() and find_spec("peft") is None:
        names = ", ".join(sorted(path.name for path in folder.glob("adapter*")))
        raise CheckpointError(
            f"{folder} has {names}: an adapter. To read it, install peft: pip install peft. Or "
            "merge it where peft is installed: PeftModel.from_pretrained(base, FOLDER)"
            ".merge_and_unload().save_pretrained(NEW)."
        )
    options |= {"local_files_only": True, "trust_remote_code": False, "dtype": dtype or "auto"}
    faults: list[str] = []
    for kind in ("AutoModelForCausalLM", "AutoModelForImageTextToText"):
        try:
            with quiet_transformers(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of transformers, on versions of the format
                model, found = getattr(transformers, kind).from_pretrained(
                    folder, attn_implementation="eager", output_loading_info=True, **options
                )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            faults.append(str(error).strip().partition("\n")[0])
            continue
        # transformers would draw these weights at random.
        if lacking := sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]])):
            raise CheckpointError(
                f"{folder} lacks weights of its {type(model).__name__}: {lacking}."
            )
        if dtype is None and model.dtype == torch.float16 and not quantisation_of(model):
            model = model.float()
        return model.eval().requires_grad_(False)
    raise CheckpointError(f"transformers cannot load {folder}: {faults[0]}")


def quantisation_of(model: Any) -> str:
    """Return the method by which the weights of a model are quantised; "" if they are not."""
    settings = getattr(model.config, "quantization_config", None)
    if settings is None:  # weights that were quantised in memory, as torchao does
        kinds = {type(p).__name__ for p in model.parameters() if hasattr(p, "__tensor_flatten__")}
        return ", ".join(sorted(kinds))
    entries = settings if isinstance(settings, dict) else settings.to_dict()
    method = getattr(entries.get("quant_method"), "value", entries.get("quant_method"))
    bits = next((n for n in (4, 8) if entries.get(f"load_in_{n}bit")), entries.get("bits"))
    return f"{method}, {bits} bits" if bits else str(method)


def random_proven(
    config: ProvenConfig, seed: int, dtype: torch.dtype | None, device: str
) -> ProvenNetwork:
    """Return the network of the same class and config with weights that transformers draws."""
    kind, settings = config.source.kind, config.source.settings
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        model = kind._from_config(copy.deepcopy(settings), attn_implementation="eager")
    model = model.to(device=device, dtype=dtype or torch.float32)
    return proven_network(model.eval().requires_grad_(False), like=config)


def compared_with(model: Any, exact: Callable[[], Any]) -> Callable[[], Any] | None:
    """Return a function that returns the network with which rows in half precision are compared.

    Of a network that transformers computes it is a copy in float32; None if the weights are
    quantised or the copy does not fit in memory. Of others it is `exact`.
    """
    if not isinstance(model, ProvenNetwork):
        return exact
    fits = fits_in_memory(4 * count_parameters(model.config), str(model.device))
    is_possible = fits and not model.config.identity["quantised"]
    return partial(exact_network, model, torch.float32) if is_possible else None


def words_of_proof(model: Any, sites: Iterable[str], *, is_drawn: bool) -> str | None:
    """Return the engine of a network in words; None for a family. See `ProvenConfig`."""
    is_proven = isinstance(model, ProvenNetwork)
    return model.config.computed_by(sites, is_drawn=is_drawn) if is_proven else None


def exact_network(network: ProvenNetwork, dtype: torch.dtype) -> ProvenNetwork:
    """Return a network in another dtype: a copy, unless it has the dtype."""
    if network.dtype == dtype:
        return network
    copied = copy.deepcopy(network.model).to(dtype)
    return proven_network(copied.requires_grad_(False), like=network.config)


def proven_network(
    model: Any, watcher: Watcher = SILENT, like: ProvenConfig | None = None
) -> ProvenNetwork:
    """Return the network of a loaded model of transformers, after its proof.

    Args:
        model: the model of transformers.
        watcher: receives the progress of the proof.
        like: config of a proven network of the same class and settings, with other weights or in
            another dtype; None for a proof that depends on nothing else.

    Raises:
        CheckpointError: nothing can be proven of the model.
    """
    passes, sketch = kept_proof(model, watcher, like)
    if "all" in passes.refused:
        raise CheckpointError(
            f"The activations of this {type(model).__name__} cannot be named: "
            f"{passes.refused['all']}."
        )
    return ProvenNetwork(passes, _config_of(passes, digest_json(sketch)), sketch)


def _config_of(passes: ProvenModel, values: str) -> ProvenConfig:
    """Return sizes, sites and identity of a proven model, given the digest of its values."""
    model, config = passes.model, passes.config
    with torch.no_grad():
        _, found = passes.run(passes.texts()[0], sites=list(passes.sites))
    sizes = {
        "n_layers": passes.n_layers,
        "d_model": passes.d_model,
        "d_vocab": passes.n_vocab or len(model.get_input_embeddings().weight),
        "n_ctx": context_of(config),
    }
    axes, odd = measured_axes({name: tuple(one.shape) for name, one in found.items()}, sizes)
    heads = getattr(config, "num_attention_heads", None)
    sizes.setdefault("n_heads", heads if isinstance(heads, int) else 1)
    sizes.setdefault("d_head", max(1, passes.d_model // sizes["n_heads"]))
    sizes.setdefault("d_mlp", 4 * passes.d_model)
    norm = None
    if passes.norm:
        like = found[f"blocks.{passes.n_layers - 1}.hook_resid_post"][0, -1]
        norm = measured_norm(passes.modules[passes.norm], like, passes.modules[passes.norm])
    blocks = {id(one) for one in passes.modules[passes.list_name].parameters()}
    others = sum(one.numel() for one in model.parameters() if id(one) not in blocks)
    special = {key: getattr(config, key, None) for key in ("bos_token_id", "eos_token_id")}
    identity = {**identity_of_model(model), "quantised": quantisation_of(model), "proof": values}
    return ProvenConfig(
        title=type(model).__name__,
        sizes=sizes,
        epsilon=0.0 if norm is None else norm.epsilon,
        centred=norm is not None and norm.is_centred,
        identity=identity,
        counts=(model.num_parameters() - others, others),  # also of packed weights of 4 bits
        formulas={f"blocks.{{l}}.{kind}": _FORMULAS[kind] for kind in passes.sites.values()},
        axes=axes,
        proven=frozenset(passes.sites.keys() - odd.keys()),
        reasons={**passes.refused, **odd},
        source=Source(type(model), model.config, packed_proof(passes)),
        **special,
    )


# What each site is in terms of the others; proven on the model.
_FORMULAS = {
    "hook_resid_pre": "input of the block",
    "attn.hook_rot_q": "queries that attention reads",
    "attn.hook_rot_k": "keys that attention reads",
    "attn.hook_v": "values that attention reads",
    "attn.hook_pattern": "attention to each key",
    "attn.hook_z": "pattern @ v",
    "hook_attn_out": "what attention adds to the stream",
    "hook_mixer_out": "what a mixer of positions adds to the stream",
    "hook_resid_mid": "stream after attention",
    "mlp.hook_post": "input of W_out",
    "hook_mlp_out": "what the MLP adds to the stream",
    "hook_resid_post": "output of the block",
}
