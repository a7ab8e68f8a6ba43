"""Memory and CPU time of loading GPT-2 from each supported weight format.

    python -m benchmarks.loading

Random weights of the gpt2 shape in float32 (475 MB) are written in every format. A new process
loads each of them and sums every tensor once. "peak / size" is the increase of peak memory during
loading, pages of mapped files included, divided by the size of the weights; "held / size" is the
increase that remains afterwards. The original format is read with TensorFlow, whose buffers count.
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

from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.model.originals import tensorflow, write_original

ROUTES = ("safetensors", "shards", "pytorch", "original")
REPEATS = 3


def write(route: str, folder: Path, model: GPT2) -> None:
    """Write the model to a folder in one of the formats."""
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
    """Return memory and CPU seconds of loading in this process, which must be a new one."""
    if reader == "original":
        tensorflow()
    torch.set_num_threads(1)
    load = GPT2LMHeadModel.from_pretrained if reader == "transformers" else GPT2.from_pretrained
    GPT2.from_pretrained("mini")  # imports and one-time set-up are not measured
    reset_peak()
    before, start = memory("VmRSS"), time.process_time()
    model = load(folder)
    for parameter in model.parameters():
        parameter.sum()  # forces memory-mapped weights to be read
    cpu = time.process_time() - start
    peak = memory("VmHWM") - before
    size = sum(parameter.nbytes for parameter in model.parameters())
    return {"peak": peak / size, "held": (memory("VmRSS") - before) / size, "cpu": cpu}


def memory(field: str) -> int:
    """Return the resident memory (VmRSS) or its peak (VmHWM) of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def reset_peak() -> None:
    """Reset the peak memory of this process to its current memory."""
    Path("/proc/self/clear_refs").write_text("5")


def measure_in_new_process(reader: str, folder: Path) -> dict[str, float]:
    """Return the result of `measure` in a new process."""
    command = [sys.executable, "-m", "benchmarks.loading", reader, str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Print one row per format and reader: largest memory and least CPU time of several runs."""
    print(f"{'format':12} {'reader':12} {'peak / size':>11} {'held / size':>11} {'CPU s':>6}")
    model = GPT2(GPT2Config())
    for route in ROUTES:
        with tempfile.TemporaryDirectory() as name:
            write(route, Path(name), model)
            readers = [route] if route == "original" else [route, "transformers"]
            for reader in readers:
                runs = [measure_in_new_process(reader, Path(name)) for _ in range(REPEATS)]
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
