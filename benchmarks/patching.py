"""Activation patching compared with TransformerLens: the same weights, texts and patches.

    python -m benchmarks.patching            # the shape of gpt2, random weights
    python -m benchmarks.patching --quick    # a small shape in float64: agreement only

The work is one patch for each layer and position of the residual stream, and one for each head, on
32 pairs of 16 tokens. The goal is 4 times their speed. TransformerLens runs in .bench-venv
(`make bench` builds it); without it, only our times are printed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from probekit.interventions.edits import run_edited, zero
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching import estimated_effects, patch
from probekit.model.families.gpt2 import GPT2, PUBLISHED, GPT2Config
from probekit.model.passes.inputs import TokenBatch

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".bench-venv" / "bin" / "python"
SMALL = GPT2Config(n_layer=3, n_head=4, n_embd=64, n_inner=96, vocab_size=301, n_positions=16)
HEADS = "blocks.*.attn.hook_z[head=*]"
GOAL, TOLERANCE = 4.0, 1e-5


class Work:
    """Random weights and pairs of random texts."""

    def __init__(self, quick: bool, n_pairs: int = 32, n_tokens: int = 16) -> None:
        config = SMALL if quick else PUBLISHED["gpt2"]
        dtype = torch.float64 if quick else torch.float32
        self.model = GPT2(config, seed=0).to(dtype).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.model.parameters():
            # Gains and biases that are not 1 and 0, too.
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(dtype))
        n = n_pairs // 4 if quick else n_pairs
        shape = n, min(n_tokens, config.n_positions)
        self.clean, self.corrupt = (
            torch.randint(config.vocab_size, shape, generator=generator) for _ in "ab"
        )
        self.answer, self.wrong = torch.randint(config.vocab_size, (2, n), generator=generator)

    def save(self, folder: Path) -> None:
        """Write weights and texts for the other environment."""
        state = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        save_file(state, folder / "weights.safetensors")
        names = ("clean", "corrupt", "answer", "wrong")
        sizes = {name: self.model.axis_sizes[name] for name in
                 ("n_layers", "n_heads", "d_model", "d_mlp")}  # fmt: skip
        np.savez(folder / "work.npz", **{name: getattr(self, name).numpy() for name in names},
                 **sizes, threads=torch.get_num_threads())  # fmt: skip

    @property
    def batches(self) -> tuple[TokenBatch, TokenBatch]:
        """The texts without padding."""
        offsets = torch.zeros(*self.clean.shape, 2)
        mask = torch.ones_like(self.clean, dtype=torch.bool)
        return TokenBatch(self.clean, mask, offsets), TokenBatch(self.corrupt, mask, offsets)

    def patched(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the mean logit difference after each patch."""
        measure = AnswerMeasure(self.answer, self.wrong)
        stream = patch(self.model, *self.batches, measure, "blocks.*.hook_resid_pre", at="each")
        heads = patch(self.model, *self.batches, measure, HEADS)
        n_layers = self.model.axis_sizes["n_layers"]
        return {
            "resid_pre": np.array([row.patched for row in stream]).reshape(n_layers, -1),
            "heads": np.array([row.patched for row in heads]).reshape(n_layers, -1),
        }

    def extras(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return zero ablations of every head, and estimates by gradients."""
        sizes, rows = self.model.axis_sizes, torch.arange(len(self.clean))
        ablated = []
        for layer in range(sizes["n_layers"]):
            for head in range(sizes["n_heads"]):
                where = f"blocks.{layer}.attn.hook_z[head={head}]"
                logits = run_edited(self.model, self.batches[0], [(where, zero())])[:, -1]
                ablated.append(float((logits[rows, self.answer] - logits[rows, self.wrong]).mean()))
        estimates = estimated_effects(
            self.model, *self.batches, AnswerMeasure(self.answer, self.wrong),
            "blocks.*.hook_resid_pre", at="each",
        )  # fmt: skip
        return {"ablated": np.array(ablated), "estimates": np.stack(list(estimates.values()))}


def main() -> None:
    """Print times and agreement."""
    parser = argparse.ArgumentParser(description="Activation patching in two libraries.")
    parser.add_argument("--quick", action="store_true", help="small shape in float64")
    parser.add_argument("--pairs", type=int, default=32, help="number of pairs")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each; the fastest counts")
    chosen = parser.parse_args()
    work = Work(chosen.quick, chosen.pairs)
    with tempfile.TemporaryDirectory() as folder:
        work.save(Path(folder))
        peer = _started(Path(folder)) if PEER.exists() else None
        ours, theirs = [], []
        for _ in range(chosen.repeats):
            start = time.perf_counter()
            found = work.patched()
            ours.append(time.perf_counter() - start)
            if peer is not None:
                theirs.append(_answer(peer))
        n = sum(len(np.ravel(grid)) for grid in found.values())
        print(f"{n} patches of {len(work.clean)} pairs of {work.clean.shape[1]} tokens")
        print(f"probekit          {min(ours):8.2f} s")
        if peer is None:
            print("TransformerLens is not installed in .bench-venv; `make bench` installs it.")
            return
        assert peer.stdin is not None  # a pipe
        peer.stdin.close()
        peer.wait()
        print(f"TransformerLens   {min(theirs):8.2f} s")
        ratio = min(theirs) / min(ours)
        print(f"ratio {ratio:.2f}, goal {GOAL}: {'met' if ratio >= GOAL else 'MISSED'}")
        _compare(work, found, dict(np.load(Path(folder) / "theirs.npz")), chosen.quick)


def _started(folder: Path) -> subprocess.Popen[str]:
    command = [str(PEER), "-m", "benchmarks.patching_peer", str(folder)]
    peer = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while _line(peer) != "ready":
        pass
    return peer


def _answer(peer: subprocess.Popen[str]) -> float:
    assert peer.stdin is not None
    peer.stdin.write("\n")
    peer.stdin.flush()
    while True:
        try:
            return float(_line(peer))
        except ValueError:
            continue  # progress of other libraries


def _line(peer: subprocess.Popen[str]) -> str:
    assert peer.stdout is not None
    line = peer.stdout.readline()
    if not line:
        raise SystemExit("TransformerLens ended without a result; see its error above.")
    return line.strip()


def _compare(
    work: Work,
    ours: dict[str, np.ndarray[Any, Any]],
    theirs: dict[str, np.ndarray[Any, Any]],
    is_exact: bool,
) -> None:
    """Print the largest difference of each grid, relative to its largest value."""
    pairs = {name: (ours[name], theirs[name]) for name in ours}
    if is_exact:
        extras = work.extras()
        sites = [("resid_pre", layer) for layer in range(work.model.axis_sizes["n_layers"])]
        source, base = (
            work.model.run_with_cache(ids, sites)[1].stack("blocks.*.hook_resid_pre")
            for ids in (work.corrupt, work.clean)
        )
        estimates = (torch.from_numpy(theirs["gradients"]) * (source - base)).sum(-1)
        pairs["zero ablations"] = extras["ablated"], theirs["ablated"]
        pairs["gradients"] = extras["estimates"], estimates.transpose(1, 2).flatten(0, 1).numpy()
    for name, (own, other) in pairs.items():
        error = float(np.abs(own - other).max() / np.abs(other).max())
        verdict = "met" if error <= TOLERANCE else "MISSED"
        print(f"{name:15} largest relative difference {error:.1e}, goal {TOLERANCE}: {verdict}")


if __name__ == "__main__":
    main()
