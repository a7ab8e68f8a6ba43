"""Damage to every kind of file that probekit reads back, and what the readers make of it.

    python -m benchmarks.damage [--tries 100] [--only WORD]

Each file is damaged in three ways: one bit is flipped, the end is cut off, or bytes are swapped
(two stretches of the file, or the whole file with another of its kind). The columns count outcomes:

    tried     damaged copies that were read
    noticed   refused with an error of ours, or rejected and written again
    harmless  read, and all that was read is what the undamaged file gives
    accepted  read as something else, or ended in a traceback: a defect

Every file is one of two tiny pretraining runs, a probing run, a cache, or an archive, made in a
temporary folder. The seeds are fixed. The exit code is 1 if anything was accepted, except in a
format that has no checksum.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import hashlib
import lzma
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from huggingface_hub import constants

from probekit.activations.files.local import LocalFiles
from probekit.activations.identity import digest_weights
from probekit.activations.store.store import ActivationStore
from probekit.csv_files import csv_text
from probekit.errors import ProbekitError
from probekit.experiment.loader import load_experiment
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.run import run
from probekit.pipeline.pretrain import pretrain
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.probes.score.measurement import Predictions
from probekit.report.pages.pretraining_page import write_pretraining_report
from probekit.results.finished_run import FinishedRun
from probekit.results.predictions import Predictor
from probekit.results.saved_probes import load_probe
from probekit.results.site_results import SavedSiteResults
from probekit.training.corpus import read_corpus
from probekit.training.first_weights import initial_model
from probekit.training.log import read_verified_log
from probekit.training.loop import Learner
from probekit.training.optimizers import make_optimizers
from probekit.training.progress import LOG, STATE, read_progress
from probekit.training.state import load_state
from probekit.training.token_file import make_token_file
from probekit.watcher import SILENT
from tests.activations.small_store import Content
from tests.damage import cut, flipped, swapped
from tests.pipeline.planted import YAML, write_rows
from tests.training.archives import ARCHIVES, PLAIN_TAR, TEXTS
from tests.training.recipes import tiny_recipe, write_corpus

WAYS = ("flipped", "cut", "swapped")
OUTCOMES = ("tried", "noticed", "harmless", "accepted")


class RefusedError(Exception):
    """A reader that returns nothing for a damaged file, so that it is written again."""


@dataclass
class Kind:
    """A kind of file, and how it is read.

    Attributes:
        name: in the table.
        path: of the file that is damaged.
        read: returns all that is read, as a value to compare.
        others: files of the same kind.
        has_checksum: whether the format has one.
    """

    name: str
    path: Path
    read: Callable[[], Any]
    others: tuple[Path, ...] = ()
    has_checksum: bool = True

    def damaged(self, way: str, tries: int) -> Iterator[bytes]:
        """Yield damaged copies of the content."""
        content = self.path.read_bytes()
        if way == "flipped":
            yield from flipped(content, tries)
        elif way == "cut":
            yield from cut(content, tries)
        else:
            others = [other.read_bytes() for other in self.others]
            different = [other for other in others if other != content][:tries]
            yield from different
            yield from swapped(content, tries - len(different))

    def count(self, way: str, tries: int, undamaged: Any) -> Counter[str]:
        """Return how often each outcome was seen."""
        content = self.path.read_bytes()
        seen: Counter[str] = Counter()
        for number, damaged in enumerate(self.damaged(way, tries)):
            self.path.write_bytes(damaged)
            outcome = self._outcome(content, undamaged)
            seen.update(["tried", outcome])
            if outcome == "accepted" and self.has_checksum:
                print(f"ACCEPTED: {self.name}, {way}, try {number}", file=sys.stderr, flush=True)
            self.path.write_bytes(content)
        return seen

    def _outcome(self, content: bytes, undamaged: Any) -> str:
        try:
            found = self.read()
        except (ProbekitError, RefusedError):
            return "noticed"
        except Exception as error:  # noqa: BLE001  # a traceback is what is counted
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return "accepted"
        if found != undamaged:
            return "accepted"
        return "noticed" if self.path.read_bytes() == content else "harmless"


# The cache.


def cache_kinds(folder: Path) -> Iterator[Kind]:
    """Yield the files of a store of three shards at two sites."""
    content = Content(n_shards=3)
    content.write(LocalFiles(folder / "key"))
    Content(n_shards=2, n_rows=4).write(LocalFiles(folder / "other"))
    store, other = folder / "key", folder / "other"

    def read() -> Any:
        opened = ActivationStore.open(store)
        manifest, plan = opened.manifest(), opened.layout.plan
        rows = {site: opened.read(site).tobytes() for site in content.sites}
        order = [part.tobytes() for part in (plan.example, plan.positions, plan.offsets)]
        return opened.spec, manifest, rows, order

    for name in ("spec.json", "rows.safetensors", "manifest.json"):
        yield Kind(f"cache: {name}", store / name, read, (other / name,))
    for name, pattern in (("shard", "*/0*.safetensors"), ("record", "*/0*.json")):
        paths = sorted(store.glob(pattern))
        yield Kind(f"cache: {name} of a shard", paths[1], read, (*paths, *other.glob(pattern)))


# A probing run.

SITES = ["blocks.0.hook_resid_pre", "blocks.1.hook_resid_post"]


def run_kinds(folder: Path, model: Path) -> Iterator[Kind]:
    """Yield the files of a run, those that a run is resumed from, and a probe by itself."""
    folder.mkdir()
    write_rows(folder / "rows.csv")
    (folder / "planted.yaml").write_text(YAML)
    first, second = (_run(folder, model, seed) for seed in (0, 1))

    def read() -> Any:
        opened = FinishedRun.open(first, load_experiment)
        answers = [_arrays(opened.predictions(site, "last")) for site in SITES]
        tables = [csv_text(table) for table in (opened.table, opened.test_rows)]
        return opened.record, opened.experiment, tables, answers

    names = [name for name in ("run.json", *_files(first)) if "/" not in name]
    for name in names:
        yield Kind(f"run: {name}", first / name, read, (second / name,))
    for name, pattern in _PATTERNS.items():
        paths = sorted(first.glob(pattern))
        yield Kind(f"run: {name}", paths[0], read, (*paths, *second.glob(pattern)))
    yield from _resumed_kinds(first, second)
    yield from _probe_kinds(folder / "alone", first, second)


def _arrays(said: Mapping[Predictor, Predictions]) -> dict[Predictor, dict[str, Any]]:
    """Return the contents of predictions, as values to compare."""
    return {who: {n: _plain(v) for n, v in vars(one).items()} for who, one in said.items()}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


_PATTERNS = {
    "sites/*.json": "sites/blocks*.json",
    "sites/*.safetensors": "sites/blocks*.safetensors",
    "probes/*/*.json": "probes/*/*.json",
    "probes/*/*.safetensors": "probes/*/*.safetensors",
}


def _run(folder: Path, model: Path, seed: int) -> Path:
    settings = (
        f"model.source={model}",
        "model.random_weights=false",
        f"capture.sites={SITES}",
        "probe.kinds=[{kind: logistic}, {kind: k_sparse, k: [2]}]",
        "probe.control_draws=0",
        "probe.baselines=[majority]",
        "probe.C=[0.01]",
        "probe.folds=2",
        "probe.bootstrap=100",
        f"probe.seed={seed}",
    )
    experiment = load_experiment(folder / "planted.yaml", settings)
    return run(experiment, out=folder / "runs", cache_root=folder / "cache", workers=1).folder


def _files(run_dir: Path) -> list[str]:
    return sorted(p.relative_to(run_dir).as_posix() for p in run_dir.rglob("*.*") if _is_result(p))


def _is_result(path: Path) -> bool:
    return path.is_file() and path.name not in ("run.json", "report.html", ".lock")


def _resumed_kinds(first: Path, second: Path) -> Iterator[Kind]:
    """Yield the files of a site as `run` reads them to continue: without run.json."""
    opened = FinishedRun.open(first, load_experiment)
    saved = SavedSiteResults(first, lambda _: opened.truth, len(opened.classes))
    stem = Path("sites") / SITES[0]
    origin = {"run": opened.record.key, "position": "last", "site": SITES[0]}

    def read() -> Any:
        site = saved.read(stem, origin)
        if site is None:
            raise RefusedError
        return repr(site.measurements), _arrays(site.predictions), site.probes, site.files

    for ending in ("json", "safetensors"):
        name = f"{stem}.{ending}"
        others = (first / f"sites/{SITES[1]}.{ending}", second / name)
        yield Kind(f"unfinished run: sites/*.{ending}", first / name, read, others)
    for name in sorted(opened.record.files):
        if name.startswith(f"probes/{SITES[0]}/logistic"):
            others = (first / name.replace(SITES[0], SITES[1]), second / name)
            ending = Path(name).suffix
            yield Kind(f"unfinished run: probes/*/*{ending}", first / name, read, others)


def _probe_kinds(folder: Path, first: Path, second: Path) -> Iterator[Kind]:
    """Yield the two files of a probe that was copied out of its run."""
    shutil.copytree(first / "probes" / SITES[0], folder)

    def read() -> Any:
        probe = SavedProbe.load(folder / "logistic")
        load_probe(folder / "logistic")
        return [part.tobytes() for layer in probe.layers for part in layer], repr(probe.facts)

    for ending in ("json", "safetensors"):
        name = f"logistic.{ending}"
        others = tuple(
            run_dir / "probes" / site / name for run_dir in (first, second) for site in SITES
        )
        yield Kind(f"saved probe: .{ending}", folder / name, read, others)


# Models.

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
    """Store a model like the hub's client, and return its blobs by file name."""
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


