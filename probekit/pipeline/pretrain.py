"""A pretraining run: corpus, vocabulary, tokens, training, figure of the losses."""

from dataclasses import dataclass
from pathlib import Path

import torch

from probekit.accelerators import check_device
from probekit.errors import ConfigError, path_of
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_recipe
from probekit.files import exclusive, sweep_drafts, write_atomic
from probekit.model.config import count_parameters
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.checkpoint import check_of
from probekit.model.weights.hub import find_model
from probekit.model.weights.sources import vocabulary_files
from probekit.progress import recorded_stage, shown_progress
from probekit.provenance import digest, versions
from probekit.report.pages.losses import write_losses
from probekit.results.record import pack_record
from probekit.terminal import Watcher
from probekit.training import run_files
from probekit.training.corpus import corpus_digest, make_token_file, read_corpus, train_vocabulary
from probekit.training.loop import save_checkpoint, train
from probekit.training.recipe import Recipe


@dataclass(frozen=True)
class PretrainResult:
    """Paths and final log row of a pretraining run.

    Attributes:
        folder: folder of the run.
        model: folder of the last checkpoint.
        last: last row of the log.
        log: path of log.csv, with the losses of every step.
        figure: path of losses.html, their figure.
    """

    folder: Path
    model: Path
    last: run_files.LogRow
    log: Path
    figure: Path


def pretrain(
    recipe: Recipe | str | Path,
    *,
    out: str | Path = "runs",
    device: str = "cpu",
    watcher: Watcher | None = None,
    progress: bool = True,
) -> PretrainResult:
    """Train a GPT-2 from a recipe, or resume an interrupted run of the same recipe.

    Writes the vocabulary, the tokens, checkpoints (each a complete model), log.csv, recipe.yaml,
    run.json and losses.html to the folder `out`/NAME.

    Args:
        recipe: a recipe, or the path of its file.
        out: results folder; the run is written to `out`/NAME.
        device: compute device of the model.
        watcher: receives progress and measurements; None shows them in the notebook, on the
            terminal or on stderr.
        progress: False shows no progress, unless a watcher is given.

    Raises:
        ConfigError: the folder contains a run of another recipe, another process is training in it,
            or the device is not available.
        MissingError: the corpus does not exist.
        DataError: a text is not UTF-8, or the corpus is too small.
        CheckpointError: state, log or vocabulary in the folder is damaged.
    """
    check_device(device)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(path_of("recipe", recipe, "Or give a Recipe."))
    folder = Path(out) / recipe.name
    with exclusive(folder, "training"):
        sweep_drafts(folder.rglob(".*"))
        with (
            shown_progress(watcher, progress=progress) as shown,
            recorded_stage(folder, shown) as watched,
        ):
            return _pretrain(recipe, folder, device, watched)


def _pretrain(recipe: Recipe, folder: Path, device: str, watcher: Watcher) -> PretrainResult:
    """Begin or resume the run in a folder that this process has locked; see `pretrain`."""
    before = run_files.read_progress(folder)
    if before is not None:
        before.check_recipe(recipe, folder)
    with recipe.at("corpus"):
        texts = read_corpus(**recipe.corpus.model_dump())
    if before is not None and before.corpus != corpus_digest(texts):
        raise ConfigError(
            f"The corpus differs from the one that the run in {folder} was trained on so far. Use "
            "another `name` or --out, or delete the folder."
        )
    write_atomic(folder / run_files.RECIPE, dump_settings(recipe))
    source = recipe.vocabulary.source
    if source is not None:
        with recipe.at("vocabulary", "source"):
            tokenizer = Tokenizer.from_pretrained(source)
        tokenizer.save_pretrained(folder)
    else:
        if before is None:  # existing files may be those of another recipe
            watcher.tell(f"training a vocabulary of {recipe.vocabulary.size:,} tokens")
            with recipe.at("vocabulary", "size"):
                train_vocabulary([text.train for text in texts], recipe.vocabulary.size, folder)
        tokenizer = Tokenizer.from_pretrained(folder)
    tokens = make_token_file(texts, tokenizer, folder / "tokens", watcher)
    d_vocab = tokenizer.n_ids
    paths = () if source is None else vocabulary_files(find_model(source))
    characters = {"train": sum(len(text.train) for text in texts), "held_out": tokens.n_characters}
    of_source = {"source": None if source is None else str(source)}
    compared = {path.name: check_of(path) for path in paths}
    digests = {"corpus": tokens.corpus, "vocabulary": tokenizer.digest, "tokens": tokens.digest}
    facts = {
        "run": recipe.name,
        "steps": recipe.training.steps,
        "tokens_per_step": recipe.training.batch * recipe.model.n_positions,
        "texts": [text.name for text in texts],
        "tokens": {"train": len(tokens.train), "held_out": len(tokens.held_out)},
        "characters": characters,
        "vocabulary": d_vocab,
        "vocabulary_source": {**of_source, "compared_with": compared},
        "parameters": count_parameters(recipe.model.config(d_vocab)),
        "digests": digests,
        "versions": versions(),
        "files": {run_files.RECIPE: digest([(folder / run_files.RECIPE).read_bytes()])},
    }
    write_atomic(folder / "run.json", pack_record(facts))

    def keep(model: GPT2, step: int) -> None:
        save_checkpoint(folder, model, step, getattr(torch, recipe.checkpoints.dtype), tokenizer)

    train(recipe, tokens, d_vocab, folder, before, save=keep, device=device, watcher=watcher)
    figure, last = write_losses(folder), run_files.read_log(folder / run_files.LOG)[-1]
    model = run_files.checkpoint_folder(folder, last.step)
    return PretrainResult(folder, model, last, log=folder / run_files.LOG, figure=figure)
