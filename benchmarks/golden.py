"""Compare what two checkouts compute for six small experiments, byte for byte.

    python -m benchmarks.golden BASE [--run NAME ...] [--words] [--keep FOLDER]

BASE is a commit of git or the folder of a checkout; its code is compared with the code of this
checkout, changes that are not committed included. Both run the same experiments side by side on
this machine, with one thread and a cache of their own: the last bits of a number depend on the
processor, so that no results are stored. A line for each table states that it is identical, or
names the first cells that differ, and the exit code is 1 if anything differs.

Compared are all CSV, JSON, YAML and safetensors files that the commands write: results.csv,
differences.csv, the predictions in sites/, the probes, the tables of causes, of two runs, of
transfer, of heads and of the logit lens. `--words` also compares the output of the commands, and
the visible text of the pages; data of figures, which scripts draw, are not compared.
`--keep FOLDER` keeps all files. The seconds are those of the processor; all experiments together
take about three minutes on two free cores, four with `--words`.
"""

from __future__ import annotations

import argparse
import csv
import html
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from safetensors.numpy import load_file

REPOSITORY = Path(__file__).resolve().parents[1]
SIDES = ("base", "this")
TABLES = (".csv", ".json", ".yaml", ".safetensors")
WORDS = (".html", ".txt")
MOST_SHOWN = 3  # differences of a table
# Keys of JSON files with times, places, versions and digests of files and code, and the folder of
# the parts that unfinished causes continue from.
KEYS_LEFT_OUT = "caches?|created|digests?|files|key|seal|seconds|tensors|versions"
FOLDERS_LEFT_OUT = ("parts",)
KEY = "[0-9a-f]{12,}"  # of a run, a cache or a file
# What `--words` leaves out: keys, dates and times.
CHANGING = (
    KEY,
    r"\b\d{4}-\d\d-\d\d[ T][\d:+]+",
    r"\babout \S+ seconds? to capture",
    r"\bSeconds( \w+ \d+\.\d\d)+",
)

