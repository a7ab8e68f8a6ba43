"""What determines the numbers of a model of transformers, and the proofs that are kept under it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

from probekit.errors import StoreError
from probekit.files import write_atomic
from probekit.model.proven.additions import Layer, Place, Step
from probekit.model.proven.doors import BLIND, NotProvenError, apart_rows, eps
from probekit.model.proven.invariance import measure_rounding
from probekit.model.proven.proof import check_gradients, prove, refuse_patches
from probekit.model.proven.taps import ProvenModel
from probekit.model.weights.state_dict import digest_weights
from probekit.provenance import digest, digest_json, digest_sources, seal, unseal
from probekit.terminal import SILENT, Watcher

if TYPE_CHECKING:
    from probekit.model.proven.config import ProvenConfig

VERSION = 1  # of the proof, and of the numbers that taps give
FORMAT = 1  # of the files of proofs
# Entries of a config of transformers that do not change numbers.
_NOTES = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
# Attributes of a proven model that are kept as they are.
_KEPT = (
    *("sites", "refused", "facts", "limits", "pad_positions", "list_name", "in_path", "out_path"),
    *("n_layers", "d_model", "n_vocab", "norm", "norm_path", "head", "before_head", "after_head"),
)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all weights and buffers by name, also buffers that no checkpoint contains.

    A quantised weight is several tensors.
    """
    named = (*model.named_parameters(), *model.named_buffers())
    return {key: one for name, tensor in named for key, one in _plain_tensors(name, tensor)}


def _plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a weight consists of: itself, or those of a quantised weight."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    for part in inner()[0] if inner else ():
        yield from _plain_tensors(f"{name}.{part}", getattr(tensor, part))
    if not inner:
        yield name, tensor
    if (state := getattr(tensor, "quant_state", None)) is not None:
        for key, one in state.as_dict(packed=True).items():
            yield f"{name}.{key}", one


@cache
def _digest_source(path: str) -> str:
    return digest([Path(path).read_bytes()])


def digest_code(model: nn.Module) -> str:
    """Return the digest of the source files of the classes of all modules in a model."""
    found: set[str] = set()
    for kind in {type(module) for module in model.modules()}:
        for one in kind.__mro__:
            if not one.__module__.startswith(("torch.", "builtins")):
                try:
                    found.add(_digest_source(inspect.getfile(one)))
                except (OSError, TypeError):  # a class that was typed into a session
                    found.add(f"{one.__module__}.{one.__qualname__}")
    return digest_json(sorted(found))


def _plain(value: Any) -> Any:
    """Return a value as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):  # in an order that all processes have
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def identity_of_model(model: Any) -> dict[str, Any]:
    """Return all that determines the numbers of a loaded model, except its weights, as JSON."""
    config = model.config
    entries = {key: one for key, one in config.to_dict().items() if key not in _NOTES}
    adapters = getattr(model, "peft_config", {})
    return {
        "class": type(model).__name__,
        "settings": _plain(entries),
        "adapters": {name: _plain(one.to_dict()) for name, one in adapters.items()},
        "attention": str(getattr(config, "_attn_implementation", None)),
        "dtypes": sorted({str(one.dtype) for one in model.parameters()}),
        "code": digest_code(model),
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "engine_version": VERSION,
    }


# ---------------------------------------------------------------------- proofs on disk
def proofs_folder() -> Path:
    """Return the folder of the proofs: in the user's folder of caches, or in $PROBEKIT_CACHE."""
    chosen = os.environ.get("PROBEKIT_CACHE", "")
    is_place = bool(chosen) and "://" not in chosen
    return (Path(chosen) if is_place else user_cache_path("probekit")) / "proofs"


def kept_proof(
    model: Any, watcher: Watcher = SILENT, like: ProvenConfig | None = None
) -> tuple[ProvenModel, dict[str, list[float]]]:
    """Return the proof of a loaded model, and the `sketch_of` the values that it gave.

    A proof that is kept is reused if the model still gives the values of that proof: a function
    that was replaced in Python leaves weights and files unchanged. A damaged one is ignored.

    Args:
        model: the model of transformers.
        watcher: receives the progress.
        like: config of a model of the same class and settings, with other weights or in another
            dtype, whose proof is transferred if it holds; None for a proof of its own.
    """
    code = digest_sources(Path(__file__).parent)  # of the proof
    weights = digest_weights(model, tensors_of(model))
    key, folder = digest_json([identity_of_model(model), weights, code])[:24], proofs_folder()
    for path in sorted(folder.glob(f"{key}-*.json")):
        with suppress(StoreError, OSError, KeyError, TypeError, ValueError):
            content = unseal(path.read_bytes(), str(path), FORMAT)
            proven = _restored(model, content["proof"])
            refuse_patches(proven)
            if agrees(sketch_of(proven), content["values"], proven.limits):
                return proven, content["values"]
    transferred = None if like is None else _transferred(model, like)
    proven = transferred or prove(model, watcher=watcher)
    if "all" in proven.refused:
        return proven, {}
    values = sketch_of(proven)
    content = {"proof": packed_proof(proven), "values": values}
    with suppress(StoreError, OSError):  # a folder that cannot be written: proven again next time
        write_atomic(folder / f"{key}-{digest_json(values)[:8]}.json", seal(content, FORMAT))
    return proven, values


