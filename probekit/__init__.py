"""Linear probes for GPT-2: named activations, a verified cache on disk, layer curves with controls.

Public names are imported on first access, so that the command line starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from probekit.activations.store.store import ActivationStore
    from probekit.experiment.schema import Experiment
    from probekit.model.cache import ActivationCache, Recording
    from probekit.model.config import GPT2Config
    from probekit.model.generation.continuation import StopStrings
    from probekit.model.generation.generate import generate
    from probekit.model.gpt2 import GPT2
    from probekit.model.inputs import TokenBatch
    from probekit.model.kv_cache import KeyValueCache
    from probekit.model.text.tokenizer import Tokenizer
    from probekit.pipeline.experiment.run import run
    from probekit.pipeline.look.apply import apply_probe
    from probekit.pipeline.look.attention import explore_attention
    from probekit.pipeline.pretrain import pretrain
    from probekit.probes.kinds.logistic import LinearProbe
    from probekit.probes.saved.saved_probe import SavedProbe

__all__ = [
    "GPT2",
    "ActivationCache",
    "ActivationStore",
    "Experiment",
    "GPT2Config",
    "KeyValueCache",
    "LinearProbe",
    "Recording",
    "SavedProbe",
    "StopStrings",
    "TokenBatch",
    "Tokenizer",
    "__version__",
    "apply_probe",
    "explore_attention",
    "generate",
    "pretrain",
    "run",
]

_HOME = {
    "ActivationCache": "probekit.model.cache",
    "ActivationStore": "probekit.activations.store.store",
    "Experiment": "probekit.experiment.schema",
    "GPT2": "probekit.model.gpt2",
    "GPT2Config": "probekit.model.config",
    "KeyValueCache": "probekit.model.kv_cache",
    "LinearProbe": "probekit.probes.kinds.logistic",
    "Recording": "probekit.model.cache",
    "SavedProbe": "probekit.probes.saved.saved_probe",
    "StopStrings": "probekit.model.generation.continuation",
    "TokenBatch": "probekit.model.inputs",
    "Tokenizer": "probekit.model.text.tokenizer",
    "apply_probe": "probekit.pipeline.look.apply",
    "explore_attention": "probekit.pipeline.look.attention",
    "generate": "probekit.model.generation.generate",
    "pretrain": "probekit.pipeline.pretrain",
    "run": "probekit.pipeline.experiment.run",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("probekit.distribution").origin().version
    if name not in _HOME:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
