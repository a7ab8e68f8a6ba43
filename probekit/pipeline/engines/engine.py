"""What an engine is: where the activations of an experiment come from.

Nothing that uses an `Engine` depends on which one it is; `table.py` lists them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from probekit.accelerators import check_device
from probekit.activations.capture import Captured
from probekit.activations.store import ActivationStore
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import Floats, LazyRows
from probekit.pipeline.engines.table import How
from probekit.pipeline.setup.design import ExperimentDesign, Probed
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.saved_probe import SavedProbe
from probekit.results.network import AttentionPrompt, TextReading
from probekit.results.record import Norms

# Captures the activations of a network engine, by target.
Capture = Callable[[Any], Mapping[str, Captured]]
Readings = Sequence[TextReading | None]  # of each text
TASK = "task"  # target of the probed model, as opposed to those of untrained networks


class Activations(ABC):
    """Rows of activations by site, position and network; picklable for worker processes.

    Attributes:
        stores: the cache of each network, by target; empty without caches.
    """

    stores: Mapping[str, ActivationStore]

    @abstractmethod
    def block(self, site: Probed, position: int = 0, network: str = TASK) -> LazyRows:
        """Return the rows of a site, shape (n_rows, n_features), read when they are needed.

        Args:
            site: the site, one head or neuron of it, or a concatenation.
            position: index of the position.
            network: one of `Engine.networks`.
        """

    def outputs(self, _position: int) -> Mapping[str, Floats] | None:
        """Return numbers of the network's output by name, each (n_rows,); None without them."""
        return None

    @abstractmethod
    def probe_facts(self, position: int) -> dict[str, Any]:
        """Return the fields of `ProbeFacts` that describe the rows of a position."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Engine(ABC):
    """An experiment with its rows and the activations of these.

    Attributes:
        experiment: the settings.
        design: labels, groups and splits of the rows.
        activations: the activations; those of a network are there after `open`.
        selections: probed sites in the order of the forward pass; concatenations last.
        widths: the number of features of each.
        axis_sizes: sizes of the axes of sites, such as `n_heads`, as far as they are known.
        is_shared: whether other processes can read its rows and networks.
        networks: the networks that there are rows of: `task`, then each untrained network.
        texts: the texts whose activations are captured; None if activations are given.
        further: further texts that are captured, at the selected site only, by their name.
        files: contents of files that a run keeps, by name.
        constants_are_odd: whether a feature that is constant in some rows is odd, as in given
            arrays. A network embeds equal tokens, such as the full stop of all texts, alike.
    """

    experiment: AnyExperiment
    design: ExperimentDesign
    activations: Activations
    selections: Sequence[Probed]
    widths: Sequence[int]
    axis_sizes: Mapping[str, int]
    is_shared: bool
    networks: tuple[str, ...] = (TASK,)
    texts: ReadTexts | None = None
    further: Mapping[str, ReadTexts] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    constants_are_odd: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def prepare(cls, experiment: Any, how: How) -> Self:
        """Return the engine of an experiment."""

    def ready(self, device: str) -> Self:
        """Return the engine, checked before it computes on a device.

        Raises:
            ConfigError: the device is not available.
            MissingError: the model does not exist.
        """
        check_device(device)
        return self

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Size of all activations, of all networks together."""

    @property
    def further_digests(self) -> dict[str, str]:
        """Digests of the further texts, by their name."""
        return {name: texts.dataset.digest for name, texts in self.further.items()}

    @property
    def shared_digests(self) -> dict[str, str]:
        """Digests of activations that processes of a run share; a cache is known by its place."""
        return {}

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return `model`, `digests`, `seeds` and `caches` of run.json."""

    @abstractmethod
    def identity(self) -> Any:
        """Return the identity of the activations, as JSON, for the run key."""

    def open(self, _capture: Capture) -> Self:
        """Return the engine with its activations; `capture` computes those that it lacks."""
        return self

    def reopened(self, _caches: Mapping[str, str]) -> Self:
        """Return the engine with the activations that another process has captured."""
        return self

    def norms(self) -> list[Norms]:
        """Return the norms of the residual stream; empty if the model is unknown."""
        return []

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns that the report shows."""
        return []

    def readings(self, _probe: SavedProbe, texts: Sequence[str]) -> Readings:
        """Return the predictions of a probe at each token of texts; None without a model."""
        return [None] * len(texts)