# Shipped experiments with other values of some keys; `write_inputs` writes their rows.
EXPERIMENTS = """
quickstart: {shipped: quickstart, data.file: subjects.csv, split.folds: 3,
  capture.sites: [blocks.0.hook_resid_pre, "blocks.[15].hook_resid_post"],
  probe.kinds: [{kind: logistic}, {kind: mass_mean}], probe.C: [0.01, 1], probe.folds: 3}
heads: {shipped: previous_token_heads, data.file: previous.csv, tokens.position.offset: 2,
  capture.sites: ["blocks.[03].attn.hook_z[head=*]"],
  capture.concatenate: [["blocks.[03].attn.hook_z"]], probe.C: [0.1, 10], probe.permutations: 200}
positions: {shipped: previous_token, data.file: previous.csv, tokens.sweep: [0, 1, 3],
  capture.sites: ["blocks.[03].hook_resid_post"], probe.control_draws: 1, probe.learning_steps: 2,
  probe.kinds: [{kind: logistic}, {kind: k_sparse, k: [2]}], probe.C: [0.1, 10], probe.folds: 2}
regression: {shipped: subject_number, data.file: subjects.csv, data.columns.label: length,
  capture.sites: ["blocks.[04].hook_resid_post", blocks.4.hook_mlp_out], split.folds: 3,
  probe.kinds: [{kind: ridge_regression}], probe.folds: 3}
given: {shipped: subject_number, model: null, tokens: null, capture: null,
  activations: {folder: activations}, data.file: subjects.csv, split.test: 0.4,
  data.columns: {label: label, group: group, token: token}, probe.C: [0.01, 1],
  probe.kinds: [{kind: logistic}, {kind: lda}, {kind: ridge}], probe.control_draws: 1,
  probe.permutations: 200}
causes: {shipped: causes, data.file: pairs.csv, model.random_weights: 0, probe.C: [0.01],
  capture.sites: [blocks.0.hook_resid_pre, "blocks.[15].hook_resid_post"],
  interventions: [
    {do: patch, from: counterfactual, sites: "blocks.[15].hook_resid_post", at: [probed, all]},
    {do: ablate, with: mean, sites: "blocks.5.attn.hook_z[head=*]", at: all},
    {do: erase, along: [probe, leace], sites: blocks.5.hook_resid_post, draws: 59},
    {do: swap, along: probe, rank: 1, sites: blocks.5.hook_resid_post, draws: 59},
    {do: steer, along: probe, by: [-2, 2], sites: blocks.5.hook_resid_post, draws: 59}]}
"""
DEFAULTS = {"data.root": ".", "data.card": None, "model.random_weights": 1}
TEXT = '--model mini --text "The keys to the old cabinet"'
LOOKS = {
    "heads": "attention --scores --model mini --random-repeats 2 --length 20",
    "lens": f"lens {TEXT}",
    "attribution": f"attribution {TEXT} --minus-mean",
    "patch": "patch --model mini --clean 'The old house there' --corrupt 'The old houses there' "
    "--answer ' was' --wrong ' were' --heads",
}
# Commands after the run of an experiment, and those that `--words` adds.
COMMANDS = {
    "heads": [f"{command} --out {name}.csv" for name, command in LOOKS.items()],
    "given": [
        "run ../../inputs/given.yaml --workers 1 --out others "
        "--set 'probe.kinds=[{kind: logistic}]'",
        "compare runs/*/* others/*/* --out compare.csv",
    ],
    "causes": [
        "transfer ../../inputs/quickstart.yaml ../../inputs/causes.yaml --kind logistic "
        "--site blocks.5.hook_resid_post --null-draws 3 --set split.folds=null "
        "--set probe.C=[0.01] --set probe.folds=3 --set model.random_weights=0 --out transfer"
    ],
}
COMMANDS_OF_WORDS = {
    "quickstart": ["report runs/*/*", "validate ../../inputs/quickstart.yaml", "sites mini"],
    "heads": [f"{command} --out {name}.html" for name, command in LOOKS.items()],
    "given": [f"{one} runs/*/* others/*/* --out {one}.html" for one in ("compare", "report")],
}


def write_inputs(folder: Path) -> list[str]:
    """Write the experiments with their rows and activations; return their names."""
    subjects = _few_rows("subject_number", 20, 16)
    subjects["length"] = subjects["text"].str.len() / 8
    subjects["token"] = subjects["text"].str.split().str[1]
    subjects.to_csv(folder / "subjects.csv", index=False)
    _few_rows("previous_token", 60, 6).to_csv(folder / "previous.csv", index=False)
    _few_rows("noun_pairs", 12, 8).to_csv(folder / "pairs.csv", index=False)
    (folder / "activations").mkdir()
    generator = np.random.default_rng(0)
    for layer in range(3):
        values = generator.normal(size=(len(subjects), 24)).astype(np.float32)
        values[:, 0] += 0.5 * layer * (subjects["label"] == "plural")
        np.save(folder / "activations" / f"layer_{layer}.npy", values)
    yaml = YAML(typ="safe")
    experiments = yaml.load(EXPERIMENTS)
    for name, changes in experiments.items():
        path = REPOSITORY / "experiments" / f"{changes.pop('shipped')}.yaml"
        experiment = yaml.load(path) | {"name": name}
        for key, value in (DEFAULTS | changes).items():
            *sections, last = key.split(".")
            section = experiment
            for one in sections:
                section = section.setdefault(one, {})
            section[last] = value
        # JSON is YAML, too.
        filled = {key: value for key, value in experiment.items() if value is not None}
        (folder / f"{name}.yaml").write_text(json.dumps(filled, indent=2))
    return list(experiments)


def _few_rows(name: str, groups: int, rows: int) -> pd.DataFrame:
    table = pd.read_csv(REPOSITORY / "data" / f"{name}.csv")
    few = table[table["group"].isin(table["group"].unique()[:groups])]
    return few.groupby("group").head(rows).copy()


