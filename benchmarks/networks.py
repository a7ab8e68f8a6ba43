"""What is proven of a tiny random network of every model type of transformers.

    python -m benchmarks.networks [--type llama] [--csv docs/networks.csv] [--page docs/networks.md]

Each model type runs in a process of its own, with a time limit. Types that are in the CSV are not
run again, so an interrupted run continues; delete their rows to repeat them. The page is written
from the CSV.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks.tiny_networks import CLASSES, tiny_network
from probekit.model.proven.proof import prove
from probekit.model.proven.taps import HEAD_SITES, ProvenModel

SECONDS = 300  # of processor and waiting time for one type
# Column -> heading of the page, and feature whose refusal is the reason.
FEATURES = {
    "stream": ("residual stream", "all"),
    "sums": ("sums", "sums"),
    "lens": ("lens", "lens"),
    "heads": ("heads", "patterns"),
    "neurons": ("neurons", "neurons"),
    "left": ("padding left", "padding on the left"),
    "right": ("padding right", "padding on the right"),
    "generation": ("generation", "generation"),
    "resume": ("resume", "resume"),
    "gradients": ("gradients", "gradients"),
}
# Beginnings of the reasons of types that do not run on token ids alone, or not here.
UNUSABLE = ("not built", "all: a pass over token ids alone fails", "all: the model returns no")
COLUMNS = ("model_type", *FEATURES, "n_sites", "seconds", "reasons")
MARKS = {"yes": "●", "some": "◐", "no": "–", "none": ""}
INTRODUCTION = """# Networks of transformers

Written by `python -m benchmarks.networks`, with transformers {version}, from
[networks.csv](networks.csv): tiny random networks (4 blocks, width 32) of every causal and
image-text class. Each was proven with `prove`, which has no knowledge of architectures.

- *residual stream*: read and written before and after every block.
- *sums*: the outputs of attention (or another mixer) and MLP, whose sum is the stream.
- *lens*: the logits are the unembedding of the normed last stream.
- *heads*: q, k, v, z and the pattern of every block with attention.
- *neurons*: the input of the last linear map of an MLP. Experts have none.
- *padding*: a batch with padding gives each text the values that it has alone.
- *generation*: the steps of a generation have the values of one pass over the whole text.
- *resume*: blocks can be run alone, from any of them on.
- *gradients*: they equal finite differences at every site.

