"""The table of families, and the config, network and tokenizer of a model of any of them.

No other module of the package lists families. A family is imported when a model needs it, so that
commands check their arguments without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, cast

from probekit.errors import CheckpointError
from probekit.model.config import OTHER_MODELS, ModelConfig, read_entries
from probekit.model.proven.choice import ON_CPU, Proving, computed_by, uses_transformers
from probekit.model.proven.config import ProvenConfig
from probekit.model.weights import sources
from probekit.model.weights.files import read_json
from probekit.model.weights.hub import find_model

if TYPE_CHECKING:
    import torch

    from probekit.model.network import FamilyNetwork, Network


_HUB = "probekit.model.text.hub_tokenizer:HubTokenizer"
_BYTE_PAIRS = "probekit.model.text.byte_pairs:BytePairTokenizer"


@dataclass(frozen=True)
class NetworkFamily:
    """Networks that one module computes.

    Attributes:
        title: names of the models, for messages.
        model_types: values of `model_type` in config.json.
        network: import path of the network.
        tokenizer: import path of the tokenizer of folders without tokenizer.json.
    """

    title: str
    model_types: tuple[str, ...]
    network: str
    tokenizer: str = _HUB

    @property
    def config(self) -> type[ModelConfig]:
        """The class of the configs."""
        return cast(type[ModelConfig], resolve_name(self.network).CONFIG)


_PROVEN = "probekit.model.proven.loading:"  # imports torch
_FAMILIES = "probekit.model.families."
FAMILIES = (
    NetworkFamily("GPT-2", ("gpt2",), _FAMILIES + "gpt2:GPT2", _BYTE_PAIRS),
    NetworkFamily("Llama", ("llama", "mistral", "qwen2", "qwen3"), _FAMILIES + "llama:Llama"),
    NetworkFamily("Gemma", ("gemma2", "gemma3_text", "gemma3"), _FAMILIES + "gemma:Gemma"),
    NetworkFamily("Pythia", ("gpt_neox",), _FAMILIES + "neox:NeoX"),
    NetworkFamily("OLMo 2", ("olmo2", "olmo3"), _FAMILIES + "olmo2:OLMo2"),
    NetworkFamily("OLMoE", ("olmoe",), _FAMILIES + "olmoe:OLMoE"),
    NetworkFamily("Mixtral", ("mixtral",), _FAMILIES + "mixtral:Mixtral"),
    NetworkFamily("Qwen3-MoE", ("qwen3_moe",), _FAMILIES + "qwen3_moe:Qwen3Moe"),
    NetworkFamily("Phi-3", ("phi3",), _FAMILIES + "phi3:Phi3"),
    NetworkFamily("OPT", ("opt",), _FAMILIES + "opt:OPT", _BYTE_PAIRS),
)
MODEL_TYPES = frozenset(name for family in FAMILIES for name in family.model_types)


def family_of(entries: Mapping[str, Any], path: Path | str) -> NetworkFamily:
    """Return the family of the model that a config.json describes.

    >>> family_of({"model_type": "gpt2"}, "config.json").title
    'GPT-2'

    Without the key `model_type` it is GPT-2.

    Raises:
        CheckpointError: no family has its architecture.
    """
    model_type = entries.get("model_type", FAMILIES[0].model_types[0])
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    architectures = entries.get("architectures")  # names of classes, such as BloomForCausalLM
    named = f" ({', '.join(map(str, architectures))})" if isinstance(architectures, list) else ""
    described = ", ".join(f"{one.title} ({', '.join(one.model_types)})" for one in FAMILIES)
    raise CheckpointError(
        f"{path}: model_type is {model_type!r}{named}. probekit computes these architectures: "
        f"{described}. {OTHER_MODELS}"
    )


def config_of(
    entries: Mapping[str, Any], path: Path | str = "config.json", ignore: Sequence[str] = ()
) -> ModelConfig:
    """Return the config that the entries of a config.json describe, without unknown keys.

    >>> config_of({"model_type": "gpt2", "n_layer": 4}).n_layers
    4

    Raises:
        CheckpointError: no family has its architecture, or an entry is invalid or unknown.
    """
    if entries.get("engine") == "transformers":  # the record of a cache
        return ProvenConfig.from_json(entries)
    return family_of(entries, path).config.from_hub(entries, path, ignore)


def model_config(folder: Path, ignore: Sequence[str] = ()) -> ModelConfig:
    """Return the config of the model in a folder, from config.json or else OpenAI's hparams.json.

    Args:
        folder: the folder.
        ignore: unknown keys of config.json that change nothing in this model.

    Raises:
        MissingError: it has neither.
        CheckpointError: the folder contains a model that no family computes.
    """
    return config_of(*read_entries(folder), ignore)


def find_config(source: str | Path, dtype: str | None = None, at: Proving = ON_CPU) -> ModelConfig:
    """Return the config of a model without its weights; published GPT-2 models need no download.

    A model that transformers computes is loaded in a dtype, and its sites are proven.

    >>> find_config("gpt2-xl").n_layers
    48

    Raises:
        ConfigError: the name is not valid.
        MissingError: no local folder or model of the hub has this name.
        CheckpointError: the config describes a network that no family computes.
    """
    if source in sources.PUBLISHED_NAMES:
        return cast(ModelConfig, resolve_name(_FAMILIES + "gpt2:PUBLISHED")[source])
    if uses_transformers(source, MODEL_TYPES):
        return cast(ModelConfig, resolve_name(_PROVEN + "prepared_config")(source, dtype, at))
    return model_config(find_model(source, "config"), sources.ignored_keys(source))


def read_tokenizer(source: str | Path) -> Any:
    """Return the tokenizer of a model; a folder without config.json has GPT-2's.

    Raises:
        ConfigError: the name is not valid.
        MissingError: no model has this name, or it has no vocabulary.
        CheckpointError: the vocabulary is damaged, or no family has the architecture.
    """
    folder, family = find_model(source, "config"), FAMILIES[0]
    if (folder / "config.json").exists():
        kind = read_json(folder / "config.json").get("model_type", "gpt2")
        # A model that only transformers computes has a tokenizer of the hub, as Llama's have.
        family = next((one for one in FAMILIES if kind in one.model_types), FAMILIES[1])
    files = find_model(source, "vocabulary", vocabulary=family.config.VOCABULARY)
    is_hub = (files / "tokenizer.json").exists()
    return resolve_name(_HUB if is_hub else family.tokenizer).from_folder(files)


def network_class(config: ModelConfig) -> type[FamilyNetwork]:
    """Return the class of the network that a config describes.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> network_class(GPT2Config()).__name__
    'GPT2'
    """
    # The config and the network of a family are in the same module.
    family = next(one for one in FAMILIES if one.network.startswith(f"{type(config).__module__}:"))
    return cast("type[FamilyNetwork]", resolve_name(family.network))


def load_model(
    source: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | Sequence[str] = "cpu",
    *,
    revision: str | None = None,
    ignore: Sequence[str] | None = None,
    in_memory: bool = True,
    engine: Literal["auto", "native", "transformers"] = "auto",
) -> Network:
    """Return a pretrained network, parameters frozen.

    Args:
        source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder.
        dtype: float32, float16, bfloat16 or float64, for weights and computation; None means the
            dtype of the checkpoint, and float32 for checkpoints in float16.
        device: device of the weights, e.g. `cuda`; several, e.g. `["cuda:0", "cuda:1"]`, each hold
            some of the blocks.
        revision: commit, tag or branch of a model on the hub, such as `step1000` of Pythia; the
            same as `org/name@revision`.
        ignore: unknown keys of config.json that change nothing in this model; the same as
            `NAME?ignore=KEY,KEY`.
        in_memory: False reads the weights of each block when a pass reaches it, and drops them
            afterwards: for a network larger than memory.
        engine: `native` is the family that config.json names, `transformers` the code of that
            library, with the sites that are proven; `auto` is a family where there is one.

    >>> model = load_model("mini")
    >>> type(model).__name__, model.dtype
    ('GPT2', torch.float32)

    Raises:
        ConfigError: the dtype is not supported, the name is not valid, or a revision of a folder is
            given.
        MissingError: no model has this name, or it has no such revision.
        CheckpointError: a file is damaged, no family has the architecture, or the tensors are not
            those that the config describes.
        OutOfMemoryError: a tensor needs more memory than there is.
    """
    source = sources.ignoring(sources.at_revision(source, revision), ignore or ())
    source = computed_by(source, engine)
    if uses_transformers(source, MODEL_TYPES):
        return cast("Network", resolve_name(_PROVEN + "load_proven")(source, dtype, device))
    return network_class(find_config(source)).from_pretrained(
        source, dtype, device, in_memory=in_memory
    )


def random_network(
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    *,
    in_memory: bool = True,
) -> Network:
    """Return a network with random weights, which are drawn in float32 whatever their dtype.

    With `in_memory=False` the weights of each block are drawn again when a pass reaches it.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> random_network(GPT2Config(n_layer=1, n_embd=12), seed=0).axis_sizes["n_layers"]
    1
    """
    if isinstance(config, ProvenConfig):
        return cast("Network", resolve_name(_PROVEN + "random_proven")(config, seed, dtype, device))
    build = network_class(config)
    network = build(config, seed=None)
    if in_memory:
        return network.initialise(seed, dtype, device)
    readers = build(config, seed=None).redrawn(seed, dtype)
    return network.requires_grad_(False).read_when_needed(readers, device)


def in_dtype(network: Network, dtype: torch.dtype) -> Network:
    """Return a network in a dtype with the weights of another one, each converted when needed."""
    if isinstance(network.config, ProvenConfig):
        return cast("Network", resolve_name(_PROVEN + "exact_network")(network, dtype))
    readers = {
        name: lambda name=name: network.get_parameter(name).detach().to(dtype)
        for name in network.state_dict()
    }
    converted = network_class(network.config)(network.config, seed=None).requires_grad_(False)
    return converted.read_when_needed(readers, str(network.device))
