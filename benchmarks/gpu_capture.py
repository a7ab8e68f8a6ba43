"""Speed of capturing on one device, compared with forward passes of other libraries.

    python -m benchmarks.gpu_capture [--device cuda] [--small]

A network of GPT-2's shape with random weights captures all its residual streams at every token to
disk. It is compared with a forward pass of transformers in the same dtype, whose hidden states are
computed and discarded, and with `run_with_cache` of TransformerLens if it can be imported. Each
line is the median of several rounds, in which the libraries alternate. The last line compares the
bytes written per second with those of one plain file with fsync.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import GPT2Config as TheirConfig
from transformers import GPT2LMHeadModel

from probekit.activations.capture import Work, fill
from probekit.activations.records import batch_tokens
from probekit.data.positions import RowPlan
from probekit.experiment.model import dtype_on
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.table import in_float32, random_network
from probekit.model.network import Network

ROUNDS, N_CTX = 5, 512


def every_token(n_sequences: int) -> RowPlan:
    """Return the row plan of every token of sequences that fill the context."""
    n = n_sequences * N_CTX
    return RowPlan(np.arange(n) // N_CTX, np.arange(n) % N_CTX, np.arange(n + 1))


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the duration of a call in seconds, including pending work on the device."""
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def transformer_lens(config: GPT2Config, device: str, dtype: torch.dtype) -> torch.nn.Module:
    """Return a network of TransformerLens with this shape and random weights."""
    lens = importlib.import_module("transformer_lens")
    sizes = lens.HookedTransformerConfig(
        n_layers=config.n_layer, d_model=config.n_embd, n_ctx=N_CTX, n_heads=config.n_head,
        d_head=config.n_embd // config.n_head, d_vocab=config.vocab_size, act_fn="gelu_new",
        device=device, dtype=dtype,
    )  # fmt: skip
    model: torch.nn.Module = lens.HookedTransformer(sizes)
    return model


def captured(
    model: Network, tokens: list[np.ndarray], sites: list[str], exact: bool
) -> tuple[float, int]:
    """Return the duration of a capture in seconds and the bytes that it wrote."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder, start = Path(name), time.perf_counter()
        reference = (lambda: in_float32(model)) if exact else None
        plan, disk = every_token(len(tokens)), str(model.dtype).removeprefix("torch.")
        work = Work.begin(model, "", tokens, plan, sites, root=folder, dtype=disk, exact=reference)
        fill(work, folder)
        duration = time.perf_counter() - start
        return duration, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plain_write(n_bytes: int) -> float:
    """Return the seconds that one plain file of this size takes, with fsync."""
    block = np.random.default_rng(0).bytes(1 << 24)
    with tempfile.NamedTemporaryFile(dir=".") as file:
        start = time.perf_counter()
        for _ in range(max(1, n_bytes >> 24)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return (time.perf_counter() - start) * n_bytes / (max(1, n_bytes >> 24) << 24)


@torch.inference_mode()
def main(device: str = "cuda", *, small: bool = False) -> None:
    """Print the table for a device; small sizes take seconds on a CPU."""
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 128} if small else {}
    config = GPT2Config(n_positions=N_CTX, **sizes)
    dtype, rounds = getattr(torch, dtype_on(device)), 2 if small else ROUNDS
    at_once = batch_tokens(device) // N_CTX
    n_sequences = at_once * (2 if small else 32)
    tokens = list(np.random.default_rng(0).integers(0, config.vocab_size, (n_sequences, N_CTX)))
    batches = torch.from_numpy(np.stack(tokens)).split(at_once)
    sites = ["blocks.0.hook_resid_pre"]
    sites += [f"blocks.{layer}.hook_resid_post" for layer in range(config.n_layer)]

    model = random_network(config, 0, dtype, device).requires_grad_(False)
    their_sizes = TheirConfig(
        n_positions=N_CTX, n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd
    )
    theirs = GPT2LMHeadModel(their_sizes).to(device=device, dtype=dtype).eval()

    def hidden_states() -> None:
        for ids in batches:
            theirs.transformer(ids.to(device), output_hidden_states=True, use_cache=False)

    others: dict[str, Callable[[], None]] = {"transformers, discarded": hidden_states}
    if importlib.util.find_spec("transformer_lens") is not None:
        lens = transformer_lens(config, device, dtype)

        def run_with_cache() -> None:
            for ids in batches:
                lens.run_with_cache(ids.to(device), names_filter=set(sites).__contains__)

        others["TransformerLens, discarded"] = run_with_cache
    else:
        print("TransformerLens: skipped, it is not installed")
    is_half, times, written = dtype == torch.bfloat16, [], 0
    for _ in range(rounds + 1):  # the first is a warm-up
        duration, written = captured(model, tokens, sites, exact=False)
        with_errors = captured(model, tokens, sites, exact=True)[0] if is_half else duration
        of_others = [seconds(work, device) for work in others.values()]
        times.append([duration, with_errors, *of_others, plain_write(written)])
    ours, measured, *of_others, plain = (median(column) for column in zip(*times[1:], strict=True))
    n_tokens = n_sequences * N_CTX
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    print(f"{name}, {dtype}, {config.n_layer} layers of {config.n_embd}, {n_tokens:,} tokens")
    print(f"{'work':42} {'tokens/s':>10} {'ratio':>6}")
    print(f"{f'probekit, {len(sites)} sites to disk':42} {n_tokens / ours:10,.0f} {1:6.2f}")
    if is_half:
        line = "probekit, with the errors of bfloat16"
        print(f"{line:42} {n_tokens / measured:10,.0f} {ours / measured:6.2f}")
    for line, theirs_s in zip(others, of_others, strict=True):
        print(f"{line:42} {n_tokens / theirs_s:10,.0f} {ours / theirs_s:6.2f}")
    rates = f"{written / ours / 1e6:,.0f} MB/s, one plain file {written / plain / 1e6:,.0f} MB/s"
    print(f"to disk: {rates}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="device of all networks")
    parser.add_argument("--small", action="store_true", help="a small network and few tokens")
    options = parser.parse_args()
    main(options.device, small=options.small)