● all blocks, ◐ some blocks, – none. An empty cell means that there is nothing of this kind: a
network without attention has no heads.
"""


def result(model: ProvenModel, seconds: float) -> dict[str, Any]:
    """Return the row of a type: what is proven, and why the rest is not."""
    n, sites, refused = model.n_layers, set(model.sites), model.refused

    def has(layers: list[int], names: tuple[str, ...]) -> str:
        full = [all(f"blocks.{k}.{name}" in sites for name in names) for k in layers]
        if not layers:
            return "none"
        return "yes" if all(full) else "some" if any(full) else "no"

    if "all" in refused:
        states = dict.fromkeys(FEATURES, "no")
    else:
        summed = [bool(layer.steps) for layer in model.layers]
        kinds = {"attn": "hook_attn_out", "mixer": "hook_mixer_out", "mlp": "hook_mlp_out"}
        for number, layer in enumerate(model.layers):
            names = (kinds[step.role] for step in layer.steps if step.role)
            summed[number] &= all(f"blocks.{number}.{name}" in sites for name in names)
        states = {
            "stream": has(list(range(n)), ("hook_resid_pre", "hook_resid_post")),
            "sums": "yes" if all(summed) else "some" if any(summed) else "no",
            "heads": has(model.facts["attention"], tuple(f"attn.{one}" for one in HEAD_SITES)),
            "neurons": has(list(range(n)), ("mlp.hook_post",)),
        }
        for name, (_, feature) in FEATURES.items():
            states.setdefault(name, "no" if feature in refused else "yes")
    reasons = {k: why for k, why in refused.items() if not k.startswith("blocks.")}
    for number, layer in enumerate(model.layers):
        if layer.reason:
            reasons.setdefault("sums", f"block {number}: {layer.reason}")
    tested = [k for k in refused if k.startswith("blocks.") and "writ" in refused[k]]
    reasons |= {k: refused[k] for k in tested[:1]}
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return {**states, "n_sites": len(sites), "seconds": f"{seconds:.2f}", "reasons": text}


def _prove(model_type: str, sender: Connection) -> None:
    """Prove a type in a child process, and send its row."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of transformers
    try:
        network = tiny_network(model_type)
    except Exception as error:  # noqa: BLE001 - of transformers: a type that cannot be built
        sender.send({"reasons": f"not built: {_line(error)}"})
        return
    start = time.process_time()
    sender.send(result(prove(network), time.process_time() - start))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def row(model_type: str, seconds: float) -> dict[str, Any]:
    """Return the row of a type, computed in a process of its own within a time limit."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_prove, args=(model_type, sender))
    child.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(seconds) else {"reasons": f"over {seconds} s"}
    except EOFError:
        found = {"reasons": "the process died"}
    child.kill()
    child.join()
    return {"model_type": model_type, **found}


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of the CSV by model type."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {one["model_type"]: one for one in csv.DictReader(file)}


def page(rows: Mapping[str, Mapping[str, str]], version: str) -> str:
    """Return the page of the documentation."""
    run = {k: one for k, one in rows.items() if not one["reasons"].startswith(UNUSABLE)}
    lines = [INTRODUCTION.format(version=version)]
    lines += [f"## Counts\n\nOf {len(run)} model types that run on token ids:\n"]
    lines += ["| proven | types |", "|---|---|"]
    for name, (heading, _) in FEATURES.items():
        n = Counter(one[name] for one in run.values())
        some = f", in some blocks {n['some']}" if n["some"] else ""
        lines.append(f"| {heading} | {n['yes']}{some} |")
    required = [name for name in FEATURES if name != "neurons"]
    full = [one for one in run.values() if all(one[k] in ("yes", "none") for k in required)]
    seconds = median(float(one["seconds"]) for one in run.values() if one["seconds"])
    lines.append(f"| all but neurons | {len(full)} |")
    lines.append(f"\nA proof takes {seconds:.1f} s of processor time (median).\n")
    headings = [heading for heading, _ in FEATURES.values()]
    lines += ["## Types\n", f"| type | {' | '.join(headings)} |"]
    lines.append("|---" * (1 + len(FEATURES)) + "|")
    for model_type, one in sorted(run.items()):
        marks = " | ".join(MARKS.get(one[name], "") for name in FEATURES)
        lines.append(f"| {model_type} | {marks} |")
    lines.append("\n## Reasons\n\n| type | reasons |\n|---|---|")
    for model_type, one in sorted(rows.items()):
        if one["reasons"]:
            lines.append(f"| {model_type} | {one['reasons'].replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prove the types that are not in the CSV, and write the page."""
    parser = argparse.ArgumentParser(description="Prove every model type of transformers.")
    parser.add_argument("--type", choices=CLASSES, action="append", help="repeatable")
    parser.add_argument("--csv", type=Path, default=Path("docs/networks.csv"))
    parser.add_argument("--page", type=Path, help="Markdown page, such as docs/networks.md")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for a type")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    done = read(chosen.csv)
    todo = [one for one in chosen.type or sorted(CLASSES) if one not in done]
    if todo:  # the children share what this imports
        tiny_network("llama").generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2)
    for number, model_type in enumerate(todo, 1):
        found = row(model_type, chosen.seconds)
        with chosen.csv.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(found)
        print(f"{number} of {len(todo)}: {model_type}: {found['reasons'] or 'all'}", flush=True)
    if chosen.page:
        chosen.page.write_text(page(read(chosen.csv), transformers.__version__))


if __name__ == "__main__":
    main()
