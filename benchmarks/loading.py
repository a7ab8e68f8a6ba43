"""How much memory and time loading GPT-2 takes, from each format that weights are kept in.

    python -m benchmarks.loading

Random weights of the gpt2 shape in float32 (475 MB) are written in every format; a fresh process
loads each and adds up every tensor once. Peak is what the process came to hold beyond what it held
before, pages of mapped files included, over the size of the weights; held is what it then goes on
to hold. The original is read through TensorFlow, whose own buffers count too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from probekit.model.config import GPT2Config
from probekit.model.gpt2 import GPT2
from tests.model.originals import tensorflow, write_original

ROUTES = ("safetensors", "shards", "pytorch", "original")
REPEATS = 3


def write(route: str, folder: Path, model: GPT2) -> None:
    """Write the model in one of the formats."""
    model.save_pretrained(folder)
    whole = folder / "model.safetensors"
    if route == "safetensors":
        return
    hub = {name.removeprefix("transformer."): tensor for name, tensor in load_file(whole).items()}
    if route == "shards":
        reference = GPT2LMHeadModel.from_pretrained(folder)
        whole.unlink()
        reference.save_pretrained(folder, max_shard_size="100MB")
    if route == "pytorch":
        torch.save(hub, folder / "pytorch_model.bin")
        whole.unlink()
    if route == "original":
        write_original(folder, model.config, hub)
        whole.unlink()
        (folder / "config.json").unlink()


def measure(reader: str, folder: Path) -> dict[str, float]:
    """Return peak memory and CPU seconds of loading in this process, which must be fresh."""
    if reader == "original":
        tensorflow()
    torch.set_num_threads(1)
    load = GPT2LMHeadModel.from_pretrained if reader == "transformers" else GPT2.from_pretrained
    GPT2.from_pretrained("mini")  # what is imported and set up at the first use
    forget_peak()
    before, start = memory("VmRSS"), time.process_time()
    model = load(folder)
    for parameter in model.parameters():
        parameter.sum()  # who maps the file alone has not read it yet
    cpu = time.process_time() - start
    peak = memory("VmHWM") - before
    size = sum(parameter.nbytes for parameter in model.parameters())
    return {"peak": peak / size, "held": (memory("VmRSS") - before) / size, "cpu": cpu}


def memory(field: str) -> int:
    """Return the bytes that this process holds (VmRSS), or held at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def forget_peak() -> None:
    """Let the peak begin at what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def in_fresh_process(reader: str, folder: Path) -> dict[str, float]:
    """Return what `measure` says in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loading", reader, str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Print one row for each format and reader, the best of several processes."""
    print(f"{'format':12} {'reader':12} {'peak / size':>11} {'held / size':>11} {'CPU s':>6}")
    model = GPT2(GPT2Config())
    for route in ROUTES:
        with tempfile.TemporaryDirectory() as name:
            write(route, Path(name), model)
            readers = [route] if route == "original" else [route, "transformers"]
            for reader in readers:
                runs = [in_fresh_process(reader, Path(name)) for _ in range(REPEATS)]
                peak, held, cpu = (
                    f(run[key] for run in runs)
                    for key, f in (("peak", max), ("held", max), ("cpu", min))
                )
                who = "transformers" if reader == "transformers" else "probekit"
                print(f"{route:12} {who:12} {peak:11.2f} {held:11.2f} {cpu:6.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
