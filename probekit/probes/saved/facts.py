"""What is written beside the weights of a kept probe: where it reads, and how well it did."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = str | int | float | bool | None

# What stands between the names of sites whose features are taken side by side.
BESIDE = " + "


class Facts(BaseModel):
    """Base of what is written: immutable, no unknown keys, no NaN, no silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class HeldOutScore(Facts):
    """One metric on held-out rows, with its 95 % interval."""

    value: float
    ci_low: float | None = None
    ci_high: float | None = None
    chance: float | None = None
    n: int
    n_groups: int | None = None


class ProbeFacts(Facts):
    """What a probe was fitted on, and what must be the same where it is used.

    Attributes:
        kind: the kind of probe, such as `logistic` or `k_sparse:16`.
        scores_are_logits: whether the softmax of its scores is what it takes for probabilities.
        sites: what its features are read at, side by side; a head or neuron stands behind its site.
        view: `raw` rows, or each row `normalized` as a layer norm would, without the affine part.
        position: the experiment's section `tokens.position`.
        bos: whether <|endoftext|> stood before each text.
        model: the source of the model.
        compute: numbers of the forward pass.
        dtype: numbers that the rows were stored with.
        weights: digest of the model's weights.
        tokenizer: digest of the vocabulary.
        cache: key of the identity of the cache that the rows were read from.
        hyperparameters: of the fit, such as the C that was chosen.
        metrics: on the test rows, by name.
        seed: of folds and draws.
        created: when, in ISO 8601.
        versions: of the libraries.
    """

    kind: str = Field(min_length=1)
    scores_are_logits: bool
    sites: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    view: Literal["raw", "normalized"] = "raw"
    position: dict[str, Scalar]
    bos: bool
    model: str
    compute: Literal["float32", "float16", "bfloat16", "float64"]
    dtype: Literal["float32", "float16"]
    weights: str
    tokenizer: str
    cache: str
    hyperparameters: dict[str, Scalar] = {}
    metrics: dict[str, HeldOutScore] = {}
    seed: int
    created: str
    versions: dict[str, str]

    @property
    def site(self) -> str:
        """The sites as one text: `blocks.3.hook_resid_post`, or several joined by a plus."""
        return BESIDE.join(self.sites)

    @property
    def at(self) -> str:
        """Where in a text the probe was trained: `last`, `word`, ..."""
        return str(self.position.get("at"))
