"""Small captures, for the tests of this folder."""

import numpy as np

from probekit.data.positions import RowPlan
from probekit.terminal import SILENT

# Requesting the norms or the results of single heads must not change a bit of other sites.
SITES = (
    "blocks.0.hook_resid_pre",
    "blocks.0.ln1.hook_normalized",
    "blocks.1.attn.hook_result",
    "blocks.2.attn.hook_z",
    "blocks.3.hook_resid_post",
)


def make_tokens(n=60, seed=0):
    """Ragged sequences, some of them repeated."""
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(0, 97, size=generator.integers(1, 20)) for _ in range(n)]
    return [*tokens, tokens[3], tokens[0]]


def last_token(tokens):
    """One row for every example."""
    n = len(tokens)
    return RowPlan(np.arange(n), np.array([len(ids) - 1 for ids in tokens]), np.arange(n + 1))


def last_and_mean(tokens):
    """Two rows for every example: its last token, and the mean of all."""
    positions, sizes = [], []
    for ids in tokens:
        positions += [len(ids) - 1, *range(len(ids))]
        sizes += [1, len(ids)]
    return RowPlan(
        example=np.repeat(np.arange(len(tokens)), 2),
        positions=np.array(positions),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
    )


def capture(model, tokenizer, tokens, plan, sites, *, root, dtype="float32", watcher=SILENT):
    """Capture rows in this process, as an experiment does."""
    from probekit.activations.capture import Work, fill  # torch, which some processes do without

    work = Work.begin(model, tokenizer, tokens, plan, sites, root=root, dtype=dtype)
    return fill(work, root, watcher=watcher)


def run(root, model, tokens=None, sites=SITES, dtype="float32", tokenizer="t"):
    tokens = make_tokens() if tokens is None else tokens
    return capture(model, tokenizer, tokens, last_and_mean(tokens), sites, root=root, dtype=dtype)


def files(folder):
    """Return all bytes that a reader may see."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def shard_file(folder, site, shard):
    """Return the row file of a shard; its name contains its digest."""
    [path] = (folder / site).glob(f"{shard:05d}.*.safetensors")
    return path


def record_file(folder, site, shard):
    """The record of a shard."""
    return folder / site / f"{shard:05d}.json"


def flip_last_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