def _transferred(model: Any, like: ProvenConfig) -> ProvenModel | None:
    """Return the proof of another model for this one, tested on all texts; None if it fails.

    Tested are the chain of blocks, the sums and the unembedding; in another dtype also rounding and
    gradients. Roles of modules do not depend on the weights.
    """
    proven = _restored(model, like.source.proof)
    try:
        with torch.no_grad():
            if identity_of_model(model)["dtypes"] != like.identity["dtypes"]:
                measure_rounding(proven)
                check_gradients(proven)
            for ids in proven.texts():
                logits, values = proven.run(ids, sites=list(proven.sites), check=True)
                last = values[f"blocks.{proven.n_layers - 1}.hook_resid_post"]
                gap = 0.0 if "lens" in proven.refused else apart_rows(proven.unembed(last), logits)
                is_finite = all(bool(torch.isfinite(one).all()) for one in values.values())
                if gap > 4 * eps(logits) or not is_finite:
                    return None
    except NotProvenError:
        return None
    return proven


def packed_proof(proven: ProvenModel) -> dict[str, Any]:
    """Return a proof as JSON."""
    return {
        **{name: _plain(getattr(proven, name)) for name in _KEPT},
        "layers": [_plain(asdict(layer)) for layer in proven.layers],
        "attention": [list(item) for item in proven.attention.items()],
        "linears": [[*key, name] for key, name in proven.linears.items()],
        "direct": sorted(map(list, proven.direct)),
    }


def _restored(model: nn.Module, entries: Mapping[str, Any]) -> ProvenModel:
    """Return the proven passes of a model from what `packed_proof` returned."""
    proven = ProvenModel(model)
    for name in _KEPT:
        value = entries[name]
        setattr(proven, name, tuple(value) if isinstance(value, list) else value)
    for entry in entries["layers"]:
        steps = [
            Step(**{**step, "places": [_place(one) for one in step["places"]]})
            for step in entry["steps"]
        ]
        seen = [(module, kind, tuple(path)) for module, kind, path in entry["seen"]]
        proven.layers.append(Layer(steps, seen, entry["parallel"], entry["reason"]))
    proven.attention = dict(entries["attention"])
    proven.direct = {(layer, kind) for layer, kind in entries["direct"]}
    proven.linears = {(layer, kind): name for layer, kind, name in entries["linears"]}
    return proven


def _place(entry: Mapping[str, Any]) -> Place:
    return Place(entry["module"], tuple(entry["path"]), entry["scale"])


def sketch_of(proven: ProvenModel) -> dict[str, list[float]]:
    """Return two numbers of the values of a text at each site and of the logits.

    They are the length of all values together, and their product with a random vector, which is
    about the length of what differs between two models.
    """
    with torch.no_grad():
        logits, values = proven.run(proven.texts()[2], sites=list(proven.sites))
    found, generator = {}, torch.Generator().manual_seed(0)
    for name, value in sorted({**values, "logits": logits}.items()):
        flat = value.detach().double().flatten().cpu()
        direction = torch.randn(len(flat), dtype=torch.float64, generator=generator)
        numbers = flat.norm(), flat @ direction
        found[name] = [float(f"{float(one):.9g}") for one in numbers]
    return found


def agrees(
    values: Mapping[str, list[float]], kept: Mapping[str, list[float]], limits: Mapping[str, float]
) -> bool:
    """Return whether a model gives the values of its proof, up to the effect of rounding."""
    return values.keys() == kept.keys() and all(
        abs(one - other) <= min(limits.get(name, 1e-4), BLIND) * max(kept[name][0], 1e-30)
        for name, both in values.items()
        for one, other in zip(both, kept[name], strict=True)
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bar and the warnings of transformers."""
    from transformers.utils import logging as their_logging

    logging: Any = their_logging
    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()
