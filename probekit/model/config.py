"""The config of a network: its interface for the rest of the package, and parameter counts."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from probekit.errors import CheckpointError, ConfigError, MissingError, nearest
from probekit.model.sites.catalogue import Site
from probekit.model.sites.sites import Sites
from probekit.model.weights.files import read_json, refuse_unread
from probekit.model.weights.sources import HPARAMS, IGNORE

# Whether beginning-of-text precedes each text; `auto` is the choice of the model's own tokenizer.
Bos: TypeAlias = bool | Literal["auto"]
# How special tokens that are written out in a text are read.
SpecialTokens: TypeAlias = Literal["text", "tokens"]

# Upper limits that catch typing errors; no published model comes near them.
MAX_SIZE = 10**7
MAX_LAYERS = 1000

_LINES = Path(__file__).with_name("harmless_keys.txt").read_text("utf-8").splitlines()
_HARMLESS = {entry for line in _LINES if not line.startswith("#") for entry in line.split()}


def is_harmless(key: str, value: Any) -> bool:
    """Return whether an entry of a config.json changes nothing in a family that does not read it.

    Such are entries in harmless_keys.txt, null, ids of special tokens, and notes of the program
    that wrote the file, whose keys begin with `_`.

    >>> is_harmless("unk_token_id", 0), is_harmless("mlp_bias", True), is_harmless("logit_scale", 2)
    (True, False, False)
    """
    if value is None or re.search(r"^_|_token_(ids?|index)$", key):
        return True
    return key in _HARMLESS or f"{key}={json.dumps(value, default=str)}" in _HARMLESS


# Modules that torch.compile, FSDP and activation checkpointing put around others.
_WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True)
class Kind:
    """What is special about the models of one `model_type`.

    Attributes:
        reads: keys of config.json that only some kinds of the family read.
        defaults: the hub's values of absent keys that differ from those of the family.
    """

    reads: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightNames:
    """How the checkpoints of a family name and store the tensors of a network.

    Attributes:
        prefix: beginning of the names in checkpoints of the language model, such as `model.`;
            checkpoints of the body alone lack it.
        nested: regular expression of what precedes the names of the language model in checkpoints
            that also have other networks.
        embedding: name of the token embedding without the prefix.
        unembedding: name of the unembedding, which has no prefix.
        layers: beginning of the names of the tensors of a block, before its index, such as `h.`.
        n_layers: key of config.json with the number of blocks, for messages.
        buffers: regular expression of tensors that are no parameters.
        transposed: regular expression of the linear maps stored as [in, out].
        sizes: keys of config.json that the shapes of tensors show, by tensor, for messages.
        other_names: names that other releases give to a tensor, each with that of the network.
        renamed: parts of names in checkpoints, each with its replacement in the network.
        switches: end of the name of an extra tensor, and the entry of config.json that makes it
            part of the network.
        norm: module of the final norm.
        heads: module in a block that maps the heads to the residual stream.
        neurons: module in a block that maps the neurons to the residual stream.
        after_heads: norm between the heads and the residual stream; empty if there is none.
        stacked: tensors in which transformers stacks the maps of all experts of a block: end of the
            name, and the maps of one expert that are concatenated in it.
    """

    embedding: str
    layers: str
    sizes: tuple[tuple[str, tuple[str, ...]], ...]
    prefix: str = "model."
    nested: str = r"(?!)"  # matches nothing
    unembedding: str = "lm_head.weight"
    n_layers: str = "num_hidden_layers"
    buffers: str = r"(?!)"
    transposed: str = r"(?!)"
    other_names: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    switches: tuple[tuple[str, str], ...] = (("lm_head.weight", '"tie_word_embeddings": false'),)
    norm: str = "norm"
    heads: str = "self_attn.o_proj"
    neurons: str = "mlp.down_proj"
    after_heads: str = ""
    stacked: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def unwrapped(self, names: Iterable[str]) -> dict[str, str]:
        """Return names of tensors without what wrappers add, by the names with it.

        torch.compile, FSDP and DataParallel add modules, and trainers hold the network as `model`.

        >>> from probekit.model.families.gpt2 import WEIGHTS
        >>> list(WEIGHTS.unwrapped(["module._orig_mod.wte.weight"]).values())
        ['wte.weight']

        Raises:
            CheckpointError: the tensors include those of an adapter.
        """
        bare = {name: _WRAPPERS.sub("", name) for name in names}
        if adapter := [name for name in bare if re.search(r"\blora_|\.base_layer\.", name)]:
            raise CheckpointError(
                f"{adapter[0]} is of an adapter. Merge it with peft: model.merge_and_unload()."
            )
        ends = (name for name in bare.values() if name.endswith(self.embedding))
        start = next(ends, "").removesuffix(self.embedding)
        start = re.sub(f"({self.nested})?({re.escape(self.prefix)})?$", "", start)
        start = start if re.fullmatch(r"((module|model)\.)+", start) else ""
        return {name: one.removeprefix(start) for name, one in bare.items()}

    def in_network(self, name: str) -> str:
        """Return the name that a tensor of a checkpoint has in the network.

        >>> from probekit.model.families.neox import WEIGHTS
        >>> WEIGHTS.in_network("gpt_neox.embed_in.weight"), WEIGHTS.in_network("lm_head.weight")
        ('embed_in.weight', 'embed_out.weight')
        """
        short = re.sub(f"^({self.nested})", "", name).removeprefix(self.prefix)
        for theirs, own in self.renamed:
            short = short.replace(theirs, own)
        return dict(self.other_names).get(short, short)

    def in_checkpoint(self, name: str) -> str:
        """Return the name that a tensor of the network has in a checkpoint.

        >>> from probekit.model.families.neox import WEIGHTS
        >>> WEIGHTS.in_checkpoint("embed_in.weight"), WEIGHTS.in_checkpoint("embed_out.weight")
        ('gpt_neox.embed_in.weight', 'embed_out.weight')
        """
        for theirs, own in self.renamed:
            name = name.replace(own, theirs)
        return name if name == self.unembedding else self.prefix + name


@dataclass(frozen=True)
class Component:
    """A module with parameters: a weight and, if the config has it, a bias.

    Attributes:
        name: name shown to users.
        module: name in a state dict, with `{l}` for the index of the block and `{e}` for that of
            an expert. The experts of a block are one component, whose first axis is `n_experts`.
        axes: axes of the weight, from input to output; the bias has the last one. An axis may be a
            product, such as `3 d_model`.
        bias: member of the config that turns the bias on; empty if there is never one.
        part: the sublayer that it belongs to, `attention` or `MLP`; empty for none.
        tied: member of the config that replaces the weight by the token embedding; empty if there
            is none.
        layers: the blocks that have it; None for all.
    """

    name: str
    module: str
    axes: tuple[str, ...]
    bias: str = ""
    part: str = ""
    tied: str = ""
    layers: tuple[int, ...] | None = None

    @property
    def in_block(self) -> bool:
        """Whether every block has such a module."""
        return "{l}" in self.module

    def tensors(self, config: ModelConfig) -> dict[str, tuple[str, ...]]:
        """Return the axes of each tensor, by name."""
        if self.tied and getattr(config, self.tied):
            return {}
        tensors = {f"{self.module}.weight": self.axes}
        if self.bias and getattr(config, self.bias):
            tensors[f"{self.module}.bias"] = self.axes[-1:]
        return tensors


@dataclass(frozen=True)
class ModelConfig(ABC):
    """Sizes and switches of a network, with the same members for every family.

    A family's config is a frozen dataclass whose fields are the keys of the hub's config.json.

    Attributes:
        TITLE: name of the family in messages.
        KINDS: what is special about each `model_type` of the family, the hub's default first.
        WEIGHTS: names of the tensors in checkpoints.
        VOCABULARY: sets of files of the vocabulary, in order of precedence.
        REQUIRED: keys of config.json with the values that the family's code computes. The first of
            each is the hub's default for an absent key.
        REPEATS: keys of config.json that repeat a member of the config or are absent, each with it.
        OTHER_NAMES: keys that have a second name in config.json, each with that name.
        OTHER_KEYS: keys that `computed` reads, in addition to the fields.
        COMPUTED: fields that are no keys of config.json, but computed from several keys.
        norm_is_centred: whether the norms subtract the mean (layer norm) or not (RMS norm).
        bos_token_id: id of the beginning-of-text token, if the checkpoint has any.
        eos_token_id: id of the end-of-text token or tokens, if the checkpoint has any.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> config: ModelConfig = GPT2Config()
    >>> config.n_layers, config.n_kv_heads, config.axis_sizes["d_mlp"]
    (12, 12, 3072)
    """

    TITLE: ClassVar[str]
    KINDS: ClassVar[Mapping[str, Kind]]
    WEIGHTS: ClassVar[WeightNames]
    VOCABULARY: ClassVar[Sequence[tuple[str, ...]]] = (("tokenizer.json",),)
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    REPEATS: ClassVar[Mapping[str, str]] = {}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset()
    COMPUTED: ClassVar[frozenset[str]] = frozenset()
    norm_is_centred: ClassVar[bool]

    # Not used for the forward pass; saved for other programs that read the checkpoint.
    bos_token_id: int | list[int] | None = field(default=None, compare=False, kw_only=True)
    eos_token_id: int | list[int] | None = field(default=None, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError if a size, a switch or the `model_type` is invalid.

        Sizes are the fields of type `int`, switches those of type `bool`; None is allowed if it is
        part of the type.
        """
        for entry in fields(self):
            # The type as written in the class. That of special tokens, `int | list[int] | None`, is
            # not among those below.
            type_ = entry.type.__name__ if isinstance(entry.type, type) else str(entry.type)
            name, value = entry.name, getattr(self, entry.name)
            if value is None and type_.endswith("| None"):
                continue
            if type_.startswith("bool") and not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, not {value!r}.")
            if type_ in ("int", "int | None"):
                most = MAX_LAYERS if name == self.WEIGHTS.n_layers else MAX_SIZE
                if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
                    raise ConfigError(
                        f"{name} must be an integer from 1 to {most:,}, not {value!r}."
                    )
            if name == "model_type" and value not in self.KINDS:
                raise ConfigError(f"model_type is {value!r}. Allowed: {', '.join(self.KINDS)}.")

    def check_divides(self, part: str, whole: str) -> None:
        """Raise ConfigError if the size named `whole` is not a multiple of that named `part`.

        Raises:
            ConfigError: there is a remainder.
        """
        if getattr(self, whole) % getattr(self, part):
            raise ConfigError(
                f"{part}={getattr(self, part)} does not divide {whole}={getattr(self, whole)}."
            )

    @property
    @abstractmethod
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input, n_ctx and n_layers included."""

    @property
    @abstractmethod
    def site_rows(self) -> tuple[Site, ...]:
        """The family's table of sites."""

    @property
    def sites(self) -> Sites:
        """The sites of the network."""
        return Sites(self.site_rows, self.axis_sizes)

    @property
    @abstractmethod
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""

    @property
    @abstractmethod
    def norm_epsilon(self) -> float:
        """Number that the norms add to the variance or to the mean square."""

    @property
    @abstractmethod
    def tie_word_embeddings(self) -> bool:
        """Whether the unembedding is the token embedding."""

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        # GPT-2's config has no field `model_type`, because it has one kind only.
        kind = self.KINDS[getattr(self, "model_type", next(iter(self.KINDS)))]
        names = [entry.name for entry in fields(self) if entry.compare]  # without special tokens
        values = {name: getattr(self, name) for name in names if name in self._keys(kind)}
        return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens."""
        tokens = ("bos_token_id", "eos_token_id")
        return self.to_json() | {key: getattr(self, key) for key in tokens}

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self.axis_sizes["n_layers"]

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.axis_sizes["d_model"]

    @property
    def n_heads(self) -> int:
        """Number of query heads in a block."""
        return self.axis_sizes["n_heads"]

    @property
    def n_kv_heads(self) -> int:
        """Number of key-value heads in a block; without groups it is `n_heads`."""
        return self.axis_sizes.get("n_kv_heads", self.n_heads)

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.axis_sizes["d_head"]

    @property
    def d_mlp(self) -> int:
        """Number of MLP neurons in a block."""
        return self.axis_sizes["d_mlp"]

    @property
    def d_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.axis_sizes["d_vocab"]

    @property
    def n_ctx(self) -> int:
        """Largest number of tokens in a text."""
        return self.axis_sizes["n_ctx"]

    @classmethod
    def from_folder(cls, folder: Path, ignore: Sequence[str] = ()) -> Self:
        """Return the config of a model folder; `ignore` is that of `from_hub`.

        Raises:
            MissingError: there is no config.json.
            CheckpointError: the file is damaged, or describes a network that the family's code does
                not compute.
        """
        return cls.from_hub(*read_entries(folder), ignore)

    @classmethod
    def from_hub(
        cls, entries: Mapping[str, Any], path: Path | str, ignore: Sequence[str] = ()
    ) -> Self:
        """Return the config described by the entries of a config.json.

        Args:
            entries: contents of the file.
            path: the file, for messages.
            ignore: all unknown keys, if they change nothing in this model.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes a network that the
                family's code does not compute.
        """
        check_required(entries, {"model_type": tuple(cls.KINDS), **cls.REQUIRED}, path)
        kind = cls.KINDS[entries.get("model_type", next(iter(cls.KINDS)))]
        names = cls._keys(kind)
        others = {"dtype": "torch_dtype", **cls.OTHER_NAMES}
        known = names.union(kind.reads, cls.REQUIRED, cls.REPEATS, cls.OTHER_KEYS, others.values())
        check_token_ids(entries, path)
        try:
            cls._check_keys(entries, known, ignore)
            named = {key: value_of(entries, key, other) for key, other in others.items()}
            values = {**entries, **{key: one for key, one in named.items() if one is not None}}
            given = {**kind.defaults, **{key: values[key] for key in names if key in values}}
            config = cls(**(given | cls.computed(entries)))
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error
        repeated = {key: (attrgetter(name)(config), None) for key, name in cls.REPEATS.items()}
        check_required(entries, repeated, path)
        return config

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Return the fields that are computed from the entries of a config.json.

        Raises:
            ConfigError: an entry is invalid.
        """
        return {}

    @classmethod
    def _check_keys(
        cls, entries: Mapping[str, Any], known: set[str], ignore: Sequence[str]
    ) -> None:
        """Raise ConfigError if a key may change the computation and is not known.

        Raises:
            ConfigError: the unknown keys are not those in `ignore`, or the weights are quantised.
        """
        if entries.get("quantization_config"):
            raise ConfigError(
                "the weights are quantised (quantization_config). Use a folder or repository with "
                "unquantised weights: float32, float16, bfloat16 or float64."
            )
        unknown = {k: v for k, v in entries.items() if k not in known and not is_harmless(k, v)}
        if unknown.keys() != set(ignore):
            shown = ", ".join(f"{key} ({value!r:.60})" for key, value in unknown.items()) or "none"
            given = (
                f"; in `ignore`: {', '.join(ignore)}. It lists all unknown keys, and no key that "
            )
            shown += f"{given}is read, absent or known to change nothing" if ignore else ""
            raise ConfigError(
                f"unknown keys: {shown}. They may change the numbers of a {cls.TITLE}. "
                f"{nearest(next(iter(unknown), ''), known)} If they change nothing in this model: "
                f"`model.ignore: [{', '.join(unknown)}]`, load_model(..., ignore={[*unknown]}), or "
                f"`--model NAME{IGNORE}{','.join(unknown)}`."
            )

    @classmethod
    def _keys(cls, kind: Kind) -> set[str]:
        """Return the fields that are keys of the config.json of a kind."""
        unread = {key for other in cls.KINDS.values() for key in other.reads} - kind.reads
        return {entry.name for entry in fields(cls)} - unread - cls.COMPUTED


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters of one component, or of a sum of several.

    Attributes:
        name: name of the component.
        formula: how `number` is computed.
        number: number of parameters in one instance.
        times: number of instances in the model.
    """

    name: str
    formula: str
    number: int
    times: int = 1

    @property
    def total(self) -> int:
        """Number of parameters of all instances."""
        return self.number * self.times

    def megabytes(self, bytes_each: int) -> float:
        """Return the size of all instances in units of 2^20 bytes."""
        return self.total * bytes_each / 2**20


def count_components(config: ModelConfig) -> tuple[ParameterCount, ...]:
    """Return the parameter count of every component; the totals sum to that of the model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> count_components(GPT2Config())[3]
    ParameterCount(name='attn.c_attn', formula='d_model x 3 d_model + 3 d_model', number=1771776,
                   times=12)
    """
    return tuple(_count(component, config) for component in config.components)


def count_sums(config: ModelConfig) -> tuple[ParameterCount, ...]:
    """Return commonly quoted parameter counts: attention, MLP, a block, the whole model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> [(count.name, count.number) for count in count_sums(GPT2Config())]
    [('attention', 2362368), ('MLP', 4722432), ('block', 7087872), ('total', 124439808)]
    """
    in_block = [component for component in config.components if component.in_block]
    parts = dict.fromkeys(component.part for component in in_block if component.part)
    sums = [_sum(part, [each for each in in_block if each.part == part], config) for part in parts]
    in_all = [component for component in in_block if component.layers is None]
    parts_and_norms = dict.fromkeys(component.part or component.name for component in in_all)
    block = _sum("block", in_all, config, " + ".join(parts_and_norms))
    total = count_parameters(config)
    return (*sums, block, ParameterCount("total", "n_layers x block + the others", total))


def _sum(
    name: str, components: Sequence[Component], config: ModelConfig, formula: str = ""
) -> ParameterCount:
    """Return the parameter count of several components of the same blocks together.

    The default of the formula is the sum of the names of the components.
    """
    names = (component.name.rpartition(".")[2] for component in components)
    counts = [_count(component, config) for component in components]
    number, times = sum(one.number for one in counts), counts[0].times
    return ParameterCount(name, formula or " + ".join(names), number, times)


def count_parameters(config: ModelConfig) -> int:
    """Return the total number of parameters of a model.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> f"{count_parameters(GPT2Config()):,}"
    '124,439,808'
    """
    return sum(count.total for count in count_components(config))


def _count(component: Component, config: ModelConfig) -> ParameterCount:
    """Return the parameter count of one component."""
    tensors = component.tensors(config).values()
    return ParameterCount(
        name=component.name,
        formula=" + ".join(" x ".join(axes) for axes in tensors) or "tied: the token embedding",
        number=sum(math.prod(_size(axis, config) for axis in axes) for axes in tensors),
        times=len(component.layers or range(config.n_layers)) if component.in_block else 1,
    )


def _size(axis: str, config: ModelConfig) -> int:
    """Return the size of an axis, which may be a product such as `3 d_model`."""
    sizes = config.axis_sizes
    return math.prod(int(part) if part.isdecimal() else sizes[part] for part in axis.split())


def value_of(entries: Mapping[str, Any], *names: str) -> Any:
    """Return the value of a key that has several names in a config.json; None if it has none.

    >>> value_of({"rope_parameters": {"factor": 8.0}}, "factor", "rope_parameters.factor")
    8.0

    Args:
        entries: contents of the file.
        names: the names of the key, with a dot between that of a section and that of its key.

    Raises:
        ConfigError: there are two names with different values.
    """
    found = {}
    for name in names:
        value: Any = entries
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    first = next(iter(found.values()), None)
    if any(value != first for value in found.values()):
        shown = " and ".join(f"{name} is {value!r}" for name, value in found.items())
        raise ConfigError(f"{shown}: names of one key. Remove the one that is wrong.")
    return first


def check_token_ids(entries: Mapping[str, Any], path: Path | str) -> None:
    """Raise CheckpointError if BOS or EOS of a config.json are neither null, an id, nor ids.

    >>> check_token_ids({"bos_token_id": None, "eos_token_id": [1, 2]}, "config.json")

    Raises:
        CheckpointError: one has another value.
    """
    for key in ("bos_token_id", "eos_token_id"):
        value = entries.get(key)
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(type(n) is int and 0 <= n < MAX_SIZE for n in ids):
            raise CheckpointError(
                f"{path}: {key} is {value!r}. Allowed: null, or integers from 0 to "
                f"{MAX_SIZE - 1:,}."
            )


# Ends the refusal of a network that probekit does not compute.
OTHER_MODELS = (
    "For other models, compute the activations with their own library and pass them to "
    "probekit.probe, or save them and name their folder in the section `activations` of an "
    "experiment (docs/howto/given_activations.md)."
)


def check_required(
    entries: Mapping[str, Any], required: Mapping[str, tuple[Any, ...]], path: Path | str
) -> None:
    """Raise CheckpointError if a key has a value that the family's code does not compute.

    An absent key counts as the first of the allowed values.

    Raises:
        CheckpointError: a value is not one of those allowed.
    """
    for key, allowed in required.items():
        if entries.get(key, allowed[0]) not in allowed:
            reason = f", because probekit computes no other variant. {OTHER_MODELS}"
            if key == "model_type":
                reason = ". Use `probekit.load_model`, which selects the class by model_type."
            raise CheckpointError(
                f"{path}: {key} is {entries[key]!r}. Allowed: {' or '.join(map(repr, allowed))}"
                f"{reason}"
            )


def read_entries(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the entries of `folder`/config.json, or of OpenAI's hparams.json in its place, and it.

    Raises:
        MissingError: there is no config.json.
        CheckpointError: the file is damaged or not a JSON object, or the folder has a file that
            changes the network and is not read, such as an adapter.
    """
    path, original = folder / "config.json", folder / HPARAMS
    is_original = original.is_file() and not path.exists()
    path = original if is_original else path
    refuse_unread(folder)
    if not path.exists():
        raise MissingError(
            f"{folder} has no config.json. A model folder contains config.json and "
            "model.safetensors or pytorch_model.bin."
        )
    entries = read_json(path)
    if is_original:
        from probekit.model.weights.other_formats import hub_sizes  # imports torch

        entries = hub_sizes(path, entries)
    return entries, path


def check_between_0_and_1(config: ModelConfig, names: Iterable[str]) -> None:
    """Raise ConfigError if one of the named fields is not a number between 0 and 1, both excluded.

    Raises:
        ConfigError: a number is invalid.
    """
    for name in names:
        value = getattr(config, name)
        if not is_number(value) or not 0 < value < 1:
            raise ConfigError(f"{name} must be a number between 0 and 1, not {value!r}.")


def is_number(value: object) -> bool:
    """Return whether a value is a finite float or an int of 64 bits; booleans are not.

    >>> is_number(0.5), is_number(True), is_number(10**400)
    (True, False, False)
    """
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
