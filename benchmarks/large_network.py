"""A capture of a network that is larger than the memory that it may use.

    python -m benchmarks.large_network [--gigabytes 12 --limit 6 --alone]

A Llama with random weights in float32 is written to a temporary folder. A process whose private
memory the system limits (RLIMIT_DATA) captures it, is killed in its second shard, and another one
resumes. Then a process without a limit captures the same rows with all weights in memory (unless
`--alone` is given), and the files of both caches are compared. "peak" is the largest resident
memory of a process, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from probekit.activations import records
from probekit.experiment.loader import load_experiment
from probekit.model.families.llama import Llama, LlamaConfig
from probekit.model.weights.files import ArrayHeader, header
from probekit.pipeline.capture.captures import capture_only
from tests.activations.captures import files
from tests.model.text.test_hub_tokenizer import byte_level

N_SHARDS, TOKENS_OF_SHARD, TOKENS_OF_BATCH = 3, 256, 64
GB = 10**9
EXPERIMENT = """
name: large
model: {source: model, random_weights: false}
data: {name: words, format: csv, file: words.csv}
tokens: {bos: false, position: {at: all}}
capture: {sites: [hook_embed, blocks.*.hook_resid_post, ln_final.hook_normalized]}
"""


def write_network(folder: Path, n_bytes: float) -> int:
    """Write a Llama of about `n_bytes`, one weight at a time; return its size in bytes."""
    width, d_mlp = (4096, 11008) if n_bytes > 2 * GB else (1024, 2816)
    of_block, outside = 4 * (4 * width**2 + 3 * width * d_mlp), 4 * 2 * 32_000 * width
    n_layers = max(2, round((n_bytes - outside) / of_block))
    config = LlamaConfig(
        hidden_size=width, intermediate_size=d_mlp, num_hidden_layers=n_layers,
        num_attention_heads=width // 128,
    )  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_hub()))
    encoder, bos, eos = byte_level()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token=bos, eos_token=eos)
    tokenizer.save_pretrained(folder)
    shapes = {
        config.WEIGHTS.in_checkpoint(name): tuple(parameter.shape)
        for name, parameter in Llama(config, seed=None).named_parameters()
    }
    drawn = torch.randn(max(32_000, d_mlp) * width)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header({name: ArrayHeader("F32", shape) for name, shape in shapes.items()}))
        for index, shape in enumerate(shapes.values()):
            # The same draws in every weight, times another number; gains are about 1.
            scale = (1 + index / 1000) * (1 if len(shape) == 1 else 0.02)
            weight = torch.ones(shape) if len(shape) == 1 else drawn[: shape[0] * shape[1]]
            file.write((weight * scale).numpy().data)
    return (folder / "model.safetensors").stat().st_size


def write_texts(path: Path) -> None:
    """Write short texts with more tokens than `N_SHARDS` - 1 shards have."""
    draw, lines, n_tokens = random.Random(0), ["text,label"], 0
    encode = byte_level()[0].encode
    while n_tokens < (N_SHARDS - 0.5) * TOKENS_OF_SHARD:
        text = " ".join(draw.choices(["the", "old", "house", "river", "door"], k=5))
        n_tokens += len(encode(text).ids)
        lines.append(f"{text},{draw.choice('ab')}")
    path.write_text("\n".join(lines) + "\n")


class JsonWatcher:
    """A watcher that prints each report as a line of JSON."""

    def progress(self, _step: str, done: int, _total: int) -> None:
        """Print the number of finished rows."""
        print(json.dumps({"rows": done}), flush=True)

    def tell(self, message: str) -> None:
        """Print a message."""
        print(json.dumps({"message": message}), flush=True)


def capture(folder: Path, cache: Path, limit: float) -> None:
    """Capture the experiment of a folder in this process, whose private memory may be limited."""
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    records.SHARD_ROWS, records.BATCH_TOKENS["cpu"] = TOKENS_OF_SHARD, TOKENS_OF_BATCH
    start = time.perf_counter()
    captured = capture_only(
        load_experiment(folder / "large.yaml"), cache_root=cache, watcher=JsonWatcher()
    )["task"]
    status = Path("/proc/self/status").read_text()
    print(
        json.dumps(
            {
                "store": str(captured.store.folder),
                "seconds": time.perf_counter() - start,
                "shards": captured.computed,
                "reused": captured.reused,
                "peak": int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024,
            }
        )
    )


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """Yield the reports of a capturing process."""
    return map(json.loads, process.stdout or ())


def main() -> None:
    """Print sizes, time and memory of each capture, and whether their files are the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the weights")
    parser.add_argument("--limit", type=float, default=1.0, help="private memory in GB")
    parser.add_argument("--alone", action="store_true", help="no capture without a limit")
    parser.add_argument("--folder", help="folder for the weights, instead of the temporary one")
    parser.add_argument("--capture", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.capture:
        folder, cache, limit = arguments.capture
        capture(Path(folder), Path(cache), float(limit))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        size = write_network(folder / "model", arguments.gigabytes * GB)
        write_texts(folder / "words.csv")
        (folder / "large.yaml").write_text(EXPERIMENT)
        print(f"weights of {size / GB:.2f} GB, private memory of {arguments.limit:.2f} GB")

        def start(cache: str, limit: float) -> subprocess.Popen[str]:
            module = [sys.executable, "-m", "benchmarks.large_network", "--capture"]
            command = [*module, str(folder), str(folder / cache), str(limit * GB)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        began, killed = time.perf_counter(), start("limited", arguments.limit)
        for line in lines_of(killed):
            print(line.get("message", ""), end="\n" if "message" in line else "")
            if line.get("rows", 0) >= TOKENS_OF_SHARD // 2:  # the first shard is computed
                time.sleep((time.perf_counter() - began) / 4)  # now in the second
                killed.kill()
                break
        print(f"killed after {time.perf_counter() - began:.0f} s")
        stores = {}
        for cache, limit in (("limited", arguments.limit), ("free", 0.0)):
            if cache == "free" and arguments.alone:
                continue
            process = start(cache, limit)
            last = list(lines_of(process))[-1]
            if process.wait():
                raise SystemExit(process.returncode)
            stores[cache] = files(Path(str(last["store"])))
            print(
                f"{cache:8} {last['shards']} shards computed, {last['reused']} reused, "
                f"{last['seconds']:.0f} s, peak {last['peak'] / GB:.2f} GB"
            )
        if len(stores) == 2:
            is_same = stores["limited"] == stores["free"]
            print(f"{len(stores['free'])} files of the two caches are the same: {is_same}")
            if not is_same:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
