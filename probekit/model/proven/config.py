"""Config and sites of a network that transformers computes: sizes, and what is proven of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, ModelConfig, WeightNames
from probekit.model.sites.catalogue import Axes, Site, component_of, general_name, layer_of, table
from probekit.model.sites.sites import Sites

if TYPE_CHECKING:
    from probekit.model.proven.network import ProvenNetwork

ENGINE = "transformers"  # value of the key `engine` in the JSON of a config
NO_LIMIT = 1 << 20  # tokens of a text, for a config that states no limit
# Keys of config.json with the number of tokens that fit the context.
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True, eq=False)
class ProvenSites(Sites):
    """The sites that are proven, in the order of the forward pass; layers may lack some.

    Attributes:
        proven: full names.
        reasons: why a site, or a kind of sites, is not offered.
    """

    proven: frozenset[str]
    reasons: Mapping[str, str]

    def _names(self, rows: Sequence[Site]) -> tuple[str, ...]:
        """Return the full names of the proven sites in rows of the table, in forward order."""
        return tuple(name for name in super()._names(rows) if name in self.proven)

    def lacking(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Return the layers that lack sites, by the general name of each of the given sites."""
        found: dict[str, list[int]] = {}
        for general in dict.fromkeys(map(general_name, names)):
            layers = sorted(set(range(self.n_layers)).difference(self.layers_of(general)))
            found |= {general: layers} if layers else {}
        return found

    def _no_match(self, pattern: str) -> str:
        """Return the message for a name or glob that matches no site, with the reason if known."""
        general = general_name(pattern).replace("blocks.*.", "blocks.{l}.")
        having, layer = self.layers_of(general), layer_of(pattern)
        of_kind = (self.reasons.get(general.replace("{l}", str(n))) for n in range(self.n_layers))
        reason = self.reasons.get(pattern) or next(filter(None, of_kind), None)
        if (layer is not None and layer >= self.n_layers) or not (reason or having):
            return super()._no_match(pattern)
        others = f" Layers that have it: {numbered(having)}." if having else ""
        return f"Site {pattern!r} is not proven{f': {reason}' if reason else ''}.{others}"

    def layers_of(self, general: str) -> list[int]:
        """Return the layers that have a site, given its general name."""
        return [n for n in range(self.n_layers) if general.replace("{l}", str(n)) in self.proven]


