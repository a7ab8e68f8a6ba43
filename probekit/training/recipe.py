"""The recipe of a pretraining run as a data model: every key, its type, its default, its meaning.

`python -m probekit.training.recipe FILE` writes the JSON schema that editors check recipes with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probekit.errors import ConfigError
from probekit.model.config import GPT2Config
from probekit.provenance import write_atomic
from probekit.section import Name, Section, Seed, SettingsFile, broken

Strings = Annotated[tuple[str, ...], Field(strict=False)]  # a YAML list
Steps = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class CorpusSection(Section):
    """The texts that are learnt."""

    source: str = Field(
        min_length=1,
        examples=["books.tar.xz"],
        description="a folder, a tar or zip archive or a single text file, found from the folder "
        "of the recipe (with --set: from the current directory)",
    )
    files: Strings = Field(
        (),
        description="names of the texts in the folder or archive, read in this order; an empty "
        "list reads all that end in .txt, in the order of their names",
        examples=["book.txt"],
    )
    unwrap: bool = Field(
        False, description="replace line breaks inside paragraphs by spaces; blank lines stay"
    )
    held_out: float = Field(
        0.02, gt=0, lt=0.5, description="share of each text, at its end, that is never learnt"
    )


class VocabularySection(Section):
    """The byte-level BPE: trained on the texts, or that of another model."""

    size: int = Field(
        8192,
        ge=258,
        le=1_000_000,
        description="tokens when trained: <|endoftext|>, 256 bytes, and the merges",
    )
    source: str | None = Field(
        None, description="model whose vocabulary is taken instead, `size` then being its own"
    )


class ShapeSection(Section):
    """The network; its vocabulary is that of the tokens."""

    n_layer: PositiveInt = Field(description="blocks")
    n_head: PositiveInt = Field(description="heads of a block; divides n_embd")
    n_embd: PositiveInt = Field(description="width of the residual stream")
    n_positions: int = Field(ge=8, description="tokens of context, and of each row of a batch")
    n_inner: PositiveInt | None = Field(None, description="neurons of an MLP; null means 4 n_embd")
    embd_pdrop: Share = Field(0.1, description="dropout on the embeddings")
    attn_pdrop: Share = Field(0.1, description="dropout on the attention patterns")
    resid_pdrop: Share = Field(0.1, description="dropout on what sublayers add")
    bias: bool = Field(True, description="biases of linear maps and layer norms")
    qkv_bias: bool | None = Field(None, description="bias of queries, keys, values; null: as bias")
    tie_word_embeddings: bool = Field(True, description="the unembedding is the token embedding")
    initializer_range: float = Field(0.02, gt=0, lt=1, description="width of the first weights")
    position_waves: float = Field(
        0.0,
        ge=0,
        le=10,
        description="root mean square of the sines and cosines that the position embeddings begin "
        "as, so that a token's neighbours are found by a rotation; 0 draws them as all weights",
    )

    @model_validator(mode="after")
    def _is_a_network(self) -> ShapeSection:
        try:
            self.config(vocab_size=258)
        except ConfigError as error:
            raise broken(str(error).rstrip("."), "n_head") from error
        return self

    def config(self, vocab_size: int) -> GPT2Config:
        """Return the config of the network over a vocabulary of this size."""
        sizes = self.model_dump(exclude={"position_waves"})
        return GPT2Config(vocab_size=vocab_size, **sizes)


class TrainingSection(Section):
    """How the weights are learnt."""

    steps: PositiveInt = Field(description="updates of the weights")
    batch: PositiveInt = Field(description="rows of n_positions tokens in an update")
    accumulate: PositiveInt = Field(
        1, description="parts that a batch is computed in, to need less room"
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="AdamW for all, or Muon for the matrices of the blocks (updates orthogonal, "
        "scaled to the size of AdamW's) and AdamW for the rest",
    )
    learning_rate: float = Field(6e-4, gt=0, le=1, description="the highest, after the warm-up")
    warm_up: int = Field(0, ge=0, description="steps over which the learning rate rises from 0")
    decay: Literal["cosine", "linear"] = Field("cosine", description="how it falls at the end")
    decay_steps: int | None = Field(
        None, ge=0, description="last steps over which it falls; null means all after the warm-up"
    )
    final_learning_rate: float = Field(
        0.1, ge=0, le=1, description="what it falls to, as a share of the highest"
    )
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = Field(
        (0.9, 0.95), description="how long AdamW remembers gradients and their squares"
    )
    weight_decay: float = Field(0.1, ge=0, le=10, description="of matrices; vectors have none")
    clip: float = Field(1.0, gt=0, description="norm that gradients are cut to")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="numbers of the matrix products; weights and their updates are float32. auto: "
        "bfloat16 on devices that compute with it, else float32",
    )

    @model_validator(mode="after")
    def _parts_are_whole(self) -> TrainingSection:
        if self.batch % self.accumulate:
            raise broken(
                f"accumulate is {self.accumulate}, which does not divide batch, {self.batch}",
                "accumulate",
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainingSection:
        if self.warm_up + (self.decay_steps or 0) > self.steps:
            raise broken("warm_up and decay_steps are more than all steps", "warm_up")
        return self


class RepeatsSection(Section):
    """Rows of a short piece repeated over and over, which teach a network to look back."""

    share: Annotated[tuple[Share, Share], Field(strict=False)] = Field(
        (0.0, 0.0), description="of all rows, at the first step and after `grow_steps`"
    )
    period: Annotated[tuple[int, int], Field(strict=False)] = Field(
        (4, 128), description="shortest and longest piece, in tokens"
    )
    grow_steps: int = Field(
        0,
        ge=0,
        description="first steps, over which the share goes from the one to the other and the "
        "longest piece grows from the shortest",
    )
    uniform: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of pieces drawn evenly from the vocabulary; of the rest, half are "
        "pieces of the text and half the same shuffled",
    )

    @model_validator(mode="after")
    def _period_is_a_range(self) -> RepeatsSection:
        if not 1 <= self.period[0] <= self.period[1]:
            raise broken("period is [shortest, longest], both at least 1", "period")
        return self


class ValidationSection(Section):
    """When the loss on what is held out is measured."""

    every: PositiveInt = Field(
        250, description="steps between two measurements; there is one at the end"
    )
    rows: PositiveInt | None = Field(
        None,
        description="held-out rows that are read then, evenly spread; null means all, as at "
        "the end",
    )


class CheckpointsSection(Section):
    """Which steps are kept, each as a model of its own."""

    at: Steps = Field((), description="these steps; 0 is the network before any training")
    every: PositiveInt | None = Field(None, description="and each so many steps")
    log_spaced: int = Field(
        0, ge=0, le=1000, description="and so many between 1 and the last, evenly on a log scale"
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="numbers in which they are kept"
    )
    resume_every: PositiveInt = Field(
        100, description="steps between two states that a killed run goes on from; one is kept"
    )


class Recipe(SettingsFile):
    """One pretraining run: texts, vocabulary, network, and how it learns.

    >>> Recipe.model_validate({
    ...     "name": "tiny", "corpus": {"source": "book.txt"},
    ...     "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64},
    ...     "training": {"steps": 100, "batch": 8},
    ... }).training.betas
    (0.9, 0.95)
    """

    name: Name = Field(description="the folder of the run is called so")
    seed: Seed = Field(0, description="draws the first weights, the order of the text, dropout")
    corpus: CorpusSection
    vocabulary: VocabularySection = VocabularySection()
    model: ShapeSection
    training: TrainingSection
    repeats: RepeatsSection = RepeatsSection()
    validation: ValidationSection = ValidationSection()
    checkpoints: CheckpointsSection = CheckpointsSection()

    @model_validator(mode="after")
    def _pieces_fit_into_a_row(self) -> Recipe:
        if any(self.repeats.share) and self.repeats.period[1] > self.model.n_positions // 2:
            raise broken(
                f"the longest piece must stand twice in the {self.model.n_positions} tokens of a "
                f"row: give at most {self.model.n_positions // 2}",
                "repeats",
                "period",
            )
        return self

    @model_validator(mode="after")
    def _checkpoints_are_reached(self) -> Recipe:
        if any(step > self.training.steps for step in self.checkpoints.at):
            raise broken(
                f"a checkpoint after the last step, {self.training.steps}", "checkpoints", "at"
            )
        return self


def recipe_schema() -> str:
    """Return the JSON schema of a recipe, as committed beside the experiments."""
    schema: dict[str, Any] = Recipe.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "probekit pretraining recipe"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write_atomic(Path(sys.argv[1]), recipe_schema())
