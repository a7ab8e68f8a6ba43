"""The files of models, and those that pretraining is resumed from."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from huggingface_hub import constants

from benchmarks.damage_kinds import Kind
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.report.pages.losses import write_losses
from probekit.terminal import SILENT
from probekit.training.corpus import make_token_file, read_corpus
from probekit.training.loop import Learner, initial_model, load_state, make_optimizers
from probekit.training.run_files import LOG, STATE, read_log, read_progress
from tests.training.recipes import tiny_recipe

MODEL_FILES = ("config.json", "vocab.json", "merges.txt", "model.safetensors")


def model_kinds(folder: Path, model: Path, other: Path) -> Iterator[Kind]:
    """Yield the files of a saved model, a downloaded one, and weights of PyTorch's format."""
    saved = shutil.copytree(model, folder / "saved")
    for name in (*MODEL_FILES, "digests.json"):
        yield Kind(f"saved model: {name}", saved / name, lambda: _model(saved), (other / name,))
    cache = folder / "hub"
    blobs, others = _as_hub(cache, "org/name", model), _as_hub(cache, "org/other", other)
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = str(cache), True
    for name in MODEL_FILES:
        yield Kind(
            f"downloaded model: {name}", blobs[name], lambda: _model("org/name"), (others[name],)
        )
    refs = cache / "models--org--name" / "refs" / "main"
    yield Kind("downloaded model: refs/main", refs, lambda: _model("org/name"))
    pickled = shutil.copytree(model, folder / "pickled")
    weights = pickled / "pytorch_model.bin"
    torch.save(dict(safetensors.torch.load_file(pickled / "model.safetensors")), weights)
    (pickled / "model.safetensors").unlink()
    yield Kind("model of others: pytorch_model.bin", weights, lambda: _model(pickled))


def _model(source: Path | str) -> Any:
    model, tokenizer = GPT2.from_pretrained(source), Tokenizer.from_pretrained(source)
    return model.config, digest_weights(model), tokenizer.digest


def _as_hub(cache: Path, name: str, model: Path) -> dict[str, Path]:
    """Store a model like the hub's client does, and return its blobs by file name."""
    commit = hashlib.sha1(name.encode()).hexdigest()
    root = cache / f"models--{name.replace('/', '--')}"
    snapshot, blobs = root / "snapshots" / commit, root / "blobs"
    for made in (snapshot, blobs, root / "refs"):
        made.mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    found = {}
    for file in MODEL_FILES:
        content = (model / file).read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content)
        sha = git if file.endswith((".json", ".txt")) else hashlib.sha256(content)
        found[file] = blobs / sha.hexdigest()
        found[file].write_bytes(content)
        (snapshot / file).symlink_to(found[file])
    return found


def training_kinds(first: Path, second: Path, corpus: Path) -> Iterator[Kind]:
    """Yield the files that training is resumed from, and those of its figure."""
    recipe = tiny_recipe(corpus)
    texts = read_corpus(corpus, held_out=0.1)
    tokenizer = Tokenizer.from_pretrained(first)

    def resume() -> Any:
        progress = read_progress(first)
        assert progress is not None
        progress.check_recipe(recipe, first)
        model = initial_model(recipe, tokenizer.n_ids)
        learner = Learner(model, make_optimizers(model, recipe.training))
        load_state(first / STATE, learner)
        log = read_log(first / LOG, progress)
        tensors = {name: tensor.tolist() for name, tensor in learner.tensors().items()}
        return progress, repr(log), tensors

    def tokens() -> Any:
        made = make_token_file(texts, tokenizer, first / "tokens", SILENT)
        return made.train.tobytes(), made.held_out.tobytes(), made.digest

    def figure() -> bytes:
        return write_losses(first).read_bytes()

    readers = {
        resume: (STATE, LOG),
        tokens: ("tokens/train.npy", "tokens/held_out.npy", "tokens/origin.json"),
        figure: (LOG, STATE),
        lambda: Tokenizer.from_pretrained(first).digest: (*MODEL_FILES[1:3], "digests.json"),
    }
    for read, names in readers.items():
        for name in names:
            shown = f"{name} for the figure" if read is figure else name
            yield Kind(f"training: {shown}", first / name, read, (second / name,))
