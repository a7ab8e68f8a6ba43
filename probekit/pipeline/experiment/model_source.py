"""Activations of a model: captured from texts, and from networks with random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probekit.activations.identity import identify
from probekit.experiment.model import PositionSection
from probekit.experiment.schema import Experiment
from probekit.model.families.table import config_of
from probekit.model.sites.sites import SiteSelection
from probekit.model.weights.checkpoint import file_checks
from probekit.model.weights.sources import find_model
from probekit.pipeline.experiment.features import FeatureReader, Probed
from probekit.pipeline.experiment.models import TASK, Models
from probekit.pipeline.experiment.norms import residual_norms
from probekit.pipeline.experiment.prepare import Prepared
from probekit.pipeline.experiment.rows import PositionRows
from probekit.pipeline.experiment.source import RowsOrigin, RowsReader
from probekit.pipeline.look.apply import ProbedModel, predict_texts
from probekit.pipeline.look.attention import attention_prompt
from probekit.probes.saved_probe import SavedProbe
from probekit.provenance import digest_json
from probekit.results.network import AttentionPrompt, TextReading
from probekit.results.record import ModelFacts, Norms

if TYPE_CHECKING:
    from probekit.activations.capture import Captured
    from probekit.activations.identity import Identity
    from probekit.pipeline.experiment.source import Capture


@dataclass(frozen=True, eq=False)
class ModelSource:
    """The probed model of an experiment, and its networks with random weights.

    Attributes:
        experiment: the settings.
        prepared: examples, tokens and rows.
        models: the network of each target.
    """

    experiment: Experiment
    prepared: Prepared
    models: Models

    @property
    def facts(self) -> ModelFacts:
        """Name and sizes of the probed model, and the checks made on its files."""
        model = self.models[TASK]
        config = model.config
        return ModelFacts(
            source=self.experiment.model.source,
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_vocab=config.d_vocab,
            n_ctx=config.n_ctx,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            compared_with=file_checks(find_model(self.experiment.model.source)),
        )

    @property
    def seeds(self) -> dict[str, int]:
        """The random seed of the first untrained network."""
        return {"random_weights": self.experiment.model.random_seed}

    def identity(self) -> Any:
        """Return the identity of the cache of the probed model, as JSON.

        Networks with random weights follow from it and from the settings, so they are not built.
        """
        prepared, dtype = self.prepared, self.experiment.capture.dtype
        tokenizer, ids = prepared.tokenizer.digest, prepared.ids
        return identify(self.models[TASK], tokenizer, ids, prepared.plan, dtype).to_json()

    def open(self, capture: Capture) -> CapturedFeatures:
        """Return the activations of all targets, captured as far as they are missing."""
        captured = capture(self.experiment, self.prepared, self.models)
        return CapturedFeatures(self.experiment, self.prepared, captured)

    def norms(self) -> list[Norms]:
        """Return the norms of the residual stream at the probed sites."""
        return residual_norms(self.models[TASK], self.prepared)

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns of the texts that the experiment lists."""
        settings, texts = self.experiment.tokens, self.experiment.attention.texts
        model, tokenizer = self.models[TASK], self.prepared.tokenizer
        return [
            attention_prompt(model, tokenizer, text, bos=settings.bos, chat=settings.chat)
            for text in texts
        ]

    def readings(
        self, probe: SavedProbe, selection: Probed, texts: Sequence[str]
    ) -> Sequence[TextReading | None]:
        """Return the predictions of a probe at each token of texts."""
        parts = tuple(part for part in selection.parts if isinstance(part, SiteSelection))
        network = ProbedModel(self.models[TASK], self.prepared.tokenizer, parts)
        return predict_texts(probe, network, texts, too_long="truncate")


@dataclass(frozen=True, eq=False)
class CapturedFeatures:
    """Captured activations of an experiment, by target."""

    experiment: Experiment
    prepared: Prepared
    captured: Mapping[str, Captured]

    @property
    def _identity(self) -> Identity:
        return self.captured[TASK].store.identity

    @property
    def digests(self) -> dict[str, str]:
        """Digests of tokenizer, weights, config and activations."""
        captured = self.captured
        return {
            "tokenizer": self.prepared.tokenizer.digest,
            **{f"weights ({t})": part.store.identity.weights for t, part in captured.items()},
            "config": digest_json(self._identity.config),
            **{f"activations ({target})": part.root for target, part in captured.items()},
        }

    @property
    def folders(self) -> dict[str, str]:
        """The folder of the cache of each target."""
        return {target: str(part.store.folder) for target, part in self.captured.items()}

    def readers(self, at: PositionRows) -> dict[str, RowsReader]:
        """Return the readers of a position, by target."""
        config = self.prepared.config
        return {
            target: FeatureReader.of(part.store, at.rows, self.experiment, config)
            for target, part in self.captured.items()
        }

    def origin(self, at: PositionRows) -> RowsOrigin:
        """Return the model and settings that the rows of a position were captured with."""
        assert isinstance(at.position, PositionSection), "captured rows have a position in a text"
        return captured_origin(self.experiment.with_position(at.position), self._identity)


def captured_origin(experiment: Experiment, identity: Identity) -> RowsOrigin:
    """Return the origin of captured rows.

    Args:
        experiment: gives the model, the position and the view.
        identity: identity of the store that the rows are read from.
    """
    config = config_of(identity.config)
    return RowsOrigin(
        position=experiment.tokens.position.model_dump(mode="json"),
        bos=experiment.tokens.bos,
        chat=experiment.tokens.chat,
        model=experiment.model.source,
        compute=experiment.model.dtype,
        dtype=experiment.capture.dtype,
        view=experiment.capture.view,
        weights=identity.weights,
        n_heads=config.n_heads,
        layer_norm_epsilon=config.norm_epsilon,
        tokenizer=identity.tokenizer,
        cache=identity.key,
    )
