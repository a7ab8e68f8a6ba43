"""Given activations as the source of a run: reading, names and digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probekit.activations.given.given import GivenArrays
from probekit.activations.records import FloatArray
from probekit.experiment.activations import ActivationExperiment
from probekit.model.sites.sites import SiteConcatenation
from probekit.pipeline.experiment.features import Probed
from probekit.pipeline.experiment.models import TASK
from probekit.pipeline.experiment.rows import PositionRows
from probekit.pipeline.experiment.source import RowsOrigin, RowsReader
from probekit.pipeline.given.rows import GivenRows
from probekit.probes.saved_probe import SavedProbe
from probekit.provenance import digest_json
from probekit.results.network import AttentionPrompt, TextReading
from probekit.results.record import ModelFacts, Norms

if TYPE_CHECKING:
    from probekit.pipeline.experiment.source import Capture


@dataclass(frozen=True)
class GivenReader:
    """Reads given activations, one site at a time."""

    rows: GivenArrays

    def features(self, selection: Probed) -> FloatArray:
        """Return the features of a site, shape (n_rows, n_features)."""
        assert not isinstance(selection, SiteConcatenation), "given sites are single"
        return self.rows.read(selection.site)


@dataclass(frozen=True, eq=False)
class GivenSource:
    """The given activations of an experiment, which need no capture.

    Attributes:
        experiment: the settings.
        prepared: rows and activations.
    """

    experiment: ActivationExperiment
    prepared: GivenRows

    @property
    def facts(self) -> ModelFacts:
        """The name of the model, as given; its sizes are unknown."""
        return ModelFacts(source=self.experiment.activations.source)

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the activations."""
        return {"activations": self.prepared.given.digest}

    @property
    def folders(self) -> dict[str, str]:
        """The folder of the activations, if they are not in memory."""
        folder = self.experiment.activations.folder
        return {} if folder is None else {TASK: folder}

    @property
    def seeds(self) -> dict[str, int]:
        """No seeds, because there are no networks."""
        return {}

    def identity(self) -> Any:
        """Return the digests of activations and tokens."""
        return self.digests | {"tokens": digest_json(self.prepared.tokens)}

    def open(self, _capture: Capture) -> GivenSource:
        """Return the activations; nothing is captured."""
        return self

    def readers(self, _at: PositionRows) -> dict[str, RowsReader]:
        """Return the reader of the activations."""
        return {TASK: GivenReader(self.prepared.given.rows)}

    def origin(self, at: PositionRows) -> RowsOrigin:
        """Return the origin of the rows; only the name of the model is known."""
        return RowsOrigin(
            position={"at": at.position.text},
            bos=False,
            chat=False,
            model=self.experiment.activations.source,
            compute="float32",
            dtype="float32",
            view="raw",
            weights="",
            n_heads=None,
            layer_norm_epsilon=None,
            tokenizer="",
            cache=self.prepared.given.digest,
        )

    def norms(self) -> list[Norms]:
        """Return no norms: the first positions of the texts are unknown."""
        return []

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return no attention patterns."""
        return []

    def readings(
        self, _probe: SavedProbe, _selection: Probed, texts: Sequence[str]
    ) -> Sequence[TextReading | None]:
        """Return no predictions for tokens of texts."""
        return [None] * len(texts)