def numbered(layers: Iterable[int]) -> str:
    """Return numbers of layers in words.

    >>> numbered([0, 1, 2, 5])
    '0 to 2, 5'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


@dataclass
class Source:
    """The model of transformers of a config.

    Attributes:
        kind: its class.
        settings: its config.
        proof: what is proven of it, as JSON.
        network: weak reference to its network, or a function that returns None.
    """

    kind: Any
    settings: Any
    proof: Mapping[str, Any]
    network: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class ProvenConfig(ModelConfig):
    """Sizes and sites of a network that transformers computes.

    Attributes:
        title: class of the model.
        sizes: size of each axis.
        epsilon: number that the final norm adds to the variance.
        centred: whether the final norm subtracts the mean.
        identity: all that determines its numbers but the weights, as JSON: settings, dtype,
            attention implementation, digest of source files, versions, and digest of the values of
            the proof.
        counts: number of parameters of all blocks together, and of the other modules.
        formulas: formulas of the sites, by general name; empty for a config that is read from the
            record of a cache.
        axes: axes of the sites, likewise.
        proven: full names of the sites.
        reasons: why a site or a feature is not offered.
        source: the model of transformers; None for a config that is read.
    """

    title: str
    sizes: Mapping[str, int]
    epsilon: float
    centred: bool
    identity: Mapping[str, Any]
    counts: tuple[int, int] = (0, 0)
    formulas: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, Axes] = field(default_factory=dict)
    proven: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    source: Any = field(default=None, compare=False, repr=False)  # a Source

    KINDS: ClassVar[Mapping[str, Kind]] = {}
    WEIGHTS: ClassVar[WeightNames] = WeightNames("", "", ())

    def __post_init__(self) -> None:
        object.__setattr__(self, "TITLE", self.title)
        object.__setattr__(self, "norm_is_centred", self.centred)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {**self.sizes, "1": 1}

    @property
    def site_rows(self) -> tuple[Site, ...]:
        """The kinds of sites that are proven in at least one layer."""
        return table(self.formulas, self.axes)

    @property
    def sites(self) -> ProvenSites:
        """The proven sites."""
        return ProvenSites(self.site_rows, self.axis_sizes, self.proven, self.reasons)

    @property
    def components(self) -> tuple[Component, ...]:
        """The parameters of a block, and all others, as two components."""
        of_blocks, others = self.counts
        of_block, rest = divmod(of_blocks, self.n_layers)  # blocks may differ
        return (
            Component("embeddings, norms and unembedding", "rest", (str(others + rest),)),
            Component("block", "blocks.{l}", (str(of_block),)),
        )

    @property
    def norm_epsilon(self) -> float:
        """Number that the final norm adds to the variance or to the mean square."""
        return self.epsilon

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the unembedding is the token embedding, according to the config."""
        return bool(self.identity["settings"].get("tie_word_embeddings"))

    @property
    def network(self) -> ProvenNetwork:
        """The network of this config.

        Raises:
            ConfigError: it is no longer in memory.
        """
        network: ProvenNetwork | None = self.source.network()
        if network is None:
            raise ConfigError(f"The {self.title} of this config is no longer in memory.")
        return network

    @property
    def proof_facts(self) -> str:
        """What computes the network, and what of it is proven, in words."""
        quantised = self.identity.get("quantised")
        is_quantised = f", weights quantised ({quantised})" if quantised else ""
        version = self.identity["versions"]["transformers"]
        return (
            f"transformers {version} ({self.title}, {self.identity['attention']} attention"
            f"{is_quantised}), {len(self.proven):,} sites proven"
        )

    def computed_by(self, sites: Iterable[str], *, is_drawn: bool = False) -> str:
        """Return the engine of the network and the layers that lack some sites, in words.

        Args:
            sites: full names of sites.
            is_drawn: whether there are also networks with random weights.
        """
        lacking = [
            f"{component_of(general)} not in layers {numbered(layers)}"
            for general, layers in self.sites.lacking(sites).items()
        ]
        parts = [self.proof_facts, *lacking]
        parts += ["untrained weights drawn by the same version"] if is_drawn else []
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return sizes and identity, for the records of caches."""
        return {
            "engine": ENGINE,
            "title": self.title,
            "sizes": dict(self.sizes),
            "norm": [self.epsilon, self.centred],
            **self.identity,
        }

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Self:
        """Return the config in the record of a cache, without sites."""
        own = ("engine", "title", "sizes", "norm")
        epsilon, centred = entries["norm"]
        return cls(
            title=entries["title"],
            sizes=entries["sizes"],
            epsilon=epsilon,
            centred=centred,
            identity={key: one for key, one in entries.items() if key not in own},
        )


# Names of the axes after [batch pos], of the sites of heads and neurons.
_AXES = {
    "attn.hook_z": ("n_heads", "d_head"),
    "attn.hook_rot_q": ("n_heads", "d_head_qk"),
    "attn.hook_rot_k": ("n_kv_heads", "d_head_qk"),
    "attn.hook_v": ("n_kv_heads", "d_head"),
    "mlp.hook_post": ("d_mlp",),
}


def measured_axes(
    shapes: Mapping[str, tuple[int, ...]], sizes: dict[str, int]
) -> tuple[dict[str, Axes], dict[str, str]]:
    """Return the axes of sites of heads and neurons, and why sites of some layers are left out.

    An axis has one size in all layers; layers with another size than most are left out.

    Args:
        shapes: shape of each proven site in a pass over one text.
        sizes: size of each axis; those of heads and neurons are added.
    """
    axes: dict[str, Axes] = {}
    odd: dict[str, str] = {}
    for kind, names in _AXES.items():
        of_kind = {name: shape[2:] for name, shape in shapes.items() if name.endswith("." + kind)}
        if not of_kind:
            continue
        usual = Counter(of_kind.values()).most_common(1)[0][0]
        odd |= {
            name: f"its shape {list(shape)} is not that of most layers, {list(usual)}"
            for name, shape in of_kind.items()
            if shape != usual
        }
        renamed = []
        for axis, size in zip(names, usual, strict=True):
            plain = {"n_kv_heads": "n_heads", "d_head_qk": "d_head"}.get(axis, axis)
            named = plain if sizes.setdefault(plain, size) == size else axis
            sizes.setdefault(named, size)
            renamed.append(named)
        axes[f"blocks.{{l}}.{kind}"] = ("batch", "pos", *renamed)
    return axes, odd


def context_of(config: Any) -> int:
    """Return the number of tokens that fit the context, by the config of transformers."""
    found = (getattr(config, key, None) for key in _CONTEXT)
    return next((n for n in found if isinstance(n, int) and n > 0), NO_LIMIT)
