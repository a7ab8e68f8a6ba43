"""Speed of capturing, writing and reading activations, compared with common alternatives.

    python -m benchmarks.capture [--quick] [--shape gpt2-xl] [--device cuda] [--dtype bfloat16]

Models have GPT-2's shape and random weights. probekit and the baseline alternate in each round;
times are medians over rounds. Both start from token ids. TransformerLens runs in its own
environment, which `make bench` creates. Its row is skipped without that environment, and the row of
the English Web Treebank if the treebank is not next to the checkout; skipped rows are reported.

`ratio` is the baseline's time divided by ours if the goal is a minimum (>=), and our time divided
by the baseline's if the goal is a maximum (<=).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GPT2Config as TheirConfig
from transformers import GPT2LMHeadModel

from probekit.activations.capture import Work, fill
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.data.words import read_sentences
from probekit.model.families.gpt2 import GPT2, PUBLISHED
from probekit.model.passes.inputs import pad
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.apply import stream_rows
from probekit.products import linear, processor

SHARED = Path(__file__).resolve().parents[2] / "shared"
PEERS = Path(__file__).resolve().parents[1] / ".bench-venv"
READS, ROWS_OF_A_READ = 20, 200

HEADER = f"{'work':41} {'baseline':41} {'ours s':>9} {'theirs s':>9} {'ratio':>7} {'goal':>8}"

Ids = list[np.ndarray[Any, np.dtype[np.int64]]]


@dataclass(frozen=True)
class Row:
    """One line of the table: our work, the baseline, and the goal for the ratio.

    A callable may return its own time in seconds; otherwise it is timed by the caller.
    """

    work: str
    baseline: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    at_least: float | None = None
    at_most: float | None = None

    def line(self, ours: float, theirs: float) -> str:
        """Return the line of the table for these times in seconds."""
        ratio = theirs / ours if self.at_least else ours / theirs
        is_met = ratio >= self.at_least if self.at_least else ratio <= (self.at_most or 0)
        goal = f">= {self.at_least}" if self.at_least else f"<= {self.at_most}"
        verdict = "met" if is_met else "MISSED"
        names = f"{self.work:41} {self.baseline:41}"
        return f"{names} {ours:9.4f} {theirs:9.4f} {ratio:7.2f} {goal:>8} {verdict}"


class Bench:
    """Models of one shape on one device, and the rows of the table that use them."""

    def __init__(self, shape: str, device: str, dtype: str, *, quick: bool) -> None:
        self.shape, self.device, self.dtype, self.quick = shape, device, dtype, quick
        config = PUBLISHED[shape]
        kind = {"device": device, "dtype": getattr(torch, dtype)}
        self.model = GPT2(config, seed=0).to(**kind).requires_grad_(False)
        theirs = TheirConfig(
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.theirs = GPT2LMHeadModel(theirs).to(**kind).eval().requires_grad_(False)
        self.blocks = [f"blocks.{layer}.hook_resid_post" for layer in range(config.n_layer)]
        self.residual = ["blocks.0.hook_resid_pre", *self.blocks]

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the table; each releases its memory before the next."""
        yield from self._small_batch()
        yield from self._all_sites()
        yield from self._to_disk()
        yield from self._sentences()
        yield from self._store()

    def _small_batch(self) -> Iterator[Row]:
        tokens = random_tokens(16, 64)
        ids = torch.from_numpy(np.stack(tokens)).to(self.device)
        x = torch.randn(ids.numel(), self.model.config.n_embd).to(self.model.wte.weight)
        linears = [
            (layer, x.repeat(1, layer.in_features // x.shape[1]))
            for layer in self.model.h.modules()
            if isinstance(layer, nn.Linear)
        ]

        def ours() -> None:
            list(stream_rows(self.model, tokens, last(tokens), self.blocks))

        def hidden_states() -> None:
            self.theirs(ids, output_hidden_states=True, use_cache=False)

        def products() -> None:
            for layer, value in linears:
                linear(value, layer.weight, layer.bias)

        work = f"resid_post of {len(self.blocks)} blocks, last of 16 x 64"
        transformer = self.theirs.transformer
        without_capture = "transformers' GPT2Model, nothing captured"
        yield Row(work, without_capture, ours, lambda: transformer(ids, use_cache=False), 1.2)
        yield Row(work, "GPT2LMHeadModel, output_hidden_states", ours, hidden_states, 2.0)
        if (PEERS / "installed").exists():
            with Peer(self.shape, self.device, self.dtype, 16, 64) as peer:
                yield Row(work, "TransformerLens run_with_cache", ours, peer.run, 1.5)
        else:
            print(f"{work:41} TransformerLens: skipped, {PEERS.name} does not exist")
        yield Row(work, "the matrix products alone", ours, products, 0.93)

    def _all_sites(self) -> Iterator[Row]:
        for n_sequences, n_tokens in ((16, 64), (4, 512)):
            ids = torch.from_numpy(np.stack(random_tokens(n_sequences, n_tokens)))
            n = 4 + 17 * self.model.config.n_layer
            yield Row(
                f"all {n} sites, {n_sequences} x {n_tokens}, in memory",
                "our forward with logits, nothing captured",
                lambda ids=ids: self.model.run_with_cache(ids),
                lambda ids=ids: self.model(ids),
                at_most=1.6,
            )

    def _to_disk(self) -> Iterator[Row]:
        tokens = random_tokens(64 if self.quick else 512, 64)
        budget = 2048 if self.device == "cpu" else 16384
        parts = [torch.from_numpy(np.stack(part)) for part in _in_parts(tokens, budget // 64)]

        def forward() -> None:
            for ids in parts:
                self.model(ids, tap=lambda _, value: value, sites=self.blocks[-1:], logits=False)

        yield Row(
            f"{len(self.residual)} sites, last of {len(tokens)} x 64, on disk",
            "our blocks, nothing captured",
            lambda: self._capture(tokens),
            forward,
            0.8,
        )

    def _sentences(self) -> Iterator[Row]:
        folder = SHARED / "datasets" / "ud_english_ewt"
        if not folder.is_dir():
            print("sentences of English EWT: skipped, ../shared has no ud_english_ewt")
            return
        tokenizer = Tokenizer.from_pretrained(SHARED / "tokenizer" / "gpt2")
        texts = [s.comments["text"] for s in read_sentences(folder / "test.conllu")]
        tokens = [tokenizer.encode(text, bos=False).ids for text in texts]
        tokens = tokens[::8] if self.quick else tokens
        yield Row(
            f"{len(tokens)} sentences, {len(self.residual)} sites, on disk",
            "LMHeadModel, 32 at once, torch.save",
            lambda: self._capture(tokens),
            lambda: self._usual_recipe(tokens),
            4.5,
        )

    def _captured(self, tokens: Ids, root: Path) -> ActivationStore:
        plan = last(tokens)
        work = Work.begin(self.model, "", tokens, plan, self.residual, root=root, dtype="float32")
        return fill(work, root).store

    def _capture(self, tokens: Ids) -> float:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            start = time.perf_counter()
            self._captured(tokens, Path(folder))
            return time.perf_counter() - start

    def _usual_recipe(self, tokens: Ids) -> float:
        batches: list[list[Tensor]] = []
        with tempfile.TemporaryDirectory(dir=".") as folder:
            start = time.perf_counter()
            for part in _in_parts(tokens, 32):
                ids, mask = (x.to(self.device) for x in pad(part, "right"))
                out = self.theirs(
                    ids.clamp(min=0), attention_mask=mask.long(), output_hidden_states=True
                )
                at = mask.sum(1) - 1
                batches.append([h[range(len(ids)), at].cpu() for h in out.hidden_states])
            sites = [torch.cat(values) for values in zip(*batches, strict=True)]
            torch.save(sites, Path(folder) / "rows.pt")
            return time.perf_counter() - start

    def _store(self) -> Iterator[Row]:
        n_rows = 512 if self.quick else 4096
        tokens = [np.array([n % 50257, n // 50257]) for n in range(n_rows)]
        with tempfile.TemporaryDirectory(dir=".") as name:
            folder = Path(name)
            captured = self._captured(tokens, folder / "read")
            yield self._reading(captured, folder / "plain.bin")
            yield self._writing(captured, folder)

    def _reading(self, store: ActivationStore, path: Path) -> Row:
        site = self.residual[6]
        values = store.read(site)
        values.tofile(path)
        plain = np.memmap(path, values.dtype, "r", shape=values.shape)
        rng = np.random.default_rng(0)
        reads = [rng.permutation(len(plain))[:ROWS_OF_A_READ] for _ in range(READS)]
        return Row(
            f"{READS} x {ROWS_OF_A_READ} shuffled rows of one site",
            "numpy.memmap of one plain file",
            lambda: [store.read(site, rows) for rows in reads],
            lambda: [np.array(plain[rows]) for rows in reads],
            at_most=2.0,
        )

    def _writing(self, store: ActivationStore, folder: Path) -> Row:
        arrays = {site: store.read(site, np.concatenate(store.shards)) for site in self.residual}
        plan = last([np.zeros(1, np.int64)] * store.n_rows)
        starts = store.layout.first
        number = iter(range(10**6))

        def ours() -> float:
            root = folder / f"write{next(number)}"
            start = time.perf_counter()
            new = ActivationStore.create(root, store.identity, plan, store.shards)
            for shard in range(len(store.shards)):  # all sites at once, as a capture does
                with new.writing(self.residual, shard) as writers:
                    for site, rows in arrays.items():
                        writers[site].append(rows[starts[shard] : starts[shard + 1]])
            new.seal()
            return time.perf_counter() - start

        def plain() -> float:
            start = time.perf_counter()
            with (folder / f"plain{next(number)}").open("wb") as file:
                for rows in arrays.values():
                    file.write(rows.data)
                file.flush()
                os.fsync(file.fileno())
            return time.perf_counter() - start

        size = sum(rows.nbytes for rows in arrays.values()) / 1e6
        return Row(f"writing {size:.0f} MB of rows", "one plain file with fsync", ours, plain, 0.7)


class Peer:
    """TransformerLens in a separate process and environment, which runs on request."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [PEERS / "bin" / "python", "-m", "benchmarks.peers", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        )

    def __enter__(self) -> Peer:
        while self._answer() != "ready":
            pass  # skip the output of its imports
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("benchmarks.peers stopped; see its error message above")
        return line.strip()

    def run(self) -> float:
        """Return the duration of one run in the other process, in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._answer())


def last(tokens: Ids) -> RowPlan:
    """Return the row plan of the last token of each sequence."""
    n = len(tokens)
    return RowPlan(np.arange(n), np.array([len(ids) - 1 for ids in tokens]), np.arange(n + 1))


def random_tokens(n_sequences: int, n_tokens: int) -> Ids:
    """Return sequences of random tokens, all of one length."""
    return list(np.random.default_rng(0).integers(0, 50257, size=(n_sequences, n_tokens)))


def _in_parts(tokens: Ids, size: int) -> list[Ids]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the duration of a call in seconds, including pending work on the device."""
    start = time.perf_counter()
    result = work()
    if not device.startswith("cpu"):
        torch.accelerator.synchronize()
    return result if isinstance(result, float) else time.perf_counter() - start


def medians(row: Row, rounds: int, device: str) -> Sequence[float]:
    """Return our median seconds and the baseline's, run alternately after a warm-up round."""
    times = [[seconds(work, device) for work in (row.ours, row.theirs)] for _ in range(rounds + 1)]
    return [median(column) for column in zip(*times[1:], strict=True)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=["gpt2", "gpt2-xl"], default="gpt2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--only", default="", help="run only rows whose names contain this text")
    parser.add_argument("--quick", action="store_true", help="use fewer rounds, sentences and rows")
    options = parser.parse_args()
    rounds = 3 if options.quick else 5
    threads = torch.get_num_threads()
    kind = f"{options.shape}, {options.device}, {options.dtype}"
    print(f"{kind}, {processor()}, {threads} threads, medians of {rounds} rounds")
    print(HEADER)
    bench = Bench(options.shape, options.device, options.dtype, quick=options.quick)
    with torch.inference_mode():
        for row in bench.rows():
            if options.only in f"{row.work} {row.baseline}":
                print(row.line(*medians(row, rounds, options.device)), flush=True)


if __name__ == "__main__":
    main()
