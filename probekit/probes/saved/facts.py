"""Metadata of a saved probe: its site, model, settings and scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = str | int | float | bool | None

# Separates the names of concatenated sites.
SITE_SEPARATOR = " + "
_UNTESTED = (
    "The probe is untested: no held-out rows. It was fitted on all rows after a nested "
    "cross-validation, whose scores are those of other fits."
)


class Facts(BaseModel):
    """Base class of the metadata: immutable, no unknown keys, no NaN, no type conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class HeldOutScore(Facts):
    """One metric on held-out rows, with its 95 % confidence interval."""

    value: float
    ci_low: float | None = None
    ci_high: float | None = None
    chance: float | None = None
    n: int
    n_groups: int | None = None


class ProbeFacts(Facts):
    """Metadata of a probe: its training data, and the model properties that must match on use.

    Attributes:
        kind: the kind of probe, such as `logistic` or `k_sparse:16`.
        scores_are_logits: whether the softmax of its scores gives class probabilities.
        sites: the sites of its features, in order of concatenation; a head or neuron follows the
            name of its site.
        view: `raw` rows, or rows `normalized` like a layer norm without the affine part.
        position: the section `tokens.position` of the experiment.
        bos: whether beginning-of-text was prepended to each text; False for a chat, whose
            template writes it.
        chat: whether the model's chat template wrote each text as the user's turn.
        model: the source of the model.
        compute: the floating-point format of the forward pass.
        dtype: the floating-point format of the stored rows.
        weights: the digest of the model's weights.
        n_heads: the number of heads of the model, which the weights do not determine; None if
            unknown.
        layer_norm_epsilon: the epsilon of the model's layer norms; None if unknown.
        tokenizer: the digest of the vocabulary.
        cache: the key of the cache that the rows were read from.
        hyperparameters: the hyperparameters of the fit, such as the selected C.
        metrics: scores on the test rows, by the name of the metric.
        projection_sd: the standard deviation over the fitted rows of the projection on each of
            `SavedProbe.unit_directions`, the unit of steering. Empty for
            probes without directions.
        is_tested: whether rows were held out to test it. Not after a nested cross-validation, whose
            saved probes are fitted on all rows.
        seed: the random seed for folds and draws.
        created: the time of creation, in ISO 8601.
        versions: the versions of the libraries.
    """

    kind: str = Field(min_length=1)
    scores_are_logits: bool
    sites: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    view: Literal["raw", "normalized"] = "raw"
    position: dict[str, Scalar]
    bos: bool
    chat: bool = False
    model: str
    compute: Literal["float32", "float16", "bfloat16", "float64"]
    dtype: Literal["float32", "float16"]
    weights: str
    n_heads: int | None = None
    layer_norm_epsilon: float | None = None
    tokenizer: str
    cache: str
    hyperparameters: dict[str, Scalar] = {}
    metrics: dict[str, HeldOutScore] = {}
    projection_sd: Annotated[tuple[float, ...], Field(strict=False)] = ()
    is_tested: bool = True
    seed: int
    created: str
    versions: dict[str, str]

    @property
    def untested(self) -> str:
        """A warning for users of an untested probe; "" if held-out rows tested the probe."""
        return "" if self.is_tested else _UNTESTED

    @property
    def site(self) -> str:
        """The site as text: `blocks.3.hook_resid_post`, or several sites joined by a plus."""
        return SITE_SEPARATOR.join(self.sites)

    @property
    def at(self) -> str:
        """The token position that the probe was trained at: `last`, `word`, ..."""
        return str(self.position.get("at"))
