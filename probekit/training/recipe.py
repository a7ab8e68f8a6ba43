"""A pretraining recipe: every key with its type, default and description, and its schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from probekit.section import FolderName, Section, Seed, SettingsFile, rule_error

if TYPE_CHECKING:
    from probekit.model.families.gpt2 import GPT2Config

MAX_MEGABYTES = 1000  # default of the largest decompressed size of a file
PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Shares = Annotated[tuple[Share, Share], Field(strict=False)]  # a YAML list


class CorpusSection(Section):
    """Training texts.

    Attributes:
        source: folder or text file, relative to the folder of the recipe; text files may be
            compressed as .gz, .bz2 or .xz
        files: names of the texts in the folder, read in this order; an empty list reads all files
            that end in .txt, also if compressed, sorted by name
        unwrap: replace line breaks inside paragraphs with spaces
        held_out: fraction of each text, at its end, that is held out
        max_megabytes: maximum decompressed size of a file in MB
    """

    source: str = Field(min_length=1, examples=["books"])
    files: Annotated[tuple[str, ...], Field(strict=False)] = Field((), examples=["book.txt"])
    unwrap: bool = False
    held_out: float = Field(0.02, gt=0, lt=0.5)
    max_megabytes: PositiveInt = MAX_MEGABYTES


class VocabularySection(Section):
    """Byte-level BPE vocabulary, trained on the texts or taken from another model.

    Attributes:
        size: vocabulary size, if it is trained
        source: model whose vocabulary is used instead
    """

    size: int = Field(8192, ge=258, le=1_000_000)
    source: str | None = None


class ShapeSection(Section):
    """Network architecture, except the vocabulary size, which the section `vocabulary` sets.

    Attributes:
        n_layer: number of blocks
        n_head: heads per block; divides n_embd
        n_embd: width of the residual stream
        n_positions: context length, and tokens per row of a batch
        n_inner: neurons per MLP; null means 4 n_embd
        embd_pdrop: dropout on the embeddings
        attn_pdrop: dropout on the attention patterns
        resid_pdrop: dropout on the outputs of attention and MLP
        bias: biases in linear layers and layer norms
        qkv_bias: biases of query, key, value; null: as `bias`
        tie_word_embeddings: use the token embedding as unembedding
        initializer_range: standard deviation of the initial weights
        position_waves: root mean square of sinusoidal initial position embeddings; 0 draws them
            like all other weights
    """

    n_layer: PositiveInt
    n_head: PositiveInt
    n_embd: PositiveInt
    n_positions: int = Field(ge=8)
    n_inner: PositiveInt | None = None
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    resid_pdrop: Share = 0.1
    bias: bool = True
    qkv_bias: bool | None = None
    tie_word_embeddings: bool = True
    initializer_range: float = Field(0.02, gt=0, lt=1)
    position_waves: float = Field(0.0, ge=0, le=10)

    @model_validator(mode="after")
    def _heads_are_whole(self) -> ShapeSection:
        if self.n_embd % self.n_head:
            text = f"n_head={self.n_head} does not divide n_embd={self.n_embd}"
            raise rule_error(text, "n_head")
        return self

    def config(self, vocab_size: int) -> GPT2Config:
        """Return the network configuration for a vocabulary size.

        Raises:
            ConfigError: a size is larger than any network can have.
        """
        # Not at the top: a mistake in a recipe is reported without torch.
        from probekit.model.families.gpt2 import GPT2Config

        return GPT2Config(vocab_size=vocab_size, **self.model_dump(exclude={"position_waves"}))


class TrainingSection(Section):
    """Optimization settings.

    Attributes:
        steps: number of weight updates
        batch: rows of n_positions tokens per update
        accumulate: parts of a batch, to use less memory
        optimizer: AdamW, or Muon for the matrices of the blocks and AdamW for the rest
        learning_rate: peak, after the warm-up
        warm_up: steps of linear warm-up of the learning rate
        decay: shape of the final decay
        decay_steps: steps of the final decay; null: all others
        final_learning_rate: final rate as a fraction of the peak
        betas: AdamW's decay rates of the moments of the gradient
        weight_decay: for matrices; vectors have none
        clip: maximum gradient norm
        dtype: dtype of matrix products; auto: bfloat16 on devices that support it
    """

    steps: PositiveInt
    batch: PositiveInt
    accumulate: PositiveInt = 1
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(6e-4, gt=0, le=1)
    warm_up: int = Field(0, ge=0)
    decay: Literal["cosine", "linear"] = "cosine"
    decay_steps: int | None = Field(None, ge=0)
    final_learning_rate: float = Field(0.1, ge=0, le=1)
    betas: Shares = (0.9, 0.95)
    weight_decay: float = Field(0.1, ge=0, le=10)
    clip: float = Field(1.0, gt=0)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @model_validator(mode="after")
    def _is_consistent(self) -> TrainingSection:
        if self.batch % self.accumulate:
            text = f"accumulate ({self.accumulate}) does not divide batch ({self.batch})"
            raise rule_error(text, "accumulate")
        if self.warm_up + (self.decay_steps or 0) > self.steps:
            raise rule_error("warm_up and decay_steps add up to more than steps", "warm_up")
        return self


class RepeatsSection(Section):
    """Rows that repeat a short piece of tokens, which train induction.

    Attributes:
        share: fraction of rows, at first and after `grow_steps`
        period: minimum and maximum length of a piece in tokens
        grow_steps: steps until the share and the maximum length are reached
        uniform: fraction of pieces drawn uniformly from the vocabulary; of the rest, half are taken
            from the text and half are shuffled pieces of it
    """

    share: Shares = (0.0, 0.0)
    period: Annotated[tuple[int, int], Field(strict=False)] = (4, 128)
    grow_steps: int = Field(0, ge=0)
    uniform: float = Field(0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _period_is_a_range(self) -> RepeatsSection:
        if not 1 <= self.period[0] <= self.period[1]:
            raise rule_error("period is [shortest, longest], both at least 1", "period")
        return self


class ValidationSection(Section):
    """Measurement of the held-out loss.

    Attributes:
        every: steps between measurements; the last step is measured, too
        rows: number of held-out rows, evenly spaced; null or last step: all
    """

    every: PositiveInt = 250
    rows: PositiveInt | None = None


class CheckpointsSection(Section):
    """Saved checkpoints; each is a complete model.

    Attributes:
        at: steps to save; 0 is the network before training
        every: interval of additional steps to save
        log_spaced: number of additional log-spaced steps to save
        dtype: dtype of saved checkpoints
        resume_every: steps between training states for resumption
    """

    at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()
    every: PositiveInt | None = None
    log_spaced: int = Field(0, ge=0, le=1000)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    resume_every: PositiveInt = 100


class Recipe(SettingsFile):
    """Settings of a pretraining run: corpus, vocabulary, network and training.

    Attributes:
        name: name of the run folder
        seed: random seed of initial weights, order of text and dropout

    >>> Recipe.model_validate({
    ...     "name": "tiny", "corpus": {"source": "book.txt"},
    ...     "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64},
    ...     "training": {"steps": 100, "batch": 8},
    ... }).training.betas
    (0.9, 0.95)
    """

    name: FolderName
    seed: Seed = 0
    corpus: CorpusSection
    vocabulary: VocabularySection = VocabularySection()
    model: ShapeSection
    training: TrainingSection
    repeats: RepeatsSection = RepeatsSection()
    validation: ValidationSection = ValidationSection()
    checkpoints: CheckpointsSection = CheckpointsSection()

    @model_validator(mode="after")
    def _is_consistent(self) -> Recipe:
        if any(self.repeats.share) and self.repeats.period[1] > self.model.n_positions // 2:
            raise rule_error(
                f"a row of {self.model.n_positions} tokens must hold the longest piece twice: the "
                f"maximum is {self.model.n_positions // 2}",
                "repeats",
                "period",
            )
        if any(step > self.training.steps for step in self.checkpoints.at):
            raise rule_error(
                f"a checkpoint is after the last step, {self.training.steps}", "checkpoints", "at"
            )
        return self


def learning_rate(step: int, training: TrainingSection) -> float:
    """Return the learning rate of a step, counted from 0.

    It rises linearly during the warm-up, then is constant, and decays over the last `decay_steps`,
    or over all steps after the warm-up if that is None.

    >>> training = TrainingSection(
    ...     steps=100, batch=1, learning_rate=1.0, warm_up=10, decay_steps=50
    ... )
    >>> [round(learning_rate(step, training), 3) for step in (0, 9, 49, 75, 99)]
    [0.1, 1.0, 1.0, 0.55, 0.101]
    """
    # Without warm-up the rise is over at step 0; without decay, `done` is always 0.
    rise = min(1.0, (step + 1) / max(1, training.warm_up))
    after_warm_up = training.steps - training.warm_up
    length = after_warm_up if training.decay_steps is None else training.decay_steps
    # Fraction of the decay that is over.
    done = max(0.0, step - (training.steps - length)) / max(1, length)
    # Remaining fraction between the peak and the final learning rate.
    left = (1 + math.cos(math.pi * done)) / 2 if training.decay == "cosine" else 1 - done
    final = training.final_learning_rate
    return training.learning_rate * rise * (final + (1 - final) * left)


def checkpoint_steps(checkpoints: CheckpointsSection, steps: int) -> tuple[int, ...]:
    """Return the sorted steps after which a checkpoint is saved, including the last step.

    >>> checkpoint_steps(CheckpointsSection(at=(0,), log_spaced=4), 1000)
    (0, 1, 10, 100, 1000)
    >>> checkpoint_steps(CheckpointsSection(every=400), 1000)
    (400, 800, 1000)
    """
    count = checkpoints.log_spaced  # from 1 to `steps`; a single one is step 1
    spaced = (round(steps ** (number / max(1, count - 1))) for number in range(count))
    # Empty if `every` is None: the range begins at its end.
    each = range(checkpoints.every or steps, steps, checkpoints.every or steps)
    return tuple(sorted({*checkpoints.at, *spaced, *each, steps}))


# Settings that may change on resumption; all others must stay equal.
_MAY_CHANGE = {
    "corpus": {"source", "max_megabytes"},  # texts are compared by digest
    "training": {"steps", "decay", "decay_steps"},  # past learning rates are compared
    "validation": {"every", "rows"},
    "checkpoints": {"at", "every", "log_spaced", "resume_every"},
}


def fixed_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that must be equal when a run is resumed, by `section.key`."""
    sections = recipe.model_dump(mode="json")
    # `name` and `seed` belong to no section.
    sections["general"] = {key: sections.pop(key) for key in ("name", "seed")}
    return {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in values.items()
        if key not in _MAY_CHANGE.get(section, ())
    }