# A pretraining run.


def training_kinds(first: Path, second: Path, corpus: Path) -> Iterator[Kind]:
    """Yield the files that training is resumed from, and those of its page."""
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
        log = read_verified_log(first / LOG, progress.step, progress.log)
        tensors = {name: tensor.tolist() for name, tensor in learner.tensors().items()}
        return progress, repr(log), tensors

    def tokens() -> Any:
        made = make_token_file(texts, tokenizer, first / "tokens", SILENT)
        return made.train.tobytes(), made.held_out.tobytes(), made.digest

    def page() -> bytes:
        return write_pretraining_report(first).read_bytes()

    readers = {
        resume: (STATE, LOG),
        tokens: ("tokens/train.npy", "tokens/held_out.npy", "tokens/origin.json"),
        page: ("run.json", "recipe.yaml", LOG, STATE),
        lambda: Tokenizer.from_pretrained(first).digest: (*MODEL_FILES[1:3], "digests.json"),
    }
    for read, names in readers.items():
        for name in names:
            shown = f"{name} for the page" if read is page else name
            yield Kind(f"training: {shown}", first / name, read, (second / name,))


# Corpora.


def corpus_kinds(folder: Path) -> Iterator[Kind]:
    """Yield an archive of each format."""
    text = TEXTS["books/0.txt"].encode()
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    files = {f"book.txt.{ending}": compress(text) for ending, compress in pack.items()}
    folder.mkdir()
    for name, content in (ARCHIVES | files | {"books.tar": PLAIN_TAR}).items():
        path = folder / name
        path.write_bytes(content)
        has_checksum = name != "books.tar"
        yield Kind(f"corpus: {name}", path, partial(read_corpus, path), has_checksum=has_checksum)


