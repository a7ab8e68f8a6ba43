"""A pretraining run from a recipe to a page: texts, vocabulary, tokens, training, report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_recipe
from probekit.model.gpt2 import GPT2
from probekit.model.parameters import count_parameters
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import find_model
from probekit.pipeline.capture.devices import check_device
from probekit.provenance import pretty_json, versions, write_atomic
from probekit.report.pages.pretraining_page import write_pretraining_report
from probekit.training.corpus import Text, corpus_digest, read_corpus
from probekit.training.keeping import keep_checkpoint
from probekit.training.kept import checkpoint_folder
from probekit.training.log import LogRow, read_log
from probekit.training.loop import LOG, STATE, train
from probekit.training.recipe import Recipe
from probekit.training.schedule import learning_rate
from probekit.training.token_file import TokenFile, make_token_file
from probekit.training.vocabulary import copy_vocabulary, train_vocabulary
from probekit.watcher import SILENT, Watcher

# What may change when a run goes on; the rest of a recipe is what its numbers are the numbers of.
_MAY_CHANGE = {
    "training": {"steps", "decay", "decay_steps"},
    "validation": {"every", "rows"},
    "checkpoints": {"at", "every", "log_spaced", "resume_every"},
}
LOCK = ".lock"


@dataclass(frozen=True)
class PretrainResult:
    """What a pretraining run left.

    Attributes:
        folder: of the run.
        model: folder of the last checkpoint.
        last: the last row of the log.
        report: the page of the run.
    """

    folder: Path
    model: Path
    last: LogRow
    report: Path


def pretrain(
    recipe: Recipe | str | Path,
    *,
    out: str | Path = "runs",
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> PretrainResult:
    """Train a GPT-2 as the recipe says, or go on where a run of the same recipe stopped.

    The folder `out`/NAME gets the vocabulary, the tokens, checkpoints (each a model by itself),
    log.csv, recipe.yaml, run.json and report.html.

    Args:
        recipe: a recipe, or the path of its file.
        out: folder that gets the folder of the run.
        device: where the model computes.
        watcher: hears of progress and measurements.

    Raises:
        ConfigError: the folder holds a run of another recipe, or another process is training there;
            or the device is not there.
        MissingError: the corpus is not there.
        DataError: a text is not UTF-8, or there is too little text.
        CheckpointError: the state in the folder is damaged.
    """
    check_device(device)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    folder = Path(out) / recipe.name
    with _alone(folder):
        return _pretrain(recipe, folder, device, watcher)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from training in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        raise ConfigError(f"Another process is training in {folder}.") from error


def _pretrain(recipe: Recipe, folder: Path, device: str, watcher: Watcher) -> PretrainResult:
    _check_same(folder, recipe)
    with recipe.at("corpus"):
        texts = read_corpus(**recipe.corpus.model_dump())
    _check_texts(folder, texts)
    write_atomic(folder / "recipe.yaml", dump_settings(recipe))
    tokenizer = _find_vocabulary(recipe, texts, folder, watcher)
    tokens = make_token_file(texts, tokenizer, folder / "tokens", watcher)
    d_vocab = tokenizer.n_ids
    _write_facts(folder, recipe, texts, tokenizer, tokens)
    dtype = getattr(torch, recipe.checkpoints.dtype)

    def keep(model: GPT2, step: int) -> None:
        keep_checkpoint(folder, model, step, dtype, tokenizer.bos_id)

    train(recipe, tokens, d_vocab, folder, keep, device=device, watcher=watcher)
    last = read_log(folder / LOG)[-1]
    report = write_pretraining_report(folder)
    return PretrainResult(folder, checkpoint_folder(folder, last.step), last, report)


def _check_same(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on under another recipe than the run in the folder has."""
    path = folder / "recipe.yaml"
    if not (folder / STATE).is_file() or not path.is_file():
        return
    before = load_recipe(path)
    differing = [
        f"{section}.{key} was {old!r}, is {new!r}"
        for section, key, old, new in _differences(before, recipe)
        if key not in _MAY_CHANGE.get(section, ())
    ]
    if differing:
        raise ConfigError(
            f"{folder} holds a run of another recipe: {'; '.join(differing)}. Give another `name` "
            "or --out, or delete the folder."
        )
    done = len(read_log(folder / LOG))
    if done > recipe.training.steps:
        raise ConfigError(
            f"{folder} has {done:,} steps already, more than training.steps, "
            f"{recipe.training.steps:,}."
        )
    rates = [[learning_rate(n, r.training) for n in range(done)] for r in (before, recipe)]
    changed = [n for n, (old, new) in enumerate(zip(*rates, strict=True)) if old != new]
    if changed:
        raise ConfigError(
            f"{folder}: training.steps, decay and decay_steps would give step {changed[0] + 1:,} "
            f"another learning rate than it was done with ({done:,} steps are done). Set them such "
            "that the decay begins later, or begin a new run."
        )


def _differences(old: Recipe, new: Recipe) -> list[tuple[str, str, Any, Any]]:
    """Return section, key and both values of what differs; the folder of the texts may move."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for values in (before, after):
        values["corpus"].pop("source")
        values["general"] = {key: values.pop(key) for key in ("name", "seed")}
    return [
        (section, key, before[section][key], value)
        for section, values in after.items()
        for key, value in values.items()
        if before[section][key] != value
    ]


def _check_texts(folder: Path, texts: tuple[Text, ...]) -> None:
    """Refuse to go on with other texts than the run began with."""
    origin = folder / "tokens" / "origin.json"
    has_begun = (folder / STATE).is_file() and origin.is_file()
    if has_begun and corpus_digest(texts) not in origin.read_text("utf-8"):
        raise ConfigError(
            f"The texts are not those that the run in {folder} has learnt so far. Give another "
            "`name` or --out, or delete the folder."
        )


def _find_vocabulary(
    recipe: Recipe, texts: tuple[Text, ...], folder: Path, watcher: Watcher
) -> Tokenizer:
    """Return the tokenizer, whose files lie in the folder of the run."""
    source = recipe.vocabulary.source
    if source is not None:
        with recipe.at("vocabulary", "source"):
            tokenizer = Tokenizer.from_pretrained(source)
        copy_vocabulary(find_model(source), folder)
        return tokenizer
    if not (folder / STATE).is_file():  # what lies there may be of another recipe
        watcher.tell(f"training a vocabulary of {recipe.vocabulary.size:,} tokens")
        with recipe.at("vocabulary", "size"):
            train_vocabulary([text.train for text in texts], recipe.vocabulary.size, folder)
    return Tokenizer.from_pretrained(folder)


def _write_facts(
    folder: Path, recipe: Recipe, texts: tuple[Text, ...], tokenizer: Tokenizer, tokens: TokenFile
) -> None:
    """Write run.json: what the numbers came from."""
    facts = {
        "run": recipe.name,
        "steps": recipe.training.steps,
        "tokens_per_step": recipe.training.batch * recipe.model.n_positions,
        "texts": [text.name for text in texts],
        "tokens": {"train": len(tokens.train), "held_out": len(tokens.held_out)},
        "characters": {
            "train": sum(len(text.train) for text in texts),
            "held_out": tokens.n_characters,
        },
        "vocabulary": tokenizer.n_ids,
        "parameters": count_parameters(recipe.model.config(tokenizer.n_ids)),
        "digests": {
            "corpus": tokens.corpus,
            "vocabulary": tokenizer.digest,
            "tokens": tokens.digest,
        },
        "versions": versions(),
    }
    write_atomic(folder / "run.json", pretty_json(facts))