@contextmanager
def checkout(base: str, folder: Path) -> Iterator[Path]:
    """Yield the folder of a checkout: `base` itself, or a temporary one of that commit."""
    if Path(base).is_dir():
        yield Path(base).resolve()
        return
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), base], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run_commands(name: str, commands: Sequence[str], side: tuple[Path, Path]) -> float:
    """Run commands with the code of a checkout, write what they print and return processor seconds.

    Args:
        name: name of the experiment, and of the folder in which its commands run.
        commands: commands of probekit, with file names as the shell reads them.
        side: folder of the checkout, and the folder of what it writes.
    """
    root, out = side
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "PROBEKIT_CACHE": str(out / "cache"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    folder = out / name
    folder.mkdir(parents=True)
    run = partial(subprocess.run, cwd=folder, env=environment, capture_output=True, text=True)
    found = run([sys.executable, "-c", "import probekit; print(probekit.__file__)"]).stdout
    if not Path(found).is_relative_to(root):
        raise SystemExit(f"The code of {root} is not imported, but that of {found}")
    before = os.times()
    for number, command in enumerate(commands):
        ended = run(f"{shlex.quote(sys.executable)} -m probekit {command}", shell=True)
        if ended.returncode:
            raise SystemExit(f"{out.name}: probekit {command}\n{ended.stdout}{ended.stderr}")
        said = folder / f"output of {number} {command.split()[0]}.txt"
        said.write_text(ended.stdout + ended.stderr)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def cells(path: Path) -> dict[str, str]:
    """Return the places in a table, JSON file, file of tensors or text, with their values."""
    if path.suffix == ".csv":
        with path.open(newline="") as lines:
            header, *rows = csv.reader(lines)
        columns = {f"column {n}": column for n, column in enumerate(header, 1)}
        return columns | {
            f"row {n}, {column}": value
            for n, row in enumerate(rows, 1)
            for column, value in zip(header, row, strict=True)
        }
    if path.suffix == ".json":
        return dict(_leaves(json.loads(path.read_text()), ""))
    if path.suffix == ".safetensors":
        tensors = load_file(path)
        types = {name: str(tensor.dtype) for name, tensor in tensors.items()}
        return types | dict(_leaves({name: one.tolist() for name, one in tensors.items()}, ""))
    return {f"line {n}": line for n, line in enumerate(path.read_text().splitlines(), 1)}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, part in value.items():
            if not re.fullmatch(KEYS_LEFT_OUT, key):
                yield from _leaves(part, f"{place}.{key}")
    elif isinstance(value, list):
        for n, part in enumerate(value):
            yield from _leaves(part, f"{place}[{n}]")
    else:
        yield place, repr(value)


def differing_cells(old: Path, new: Path) -> list[str]:
    """Return the cells that differ, with both values."""
    before, after = cells(old), cells(new)
    found = [
        f"{place}: {before.get(place, 'absent')} -> {after.get(place, 'absent')}"
        for place in before | after
        if before.get(place) != after.get(place)
    ]
    if not found and old.suffix == ".csv" and old.read_bytes() != new.read_bytes():
        return ["the bytes differ, but no cell does"]
    return found


def sentences(path: Path) -> list[str]:
    """Return the visible text of a page, or the output of a command, without dates and digests."""
    text = path.read_text()
    if path.suffix == ".html":
        text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<!--.*?-->", " ", text)
        text = re.sub(r'\s(?:alt|aria-label|title)="([^"]*)"', r">\1<", text)
        text = " ".join(html.unescape(re.sub("<[^>]*>", " ", text)).split())
        lines = re.split(r"(?<=[.:?!]) ", text)
    else:
        progress = re.compile(r".*: [\d.,]+ of [\d.,]+")
        lines = [line for line in text.splitlines() if not progress.fullmatch(line)]
    return [re.sub("|".join(CHANGING), "...", line) for line in lines]


def differing_words(old: Path, new: Path) -> list[str]:
    """Return the passages that differ."""
    before, after = sentences(old), sentences(new)
    found = []
    for kind, *span in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            pair = "\n".join(before[span[0] : span[1]]), "\n".join(after[span[2] : span[3]])
            same = takewhile(lambda letters: letters[0] == letters[1], zip(*pair, strict=False))
            start = max(0, len(list(same)) - 40)
            found.append(" -> ".join(repr(text[start : start + 120]) for text in pair))
    return found


def compare(folders: Sequence[Path], suffixes: Sequence[str]) -> bool:
    """Print a line for each table, page or output in two folders; return whether any differs."""
    is_words = ".html" in suffixes
    read, differing = (sentences, differing_words) if is_words else (cells, differing_cells)
    old, new = (_files(folder, suffixes) for folder in folders)
    tables: dict[str, list[str]] = {}
    sizes: Counter[str] = Counter()
    for name in sorted(old | new):
        # Files of sites and of their probes are one table.
        table = re.sub(r"/(sites|probes)/.*\.", r"/\1/*.", name)
        if name in old and name in new:
            found = differing(old[name], new[name])
            sizes[table] += len(read(old[name]))
        else:
            found = [f"written by {SIDES[name in new]} only"]
        where = "" if table == name else f"{Path(name).stem}, "
        tables.setdefault(table, []).extend(where + one for one in found)
    for table, found in tables.items():
        what = f"{sizes[table]:,} {'passages' if is_words else 'cells'}"
        print(f"  {table}: {f'{len(found):,} of {what} DIFFER' if found else f'identical, {what}'}")
        for one in found[:MOST_SHOWN]:
            print(f"    {one}")
    return any(tables.values())


def _files(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    return {
        re.sub(KEY, "KEY", path.as_posix()): folder / path
        for path in paths
        if path.suffix in suffixes and not set(FOLDERS_LEFT_OUT) & set(path.parts)
    }


def compare_experiment(name: str, sides: Sequence[tuple[Path, Path]], *, words: bool) -> bool:
    """Run an experiment with both checkouts; print and return whether anything differs."""
    commands = [f"run ../../inputs/{name}.yaml --workers 1", *COMMANDS.get(name, [])]
    if words:
        commands += COMMANDS_OF_WORDS.get(name, [])
    with ProcessPoolExecutor(len(sides)) as pool:
        seconds = pool.map(partial(run_commands, name, commands), sides)
        took = (f"{side} {one:.0f} s" for side, one in zip(SIDES, seconds, strict=True))
        print(f"{name}: {', '.join(took)}")
    folders = [out / name for _, out in sides]
    found = [compare(folders, TABLES), words and compare(folders, WORDS)]
    sys.stdout.flush()
    return any(found)


def main(arguments: Sequence[str]) -> int:
    """Compare the experiments; return 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden")
    parser.add_argument("base", help="commit, or folder of a checkout")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="only these experiments")
    parser.add_argument("--words", action="store_true", help="compare outputs and pages, too")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="new folder for all files")
    options = parser.parse_args(arguments)
    print("Keys of JSON files left out:", KEYS_LEFT_OUT.replace("|", ", "))
    print("Folders left out:", ", ".join(FOLDERS_LEFT_OUT))
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.keep or Path(temporary) / "work").resolve()
        (work / "inputs").mkdir(parents=True)
        names = write_inputs(work / "inputs")
        with checkout(options.base, Path(temporary).resolve() / "checkout") as base:
            sides = [(base, work / SIDES[0]), (REPOSITORY, work / SIDES[1])]
            found = [
                compare_experiment(name, sides, words=options.words)
                for name in options.run or names
            ]
    if options.words:
        print("Left out of words:", "  ".join(CHANGING))
    print("Something differs." if any(found) else "Nothing differs.")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