# The table.


def all_kinds(folder: Path) -> Iterator[Kind]:
    """Yield every kind of file, made in a folder."""
    corpus = write_corpus(folder / "corpus")
    other = {"seed": 1, "vocabulary__size": 290, "training__warm_up": 1}
    recipes = tiny_recipe(corpus), tiny_recipe(corpus, **other)
    trained = [pretrain(recipe, out=folder / str(n)) for n, recipe in enumerate(recipes)]
    yield from cache_kinds(folder / "cache")
    yield from run_kinds(folder / "probing", trained[0].model)
    yield from model_kinds(folder / "models", trained[0].model, trained[1].model)
    yield from training_kinds(trained[0].folder, trained[1].folder, corpus)
    yield from corpus_kinds(folder / "corpora")


def show(kind: Kind, counts: dict[str, Counter[str]]) -> None:
    """Print the line of a kind of file."""
    cells = "  ".join(" ".join(f"{counts[way][o]:>4}" for o in OUTCOMES) for way in WAYS)
    note = "" if kind.has_checksum else "  no checksum in the format"
    print(f"{kind.name:<44}{cells}{note}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.damage")
    parser.add_argument("--tries", type=int, default=100, help="Damaged copies of a file and way")
    parser.add_argument("--only", default="", help="Part of the names of the files to try")
    options = parser.parse_args()
    print(" " * 44 + "  ".join(f"{way:<19}" for way in WAYS))
    print(f"{'file':<44}" + "  ".join(["tri. not. har. acc."] * len(WAYS)))
    n_accepted = n_tried = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in all_kinds(Path(folder)):
            if options.only in kind.name:
                undamaged = kind.read()
                counts = {way: kind.count(way, options.tries, undamaged) for way in WAYS}
                show(kind, counts)
                total = sum(counts.values(), Counter())
                n_tried += total["tried"]
                n_accepted += total["accepted"] * kind.has_checksum
    print(f"{n_tried:,} tried, {n_accepted} accepted of formats that have a checksum")
    sys.exit(n_accepted > 0)


if __name__ == "__main__":
    main()
