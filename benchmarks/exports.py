"""The largest error of each format in which a probe goes to other tools, read by these tools.

    python -m benchmarks.exports [--csv docs/exports.csv]

The readers are the Python blocks of docs/howto/probe_elsewhere.md. A tool that is not installed has
no row.
"""

from __future__ import annotations

import argparse
import csv
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from probekit.probes.exports.vector import steering_vector
from probekit.probes.saved_probe import SavedProbe

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "probe_elsewhere.md"
WIDTH, BY = 768, 4.0
COLUMNS = ("format", "read by", "version", "compared", "largest error")


def targets() -> list[tuple[str, str, str]]:
    """Return format, package that reads it and code of each target of the page."""
    section = PAGE.read_text().partition("\n## Each target\n")[2].partition("\n## ")[0]
    found = []
    for code in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        (to,) = re.findall(r'probe\.export\("\S+", "(\w+)"', code)
        packages = re.findall(r"^(?:import|from) ([a-z_]+)", code, re.MULTILINE)
        standard = {"importlib", "json"}
        package = next(one for one in reversed(packages) if one not in standard)
        found.append((to, package, code))
    return found


def random_probe(classes: tuple[str, ...], seed: int = 0) -> SavedProbe:
    """Return a linear probe with random weights and large biases."""
    draw = np.random.default_rng(seed)
    n_scores = 1 if len(classes) == 2 else len(classes)
    probe = SavedProbe.from_arrays(
        draw.normal(size=(n_scores, WIDTH)),
        10 * draw.normal(size=n_scores),
        site="blocks.3.hook_resid_post",
        model="mini",
        classes=classes,
        kind="logistic",
        rows=draw.normal(size=(100, WIDTH)),
    )
    facts = probe.facts.model_copy(update={"scores_are_logits": True})
    return SavedProbe(probe.layers, probe.classes, facts)


def error_of(code: str, classes: tuple[str, ...], folder: Path) -> tuple[str, float]:
    """Return `scores` or `vector`, the result of the code of a target, and its largest error."""
    probe, X = random_probe(classes), np.random.default_rng(1).normal(size=(200, WIDTH))
    X[:, 2] = 300 + 4 * X[:, 2]  # a massive feature
    names: dict[str, Any] = {"probe": probe, "X": X}
    if not hasattr(np, "float_"):  # repeng 0.4 names a type that NumPy 2 removed
        vars(np)["float_"] = np.float64
    exec(code.replace('"exported/', f'"{folder}/'), names)  # of our page
    what = "scores" if "scores" in names else "vector"
    expected = probe.scores(X) if what == "scores" else BY * steering_vector(probe)
    found = np.asarray(names[what], dtype=float).reshape(expected.shape)
    return what, float(np.abs(found - expected).max() / np.abs(expected).max())


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the row of each target whose package is installed."""
    for to, package, code in targets():
        if find_spec(package) is None:
            continue
        steers = "vector" in to or to == "gguf"
        several = [("no", "yes")] if steers else [("no", "yes"), ("a", "b", "c")]
        with tempfile.TemporaryDirectory() as folder:
            errors = [error_of(code, classes, Path(folder)) for classes in several]
        try:
            number = version(package)
        except PackageNotFoundError:  # read from its source
            number = ""
        yield to, package, number, errors[0][0], f"{max(error for _, error in errors):.1e}"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, default=PAGE.parents[1] / "exports.csv")
    path = parser.parse_args().csv
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows()])
    print(path.read_text())


if __name__ == "__main__":
    main()
