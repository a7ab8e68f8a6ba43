"""Damage to every kind of file that probekit reads back, and what the readers make of it.

    python -m benchmarks.damage [--tries 100] [--only WORD]

Each file is damaged in three ways: one bit is flipped, the end is cut off, or bytes are swapped
(two stretches of the file, or the whole file with another of its kind). The columns count outcomes:

    tried     damaged copies that were read
    noticed   refused with an error of ours, or rejected and written again
    harmless  read, and all that was read is what the undamaged file gives
    accepted  read as something else, or ended in a traceback: a defect

Every file is one of two tiny pretraining runs, a probing run, a cache, or a compressed text, made
in a temporary folder. The seeds are fixed. The exit code is 1 if anything was accepted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.damage_kinds import OUTCOMES, WAYS, Kind
from benchmarks.damage_models import model_kinds, training_kinds
from benchmarks.damage_runs import run_kinds
from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.pipeline.pretrain import pretrain
from probekit.training.corpus import read_corpus
from tests.activations.small_store import Content
from tests.training.recipes import COMPRESS, sentences, tiny_recipe, write_corpus


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


# Corpora.


def corpus_kinds(folder: Path) -> Iterator[Kind]:
    """Yield a compressed text of each format."""
    folder.mkdir()
    for ending, compress in COMPRESS.items():
        path = folder / f"book.txt.{ending}"
        path.write_bytes(compress(sentences(1, 400).encode()))
        yield Kind(f"corpus: {path.name}", path, partial(read_corpus, path))


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
    print(f"{kind.name:<44}{cells}", flush=True)


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
                n_accepted += total["accepted"]
    print(f"{n_tried:,} tried, {n_accepted} accepted of formats that have a checksum")
    sys.exit(n_accepted > 0)


if __name__ == "__main__":
    main()
