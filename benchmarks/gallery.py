"""Draw docs/gallery and the picture of README.md from the shipped experiments: `make gallery`.

    python -m benchmarks.gallery [--check]

Finished runs are reused. --check only compares the labels of README.md's picture with those that
the finished quickstart has today.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from probekit.experiment.loader import load_experiment
from probekit.pipeline.compare.transfer import transfer
from probekit.pipeline.experiment.run import run
from probekit.report.elements.page import FigurePart
from probekit.report.figures.figure_files import Paper, write_figures
from probekit.report.pages.run_page import run_figures
from probekit.report.pages.transfer_page import place_parts

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2_000_000  # limit for all images together
PICTURE = ROOT / "docs" / "layer_curve.svg"


@dataclass(frozen=True)
class Source:
    """A run whose figures go into the gallery.

    Attributes:
        experiment: file name of the experiment.
        overrides: settings of the experiment to change.
        prefix: only figures whose titles start with this are used.
        suffix: text appended to the titles.
    """

    experiment: str
    overrides: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""


_PARTS = ("resid_mid", "attn_out", "mlp_out", "mlp.hook_post", "attn.hook_z")
_QUICK = ("probe.control_draws=1", "probe.permutations=0", "probe.description=false")
SOURCES = (
    Source("quickstart.yaml"),
    Source(
        "quickstart.yaml",
        (
            *_QUICK,
            "name=gallery_facets",
            "capture.sites=[{}]".format(
                ",".join(
                    f'"blocks.*.{name if "." in name else f"hook_{name}"}"'
                    for name in ("resid_post", *_PARTS)
                )
            ),
        ),
        "Accuracy by layer",
        " and kind of site",
    ),
    Source("previous_token_heads.yaml", (*_QUICK, "name=gallery_heads"), "Accuracy by layer and"),
    Source(
        "previous_token.yaml",
        (*_QUICK, "name=gallery_sweep", "tokens.sweep=[-1, 0, 1]"),
        "Accuracy by layer and position",
    ),
    Source("causes.yaml", prefix="Recovery by layer · patches at the last token"),
    Source("causes.yaml", prefix="Dose-response · probe"),
    Source("causes.yaml", prefix="Accuracy after erasure · probe"),
)


def main() -> None:
    """Write the images and print their number and total size, or compare README.md's picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare README.md's picture only")
    picture = _picture()
    if parser.parse_args().check:
        was, now = labels(PICTURE.read_text(encoding="utf-8")), labels(picture)
        if was != now:
            raise SystemExit(f"{PICTURE} has other labels: {sorted(was ^ now)}. Run make gallery.")
        return
    PICTURE.write_text(picture, encoding="utf-8")
    parts = {part.title: part for part in [*_transfer_parts(), *_run_parts()]}
    folder = ROOT / "docs" / "gallery"
    for path in folder.glob("*.svg"):
        path.unlink()
    written = write_figures(list(parts.values()), folder, ["svg"], Paper(1))
    size = sum(path.stat().st_size for path in written)
    if size > MOST_BYTES:
        raise SystemExit(f"The images have {size:,} bytes; the limit is {MOST_BYTES:,}.")
    print(f"{len(written)} images, {size:,} bytes, in {folder}")


def labels(svg: str) -> set[str]:
    """Return the words of a picture, without numbers and lines, which differ between machines.

    >>> sorted(labels("<text x='1'>chosen 0.93,</text><text>accuracy</text><text>0.5</text>"))
    ['accuracy', 'chosen']
    """
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    return set(re.findall(r"[^\W\d_]+", " ".join(texts)))


def _picture() -> str:
    """Return the first figure of the quickstart as README.md shows it."""
    result = run(load_experiment(ROOT / "experiments" / "quickstart.yaml"), out=ROOT / "runs")
    with TemporaryDirectory() as folder:
        (path,) = write_figures(run_figures(result.folder)[:1], Path(folder), ["svg"], Paper(2))
        return path.read_text(encoding="utf-8")


def _run_parts() -> Iterator[FigurePart]:
    for source in SOURCES:
        experiment = load_experiment(ROOT / "experiments" / source.experiment, source.overrides)
        result = run(experiment, out=ROOT / "runs", page=False)
        for part in run_figures(result.folder):
            if part.title.startswith(source.prefix):
                yield replace(part, title=f"{part.title}{source.suffix}")


def _transfer_parts() -> Iterator[FigurePart]:
    """Yield the figures of a transfer between sentences with and without an attractor."""
    with (ROOT / "data" / "subject_number.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with TemporaryDirectory() as folder:
        experiments = []
        for kind in ("same", "other"):
            path = Path(folder) / f"{kind}.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(row for row in rows if row["attractor"] == kind)
            overrides = (
                f"data.root={folder}",
                f"data.file={path.name}",
                "data.card=null",
                "split.folds=null",
                f"name=attractor_{kind}",
                'capture.sites=["blocks.5.hook_resid_post"]',
                *_QUICK,
            )
            quickstart = ROOT / "experiments" / "quickstart.yaml"
            experiments.append(load_experiment(quickstart, overrides))
        result = transfer(experiments, out=Path(folder) / "transfer")
    for part in place_parts(result, *result.chosen):
        yield replace(part, title=f"Transfer: {part.title}")


if __name__ == "__main__":
    main()
