"""Where the activations of a run come from: a model that is captured, or given arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from probekit.activations.records import FloatArray
from probekit.pipeline.experiment.features import Probed
from probekit.pipeline.experiment.rows import PositionRows
from probekit.probes.saved_probe import SavedProbe, Scalar
from probekit.results.network import AttentionPrompt, TextReading
from probekit.results.record import ModelFacts, Norms

if TYPE_CHECKING:  # code that finds and fills caches does not affect the results
    from probekit.activations.capture import Captured
    from probekit.experiment.schema import Experiment
    from probekit.pipeline.experiment.models import Models
    from probekit.pipeline.experiment.prepare import Prepared

    Capture = Callable[[Experiment, Prepared, Models], Mapping[str, Captured]]


@dataclass(frozen=True)
class RowsOrigin:
    """Origin of the rows that a probe is fitted on; see `ProbeFacts`.

    `weights` and `tokenizer` are empty for given activations, whose model is unknown.
    """

    position: dict[str, Scalar]
    bos: bool
    chat: bool
    model: str
    compute: Literal["float32", "float16", "bfloat16", "float64"]
    dtype: Literal["float32", "float16"]
    view: Literal["raw", "normalized"]
    weights: str
    n_heads: int | None
    layer_norm_epsilon: float | None
    tokenizer: str
    cache: str


class RowsReader(Protocol):
    """Reads the features of the rows at one position, one site at a time."""

    def features(self, selection: Probed) -> FloatArray:
        """Return the features of a site, shape (n_rows, n_features)."""


class Features(Protocol):
    """The activations of a run, ready to be read."""

    @property
    def digests(self) -> dict[str, str]:
        """Digests of everything that the activations were computed from, by name."""

    @property
    def folders(self) -> dict[str, str]:
        """The folder of the activations of each target."""

    def readers(self, at: PositionRows, /) -> dict[str, RowsReader]:
        """Return the readers of a position: `task`, then one for each untrained network."""

    def origin(self, at: PositionRows, /) -> RowsOrigin:
        """Return the origin of the rows of a position."""


class Source(Protocol):
    """Origin of the activations of a run."""

    @property
    def facts(self) -> ModelFacts:
        """Name and sizes of the model."""

    @property
    def seeds(self) -> dict[str, int]:
        """The random seeds of networks, by name."""

    def identity(self) -> Any:
        """Return the identity of the activations, as JSON, for the run key."""

    def open(self, capture: Capture, /) -> Features:
        """Return the activations; `capture` computes those of a model."""

    def norms(self) -> list[Norms]:
        """Return the norms of the residual stream; empty if the model is unknown."""

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns that the report shows."""

    def readings(
        self, probe: SavedProbe, selection: Probed, texts: Sequence[str], /
    ) -> Sequence[TextReading | None]:
        """Return the predictions of a probe at each token of texts; None without a model."""
