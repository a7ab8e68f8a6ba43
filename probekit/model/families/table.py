"""The table of families, and the config of a model of any of them.

No other module of the package lists families. A network's own code does not import this one, so
that a change of one family leaves the caches of all others valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from probekit.errors import CheckpointError
from probekit.model.config import ModelConfig, read_entries
from probekit.model.families.gpt2 import PUBLISHED, GPT2Config
from probekit.model.weights.names import HPARAMS
from probekit.model.weights.sources import find_model


@dataclass(frozen=True)
class NetworkFamily:
    """Networks that one module computes.

    Attributes:
        title: names of the models, for messages.
        model_types: values of `model_type` in config.json.
        config: import path of the config, in a module without torch.
        network: import path of the network.
        tokenizer: import path of the tokenizer.
    """

    title: str
    model_types: tuple[str, ...]
    config: str
    network: str
    tokenizer: str = "probekit.model.text.hub_tokenizer:HubTokenizer"


FAMILIES = (
    NetworkFamily(
        "GPT-2",
        ("gpt2",),
        "probekit.model.families.gpt2:GPT2Config",
        "probekit.model.gpt2:GPT2",
        "probekit.model.text.byte_pairs:BytePairTokenizer",
    ),
    NetworkFamily(
        "Llama",
        ("llama", "mistral", "qwen2", "qwen3"),
        "probekit.model.families.llama:LlamaConfig",
        "probekit.model.llama:Llama",
    ),
    NetworkFamily(
        "Gemma",
        ("gemma2", "gemma3_text"),
        "probekit.model.families.gemma:GemmaConfig",
        "probekit.model.gemma:Gemma",
    ),
    NetworkFamily(
        "Pythia",
        ("gpt_neox",),
        "probekit.model.families.neox:NeoXConfig",
        "probekit.model.neox:NeoX",
    ),
    NetworkFamily(
        "OLMo 2",
        ("olmo2",),
        "probekit.model.families.olmo2:OLMo2Config",
        "probekit.model.olmo2:OLMo2",
    ),
)


def family_of(entries: Mapping[str, Any], path: Path | str) -> NetworkFamily:
    """Return the family of the model that a config.json describes.

    >>> family_of({"model_type": "gpt2"}, "config.json").title
    'GPT-2'

    Raises:
        CheckpointError: no family has its architecture.
    """
    model_type = entries.get("model_type", FAMILIES[0].model_types[0])
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    described = ", ".join(f"{one.title} ({', '.join(one.model_types)})" for one in FAMILIES)
    raise CheckpointError(
        f"{path}: model_type is {model_type!r}. probekit computes these architectures: {described}."
    )


def config_of(entries: Mapping[str, Any], path: Path | str = "config.json") -> ModelConfig:
    """Return the config that the entries of a config.json describe.

    >>> config_of({"model_type": "gpt2", "n_layer": 4}).n_layers
    4

    Raises:
        CheckpointError: no family has its architecture, or an entry is invalid or unknown.
    """
    config = cast(type[ModelConfig], imported(family_of(entries, path).config))
    return config.from_hub(entries, path)


def model_config(folder: Path) -> ModelConfig:
    """Return the config of the model in a folder, from config.json or else OpenAI's hparams.json.

    Raises:
        MissingError: it has neither.
        CheckpointError: the folder contains a model that no family computes.
    """
    if (folder / HPARAMS).is_file() and not (folder / "config.json").is_file():
        return GPT2Config.from_folder(folder)
    return config_of(read_entries(folder), folder / "config.json")


def find_config(source: str | Path) -> ModelConfig:
    """Return the config of a model without its weights; published GPT-2 models need no download.

    >>> find_config("gpt2-xl").n_layers
    48

    Raises:
        MissingError: no local folder or model of the hub has this name.
        CheckpointError: the config describes a network that no family computes.
    """
    if source in PUBLISHED:
        return PUBLISHED[str(source)]
    return model_config(find_model(source, "config"))


def read_tokenizer(source: str | Path) -> Any:
    """Return the tokenizer of a model; a folder without config.json has GPT-2's.

    Raises:
        MissingError: no model has this name, or it has no vocabulary.
        CheckpointError: the vocabulary is damaged, or no family has the architecture.
    """
    folder, family = find_model(source, "config"), FAMILIES[0]
    if (folder / "config.json").exists():
        family = family_of(read_entries(folder), folder / "config.json")
    config = cast(type[ModelConfig], imported(family.config))
    files = find_model(source, "vocabulary", vocabulary=config.VOCABULARY)
    return imported(family.tokenizer).from_folder(files)


def imported(path: str) -> Any:
    """Return the object at an import path such as `package.module:Name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
